"""A few cases of every attack. ``make test-attack`` runs them for longer."""

import pytest
from tests.attack.driver import attacks, execute

ATTACKS = attacks()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_few_cases_hold(name: str) -> None:
    outcome = execute(name, ATTACKS[name], seed=1, seconds=60.0, cases=3)
    assert outcome.cases > 0
    assert outcome.failures == ()
