"""Who stopped a run: the user by a signal, or output that is lost."""

import os
import signal

import pytest

from l0arm.lab.runs.stopping import stoppable


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("output_first", [False, True])
def test_a_terminal_that_closes_is_the_user_in_either_order(
    number: signal.Signals, output_first: bool
) -> None:
    with stoppable() as stop:
        events = [lambda: os.kill(os.getpid(), number), lambda: stop.fail("output is lost")]
        for event in reversed(events) if output_first else events:
            event()
        assert (stop.requested, stop.failure) == (True, "")


def test_lost_output_alone_is_a_failure() -> None:
    with stoppable() as stop:
        stop.fail("output is lost")
        assert (stop.requested, stop.failure) == (True, "output is lost")
