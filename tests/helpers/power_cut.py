"""A run that ends in the middle."""

from l0arm.lab.runs.training import Silent


class Cut(Exception):
    pass


class CutAfter(Silent):
    """Ends a run in the middle, as a power cut would: nothing is saved on the way out."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def stepped(self, done: int, total: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise Cut
