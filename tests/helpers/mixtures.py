"""Small mixtures of experts, with an oracle of their own: closed experts have no score."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HIDDEN = 6, 5


class Router(nn.Module):
    """Scores of experts, and the best of them: by probability, or before the softmax."""

    def __init__(self, experts: int, count: int, late: bool, normalised: bool) -> None:
        super().__init__()
        self.count, self.late, self.normalised = count, late, normalised
        self.weight = nn.Parameter(torch.randn(experts, WIDTH))
        self.bias = nn.Parameter(torch.randn(experts))
        self.closed: list[int] = []  # of an oracle

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = nn.functional.linear(x, self.weight, self.bias)
        if self.closed:
            scores = scores.index_fill(-1, torch.tensor(self.closed), -torch.inf)
        if self.late:
            best, numbers = scores.topk(self.count, dim=-1)
            return best.softmax(-1), numbers
        best, numbers = torch.topk(torch.softmax(scores, dim=-1), self.count, dim=-1)
        return best / best.sum(-1, keepdim=True) if self.normalised else best, numbers


class Experts(nn.Module):
    """Stacks of matrices and biases."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, HIDDEN, WIDTH))
        self.shift = nn.Parameter(torch.randn(experts, HIDDEN))
        self.down = nn.Parameter(torch.randn(experts, WIDTH, HIDDEN))

    def forward(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        hidden = torch.einsum("bkhw,bw->bkh", self.up[numbers], x) + self.shift[numbers]
        chosen = torch.einsum("bkwh,bkh->bkw", self.down[numbers], hidden.tanh())
        return (weights.unsqueeze(-1) * chosen).sum(1)


class Mixture(nn.Module):
    """Linear layers around two mixtures with residual sums."""

    def __init__(
        self, experts: int = 6, count: int = 2, late: bool = False, normalised: bool = True
    ) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.routers = nn.ModuleList(Router(experts, count, late, normalised) for _ in range(2))
        self.experts = nn.ModuleList(Experts(experts) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for router, experts in zip(self.routers, self.experts, strict=True):
            x = x + experts(x, *router(x))
        return self.last(x)

    def with_closed(self, z: Tensor) -> nn.Module:
        """The oracle: a mixture in which closed experts have the score -inf."""
        parts = z.reshape(2, -1)
        for router, gates in zip(self.routers, parts, strict=True):
            closing: Any = router
            closing.closed = (gates == 0).nonzero().flatten().tolist()
        return self
