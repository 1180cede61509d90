"""Which nodes a policy is about."""

import msgspec
import pytest

from caretaker.api.imds import Selector
from caretaker.imds.selection import selects

LABELS = {"team": "media", "arch": "arm64"}
GROUPS = (("EKSManagedNodegroup", "apps-a"), ("AutoScalingGroup", "eks-apps-a-1"))

CASES = {
    "no term means every node": ({}, True),
    "an empty node selector too": ({"nodeSelector": {}}, True),
    "an empty exclude excludes nothing": ({"exclude": {}}, True),
    "a label that fits": ({"nodeSelector": {"matchLabels": {"team": "media"}}}, True),
    "a label with another value": ({"nodeSelector": {"matchLabels": {"team": "core"}}}, False),
    "a label that is not there": ({"nodeSelector": {"matchLabels": {"zone": "a"}}}, False),
    "labels and expressions must both hold": (
        {
            "nodeSelector": {
                "matchLabels": {"team": "media"},
                "matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}],
            }
        },
        False,
    ),
    "In": (
        {"nodeSelector": {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["arm64", "x"]}]}},
        True,
    ),
    "In without the label": (
        {"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}},
        False,
    ),
    "NotIn": (
        {"nodeSelector": {"matchExpressions": [{"key": "arch", "operator": "NotIn", "values": ["arm64"]}]}},
        False,
    ),
    "NotIn with another value": (
        {"nodeSelector": {"matchExpressions": [{"key": "arch", "operator": "NotIn", "values": ["amd64"]}]}},
        True,
    ),
    "NotIn without the label": (
        {"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}},
        True,
    ),
    "Exists": ({"nodeSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}, True),
    "DoesNotExist": (
        {"nodeSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}},
        False,
    ),
    "excluded": ({"exclude": {"matchLabels": {"team": "media"}}}, False),
    "excluded by another value": ({"exclude": {"matchLabels": {"team": "core"}}}, True),
    "a group by pattern": ({"groups": [{"kind": "EKSManagedNodegroup", "names": ["other", "apps-*"]}]}, True),
    "a pattern that does not fit": ({"groups": [{"kind": "EKSManagedNodegroup", "names": ["apps"]}]}, False),
    "names count within their kind": ({"groups": [{"kind": "AutoScalingGroup", "names": ["apps-*"]}]}, False),
    "one group of several is enough": (
        {
            "groups": [
                {"kind": "KarpenterNodePool", "names": ["*"]},
                {"kind": "AutoScalingGroup", "names": ["eks-*"]},
            ]
        },
        True,
    ),
    "group and labels must both hold": (
        {
            "nodeSelector": {"matchLabels": {"team": "core"}},
            "groups": [{"kind": "EKSManagedNodegroup", "names": ["*"]}],
        },
        False,
    ),
}


@pytest.mark.parametrize(("spec", "expected"), CASES.values(), ids=CASES.keys())
def test_selects(spec: dict[str, object], expected: bool) -> None:
    selector = msgspec.convert(spec, Selector)
    assert selects(selector, LABELS, GROUPS) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("workers[ab]", "workers[ab]", True),
        ("workers[ab]", "workersa", False),
        ("prod-[!x]", "prod-z", False),
        ("prod-[!x", "prod-[!x", True),
        ("*[?]", "workers[1]", True),
        ("*[?]", "workers?", False),
        ("]*", "]", True),
        ("\\*", "\\apps", True),
    ],
)
def test_only_asterisk_and_question_mark_are_wildcards(pattern: str, name: str, expected: bool) -> None:
    selector = msgspec.convert({"groups": [{"kind": "AutoScalingGroup", "names": [pattern]}]}, Selector)
    assert selects(selector, {}, [("AutoScalingGroup", name)]) is expected
