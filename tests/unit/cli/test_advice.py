"""Which conditions are worth a line, and that each has a way out."""

from typing import Any

import pytest

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionStatus, Reason
from caretaker.cli.daemontask import ecs_status
from caretaker.cli.daemontask import status as daemontask
from caretaker.cli.daemontask.status import abnormal_conditions, advice
from caretaker.cli.imds import status as imds
from caretaker.cli.s3refresh import status as s3refresh

# Of IMDSPolicy: of events and exceptions alone; and those that say how far a change is.
_NO_CONDITION = {
    *(c.PolicyReason.IMDSV1_OPEN, c.PolicyReason.CANARY_PASSED),
    *(c.PolicyReason.NOT_APPLIED, c.PolicyReason.OTHER_CLUSTER, c.PolicyReason.SAME_PROVIDER_ID),
}
_PROGRESS = {c.PolicyReason.CANARY_CHANGING, c.PolicyReason.CANARY_SOAKING, c.PolicyReason.CHANGING}


@pytest.mark.parametrize(
    ("reasons", "kind", "others"),
    [
        pytest.param(c.Reason, daemontask, set(), id="DaemonTask"),
        pytest.param(c.EcsReason, ecs_status, set(), id="ECS"),
        pytest.param(c.RefreshReason, s3refresh, set(), id="S3AggregatedRefresh"),
        pytest.param(c.PolicyReason, imds, _NO_CONDITION | _PROGRESS, id="IMDSPolicy"),
    ],
)
def test_every_reason_is_either_calm_or_has_advice(reasons: type, kind: Any, others: set[str]) -> None:
    every = {value for name, value in vars(reasons).items() if name.isupper()}
    file = f"operator/{kind.__name__.replace('.', '/')}.py"
    stated = {*kind.ADVICE, *kind.NORMAL, *others}
    assert sorted(every - stated) == [], f"missing in {file}: in ADVICE, or in NORMAL if no action is needed"
    assert sorted(stated - every) == [], f"no reasons of {reasons.__name__}: ADVICE and NORMAL of {file}"
    twice = kind.ADVICE.keys() & kind.NORMAL | kind.ADVICE.keys() & others | kind.NORMAL & others
    assert sorted(twice) == [], f"in ADVICE and in NORMAL of {file}: one of them is right"


def test_advice_names_the_task() -> None:
    assert "caretaker resume daemontask hello -n ops" in advice("daemontask hello -n ops")[Reason.PAUSED]


@pytest.mark.parametrize("reason", [Reason.NODES_FAILED, Reason.LEDGER_CORRUPT])
def test_of_runs_that_are_never_repeated_nothing_runs_again_before_somebody_has_looked(reason: str) -> None:
    told = advice("daemontask hello", at_most_once=True)[reason]
    assert told != advice("daemontask hello")[reason]
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
    assert list(abnormal_conditions(Condition(*parts) for parts in conditions)) == told
