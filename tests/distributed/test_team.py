"""What a process knows of the others; exchange between processes is tested in test_loss.py."""

import pytest
import torch

from l0arm.distributed import ProcessLost, Team, noticing_lost_processes


def test_a_process_alone_exchanges_with_itself() -> None:
    team = Team.here()
    assert team == Team(rank=0, size=1)
    assert team.first
    assert team.sum([1, 2.5]) == [1.0, 2.5]
    assert (team.any(True), team.any(False)) == (True, False)
    assert torch.equal(team.stacked(torch.ones(2)), torch.ones(1, 2))
    assert team.texts("naïve") == ["naïve"]


def test_errors_of_a_connection_mean_a_lost_process() -> None:
    gone = r"is gone \(Connection reset by peer\)"
    with pytest.raises(ProcessLost, match=gone), noticing_lost_processes():
        raise RuntimeError("Connection reset by peer\nand a stack trace")


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("timeout")])
def test_other_errors_pass_through(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), noticing_lost_processes():
        raise error
