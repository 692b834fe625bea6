"""What is raised when a contract is broken."""


class ContractError(AssertionError):
    """A method or an estimator does not keep its contract."""


def require(condition: bool, message: str) -> None:
    """Raise ContractError with the message unless the condition holds."""
    if not condition:
        raise ContractError(message)
