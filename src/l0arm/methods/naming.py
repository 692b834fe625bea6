"""What a method keeps for every weight is named after it."""


def key_of(name: str) -> str:
    """The name of a weight as that of a parameter or buffer, which has no dots.

    >>> key_of("fc1.weight")
    'fc1-weight'
    """
    return name.replace(".", "-")
