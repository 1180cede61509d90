"""What one policy has to say of one node."""

import pytest

from caretaker.api.imds import Options
from caretaker.imds.checks import CheckInput, CheckResult, ObservedInstance, check, fits
from caretaker.imds.drift import OptionChange
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.merge import PolicyOptions, merge

HERE = InstanceRef("i-0abc1234", "eu-west-1")
HOP = "httpPutResponseHopLimit"
TWO = [PolicyOptions("p", 100, Options(2))]
HIGHER = [*TWO, PolicyOptions("q", 200, Options(3))]
RIVAL = [*TWO, PolicyOptions("q", 100, Options(3))]
DRIFT = (OptionChange(HOP, 1, 2, "p", "HopLimit"),)

CASES = {
    "as it should be": (HERE, ObservedInstance(Options(2)), TWO, "", CheckResult("compliant")),
    "too low": (
        HERE,
        ObservedInstance(Options(1)),
        TWO,
        "",
        CheckResult("drifted", "Drifted", changes=DRIFT),
    ),
    "stopped, and compliant by value": (
        HERE,
        ObservedInstance(Options(2), "stopped"),
        TWO,
        "",
        CheckResult("compliant"),
    ),
    "taken and not applied yet": (
        HERE,
        ObservedInstance(Options(2), pending=True),
        TWO,
        "",
        CheckResult("pending", "Pending"),
    ),
    "no description has told what it was sent": (
        HERE,
        ObservedInstance(Options(2), confirmed=False),
        TWO,
        "",
        CheckResult("pending", "Pending"),
    ),
    "stopped, and no description has told it": (
        HERE,
        ObservedInstance(Options(2), "stopped", confirmed=False),
        TWO,
        "",
        CheckResult("pending", "Pending"),
    ),
    "EC2 was asked for it and did not tell it": (
        HERE,
        ObservedInstance(Options(2), lost=True),
        TWO,
        "",
        CheckResult(
            "unknown",
            "InstanceNotTold",
            "EC2's response lacks the instance or its options; EC2 is asked again",
        ),
    ),
    "it had ended before it was not told": (
        HERE,
        ObservedInstance(Options(2), "terminated", lost=True),
        TWO,
        "",
        CheckResult("gone", "terminated"),
    ),
    "another change is pending, and ours is not made": (
        HERE,
        ObservedInstance(Options(1), pending=True),
        TWO,
        "",
        CheckResult("drifted", "Drifted", changes=DRIFT),
    ),
    "another policy wants the same, and wins by its name": (
        HERE,
        ObservedInstance(Options(1)),
        [*TWO, PolicyOptions("a", 100, Options(2))],
        "",
        CheckResult("drifted", "Drifted", changes=(OptionChange(HOP, 1, 2, "a", "HopLimit"),)),
    ),
    "a field that only another policy names is the other's to tell": (
        HERE,
        ObservedInstance(Options(2, "optional")),
        [*TWO, PolicyOptions("q", 100, Options(http_tokens="required"))],
        "",
        CheckResult("compliant"),
    ),
    "another policy wins the only field": (
        HERE,
        ObservedInstance(Options(1)),
        HIGHER,
        "",
        CheckResult("compliant"),
    ),
    "in a conflict nothing is to be changed": (
        HERE,
        ObservedInstance(Options(1)),
        RIVAL,
        "",
        CheckResult("compliant"),
    ),
    "no instance of EC2": (InstanceRef(skipped="Fargate"), None, TWO, "", CheckResult("skipped", "Fargate")),
    "an instance of another cluster": (
        InstanceRef(skipped="OtherCluster"),
        None,
        TWO,
        "",
        CheckResult(
            "skipped",
            "OtherCluster",
            "the instance in spec.providerID has the tags of another cluster: check who set "
            "spec.providerID; if the instance belongs to this cluster, set --cluster-name",
        ),
    ),
    "its region could not be asked": (
        HERE,
        None,
        TWO,
        "ec2:DescribeInstances is denied",
        CheckResult("unknown", "NotAsked", "ec2:DescribeInstances is denied"),
    ),
    "never called compliant by what was observed before": (
        HERE,
        ObservedInstance(Options(2)),
        TWO,
        "ec2:DescribeInstances is denied",
        CheckResult("unknown", "NotAsked", "ec2:DescribeInstances is denied"),
    ),
    "EC2 does not know it": (HERE, None, TWO, "", CheckResult("gone", "InstanceNotFound")),
    "it ends": (
        HERE,
        ObservedInstance(Options(1), "shutting-down"),
        TWO,
        "",
        CheckResult("gone", "shutting-down"),
    ),
    "it has ended": (
        HERE,
        ObservedInstance(Options(1), "terminated"),
        TWO,
        "",
        CheckResult("gone", "terminated"),
    ),
    "no tags are told of it, and so not its group": (
        HERE,
        ObservedInstance(Options(1), tagged=False),
        TWO,
        "",
        CheckResult(
            "unknown",
            "TagsNotTold",
            "EC2 reports no tags of the instance, but instances of a cluster have tags",
        ),
    ),
    "it has ended, whatever its tags": (
        HERE,
        ObservedInstance(Options(1), "terminated", tagged=False),
        TWO,
        "",
        CheckResult("gone", "terminated"),
    ),
    "AWS manages it": (
        HERE,
        ObservedInstance(Options(1), managed=True),
        TWO,
        "",
        CheckResult("skipped", "ProviderManaged"),
    ),
}


@pytest.mark.parametrize(
    ("ref", "observed", "claims", "unasked", "expected"), CASES.values(), ids=CASES.keys()
)
def test_check(
    ref: InstanceRef,
    observed: ObservedInstance | None,
    claims: list[PolicyOptions],
    unasked: str,
    expected: CheckResult,
) -> None:
    assert check(CheckInput(ref, observed, merge(claims), "p", frozenset({HOP}), unasked)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("as it should be", True),
        ("too low", False),
        ("taken and not applied yet", False),
        ("it has ended", False),
        ("its region could not be asked", True),
        ("never called compliant by what was observed before", True),
        ("EC2 was asked for it and did not tell it", True),
        ("no tags are told of it, and so not its group", False),
    ],
)
def test_what_is_compliant_or_not_known_to_differ_fits(name: str, expected: bool) -> None:
    ref, observed, claims, unasked, _ = CASES[name]
    case = CheckInput(ref, observed, merge(claims), "p", frozenset({HOP}), unasked)
    assert fits(case, check(case)) is expected
