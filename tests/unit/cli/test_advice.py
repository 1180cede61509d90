"""Which conditions are worth a line, and that each has a way out."""

import pytest

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionStatus, Reason
from caretaker.cli.daemontask.advice import ADVICE, NORMAL, abnormal_conditions, advice


def test_every_reason_is_either_calm_or_has_advice() -> None:
    reasons = {value for name, value in vars(Reason).items() if name.isupper()}
    assert reasons == set(ADVICE) | NORMAL, "in ADVICE or NORMAL of the kind's cli/.../advice.py"
    assert not set(ADVICE) & NORMAL


def test_advice_names_the_task() -> None:
    assert "caretaker resume daemontask hello -n ops" in advice(Reason.PAUSED, "daemontask hello -n ops")
    assert advice("Unheard", "daemontask hello") == ""


@pytest.mark.parametrize("reason", [Reason.NODES_FAILED, Reason.LEDGER_CORRUPT])
def test_of_runs_that_are_never_repeated_nothing_runs_again_before_somebody_has_looked(reason: str) -> None:
    told = advice(reason, "daemontask hello", at_most_once=True)
    assert told != advice(reason, "daemontask hello")
    assert told.startswith("look at")
    assert "caretaker rerun daemontask hello --nodes NODE" in told


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        pytest.param(
            [(c.READY, "True", Reason.SUCCEEDED), (c.SPEC_VALID, "True", Reason.ACCEPTED)],
            [],
            id="all is well",
        ),
        pytest.param(
            [(c.READY, "False", Reason.ROLLING_OUT), (c.RECONCILING, "True", Reason.ROLLING_OUT)],
            [],
            id="a rollout under way",
        ),
        pytest.param(
            [
                (c.READY, "False", Reason.INVALID_SPEC),
                (c.SPEC_VALID, "False", Reason.INVALID_SPEC),
                (c.PROGRESSING, "False", Reason.INVALID_SPEC),
                (c.STALLED, "True", Reason.INVALID_SPEC),
            ],
            [Reason.INVALID_SPEC],
            id="one fault in four conditions is told once",
        ),
        pytest.param(
            [(c.READY, "False", Reason.PAUSED), (c.STALLED, "True", Reason.NODES_FAILED)],
            [Reason.PAUSED],
            id="a pause is not told as a failure too",
        ),
        pytest.param(
            [(c.READY, "True", Reason.SUSPENDED), (c.SUSPENDED, "True", Reason.SUSPENDED)],
            [Reason.SUSPENDED],
            id="suspended is no fault, but worth knowing",
        ),
        pytest.param(
            [(c.SPEC_VALID, "Unknown", Reason.NOT_CHECKED), (c.DEGRADED, "True", Reason.NODES_FAILED)],
            [Reason.NOT_CHECKED, Reason.NODES_FAILED],
            id="each fault has its line",
        ),
    ],
)
def test_conditions_worth_telling(
    conditions: list[tuple[str, ConditionStatus, str]], told: list[str]
) -> None:
    assert [found.reason for found in abnormal_conditions(Condition(*parts) for parts in conditions)] == told
