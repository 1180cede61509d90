"""When a task is looked at again: at its time, and with backoff where something was refused."""

import pytest

from caretaker.daemontask.orders import Orders
from caretaker.daemontask.pace import MIN_DELAY, REFUSED_DELAY, following
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.snapshot import Trouble
from caretaker.runtime.controller import Next

NOW = 1000.0
REFUSED = Trouble("LedgerWriteRefused", "exceeded quota")


@pytest.mark.parametrize(
    ("wake", "more", "trouble", "flush_at", "expected"),
    [
        pytest.param(0.0, False, None, 0.0, Next(), id="nothing to wait for"),
        pytest.param(NOW + 5, False, None, 0.0, Next(delay=5.0), id="at the plan's time"),
        pytest.param(NOW, False, None, 0.0, Next(delay=MIN_DELAY), id="due now"),
        pytest.param(NOW, False, None, NOW + 0.5, Next(delay=0.5), id="due, when the ledger may be written"),
        pytest.param(NOW, True, None, 0.0, Next(at_once=True), id="work is left"),
        pytest.param(NOW, False, REFUSED, 0.0, Next(retry=True), id="due and refused: by the backoff alone"),
        pytest.param(NOW + 5, False, REFUSED, 0.0, Next(retry=True, delay=5.0), id="others keep their time"),
        pytest.param(NOW, True, REFUSED, 0.0, Next(retry=True, delay=REFUSED_DELAY), id="more, and refused"),
    ],
)
def test_when_it_is_looked_at_again(
    wake: float, more: bool, trouble: Trouble | None, flush_at: float, expected: Next
) -> None:
    plan = Plan(orders=Orders(), wake=wake, more=more)
    assert following(plan, trouble, flush_at, 0.0, NOW) == expected
