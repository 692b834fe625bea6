"""Pruning in a loop with Accelerate: the stages need no adapter."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from l0arm import certificate, sparsify
from l0arm.distributed import WholeLoss
from l0arm.pruning import Pruning

accelerate = pytest.importorskip("accelerate", reason="needs pip install 'l0arm[integrations]'")
X = torch.rand(64, 20, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0.5).long() + 2 * (X[:, 1] > 0.5).long()


def test_pruning_with_accelerate_meets_the_budget_with_a_certificate() -> None:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True)
    net = nn.Sequential(
        *(nn.Linear(20, 320), nn.ReLU(), nn.Linear(320, 240), nn.ReLU(), nn.Linear(240, 4)),
    )
    gated = sparsify(net, example_inputs=X[:8], budget={"flops": "30%"}, initial=0.95)
    optimizer = torch.optim.AdamW(gated.model.parameters(), lr=1e-2)
    pruning = Pruning(gated, optimizer, steps=80, cuts=False)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    step, optimizer, loader = accelerator.prepare(WholeLoss(gated), optimizer, loader)
    for x, y in [batch for _ in range(20) for batch in loader]:
        optimizer.zero_grad()
        loss = step(lambda x=x, y=y: F.cross_entropy(gated(x), y), weight=len(y))
        accelerator.backward(loss.total)
        optimizer.step()
    assert pruning.stage == "done"
    small = pruning.finish()
    assert gated.budget is not None
    share = float(gated.budget.cost(gated.deterministic().double())) / gated.budget.cost.dense
    assert 0.99 * 0.3 <= share <= 0.3
    assert certificate(small).passed
    assert float((small(X).argmax(1) == Y).float().mean()) > 0.6  # by chance: 0.25
