"""``prune`` in several processes: what they average, and what they take over from the first.

Gradients, running statistics and losses are averaged after every backward pass, in one message.
So all processes have the same network and the same gates at every step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch import distributed as dist

from l0arm.compaction.provenance import provenance_of, set_provenance
from l0arm.distributed import Team, noticing_lost_processes
from l0arm.equality.certificate import Certificate


class FailedElsewhere(RuntimeError):
    """A training step failed in another process, which has the reason."""


def check_joined() -> None:
    """Refuse processes that torchrun started together and that do not know of each other.

    Raises:
        RuntimeError: If no process group was made.
    """
    if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
        raise RuntimeError(
            "torchrun started this process, but it has not joined the others: each would prune a "
            "network of its own. Call torch.distributed.init_process_group() first"
        )


def take_over(team: Team, network: nn.Module) -> None:
    """Give all processes the parameters and buffers of the first."""
    if team.size == 1:
        return
    with torch.no_grad(), noticing_lost_processes():
        for tensor in (*network.parameters(), *network.buffers()):
            sent = tensor.detach().to(team.device).contiguous()
            dist.broadcast(sent, 0)
            tensor.copy_(sent)


def average(
    team: Team, parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor], loss: float | None
) -> float:
    """Replace gradients and floating point buffers by their means over processes.

    Args:
        team: The processes.
        parameters: Those whose gradients are averaged. A missing gradient is 0.
        buffers: Running statistics. Integers are left alone: they count steps.
        loss: The loss of this process, or None if its step failed.

    Returns:
        The mean of the losses.

    Raises:
        FailedElsewhere: If a step failed in any process, in all of them.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    grads = [p.grad for p in parameters if p.grad is not None]
    tensors = [*grads, *(b for b in buffers if b.is_floating_point())]
    flags = torch.tensor([loss or 0.0, float(loss is None)], device=team.device)
    flat = torch.cat([*(t.detach().flatten().to(team.device) for t in tensors), flags])
    with noticing_lost_processes():
        dist.all_reduce(flat)
    flat /= team.size
    if float(flat[-1]) > 0:
        raise FailedElsewhere("a training step failed in another process; its message says why")
    sizes = [tensor.numel() for tensor in tensors]
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(flat[:-2], sizes), strict=True):
            tensor.copy_(part.view_as(tensor))
    return float(flat[-2])


def share_certificate(team: Team, small: nn.Module) -> None:
    """Give all processes the certificate of the first: their example inputs differ."""
    provenance = provenance_of(small)
    if team.size == 1 or provenance is None or provenance.certificate is None:
        return
    record = json.loads(team.texts(json.dumps(provenance.certificate.as_record()))[0])
    set_provenance(small, replace(provenance, certificate=Certificate.from_record(record)))
