"""A run that ends in the middle."""

from l0arm.lab.runs.training import Callback


class Cut(Exception):
    pass


class CutAfter(Callback):
    """Ends a run in the middle, as a power cut would: nothing is saved on the way out."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, done: int, total: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise Cut
