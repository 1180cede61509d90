"""When a task is looked at again: at its time, and by the backoff alone where something was refused."""

import pytest

from caretaker.api.conditions import Reason
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.requeue_after import MIN_DELAY, REFUSED_DELAY, requeue_after
from caretaker.daemontask.snapshot import Trouble
from caretaker.daemontask.status_input import Outcome

NOW = 1000.0
LEDGER, DELETION = Reason.LEDGER_WRITE_REFUSED, Reason.POD_DELETION_REFUSED


@pytest.mark.parametrize(
    ("wake", "more", "refused", "flush_at", "expected"),
    [
        pytest.param(0.0, False, "", 0.0, None, id="nothing to wait for"),
        pytest.param(NOW + 5, False, "", 0.0, 5.0, id="at the plan's time"),
        pytest.param(NOW, False, "", 0.0, MIN_DELAY, id="due now"),
        pytest.param(NOW, False, "", NOW + 0.5, 0.5, id="due, when the ledger may be written"),
        pytest.param(NOW, False, LEDGER, 0.0, None, id="due and refused: by the backoff alone"),
        pytest.param(NOW, False, DELETION, 0.0, MIN_DELAY, id="due, and a deletion refused"),
        pytest.param(NOW, False, DELETION, NOW + 0.5, 0.5, id="put off, and a deletion refused"),
        pytest.param(NOW + 5, False, LEDGER, 0.0, 5.0, id="others keep their time"),
        pytest.param(NOW, True, LEDGER, 0.0, REFUSED_DELAY, id="more, and refused"),
    ],
)
def test_when_it_is_looked_at_again(
    wake: float, more: bool, refused: str, flush_at: float, expected: float | None
) -> None:
    plan = Plan(requests=AnnotationRequests(), wake=wake)
    outcome = Outcome(trouble=Trouble(refused, "no") if refused else None, more=more, flush_at=flush_at)
    assert requeue_after(plan, outcome, planned=NOW, now=NOW) == expected


@pytest.mark.parametrize("refused", ["", LEDGER, DELETION])
def test_what_came_due_during_a_slow_pass_is_not_taken_for_what_was_refused(refused: str) -> None:
    plan = Plan(requests=AnnotationRequests(), wake=NOW + 1)
    outcome = Outcome(trouble=Trouble(refused, "no") if refused else None)
    assert requeue_after(plan, outcome, planned=NOW, now=NOW + 3) == MIN_DELAY
