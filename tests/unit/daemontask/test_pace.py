"""When a task is looked at again: at its time, and by the backoff alone where something was refused."""

import pytest

from caretaker.daemontask.orders import Orders
from caretaker.daemontask.pace import MIN_DELAY, REFUSED_DELAY, due_in
from caretaker.daemontask.plan import Plan

NOW = 1000.0


@pytest.mark.parametrize(
    ("wake", "more", "refused", "flush_at", "expected"),
    [
        pytest.param(0.0, False, False, 0.0, None, id="nothing to wait for"),
        pytest.param(NOW + 5, False, False, 0.0, 5.0, id="at the plan's time"),
        pytest.param(NOW, False, False, 0.0, MIN_DELAY, id="due now"),
        pytest.param(NOW, False, False, NOW + 0.5, 0.5, id="due, when the ledger may be written"),
        pytest.param(NOW, False, True, 0.0, None, id="due and refused: by the backoff alone"),
        pytest.param(NOW + 5, False, True, 0.0, 5.0, id="others keep their time"),
        pytest.param(NOW, True, True, 0.0, REFUSED_DELAY, id="more, and refused"),
    ],
)
def test_when_it_is_looked_at_again(
    wake: float, more: bool, refused: bool, flush_at: float, expected: float | None
) -> None:
    plan = Plan(orders=Orders(), wake=wake, more=more)
    assert due_in(plan, refused=refused, flush_at=flush_at, now=NOW) == expected
