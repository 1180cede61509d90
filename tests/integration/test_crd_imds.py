"""Specs of IMDSPolicy that a real API server refuses: each with the field and the words that a user reads."""

from typing import Any

import pytest

from testbed.admin import Admin, ApiError, Json, path

HOP = {"options": {"httpPutResponseHopLimit": 2}}
GATED = {"options": {"httpTokens": "required"}, "tokenGate": {"days": 7}}


def labels(**expression: Any) -> Json:
    return {**HOP, "selector": {"nodeSelector": {"matchExpressions": [{"key": "a", **expression}]}}}


def aws(**fields: Any) -> Json:
    return {**HOP, "aws": fields}


REFUSED = {
    "an empty spec": ({}, "spec.options: Required value"),
    "no option": ({"options": {}}, "spec.options is empty: give at least one of httpPutResponseHopLimit"),
    "hop limit 0": ({"options": {"httpPutResponseHopLimit": 0}}, "greater than or equal to 1"),
    "hop limit 65": ({"options": {"httpPutResponseHopLimit": 65}}, "less than or equal to 64"),
    "a hop limit in words": ({"options": {"httpPutResponseHopLimit": "two"}}, "must be of type integer"),
    "tokens that do not exist": (
        {"options": {"httpTokens": "on"}},
        'supported values: "optional", "required"',
    ),
    "an endpoint switched to true": ({"options": {"httpEndpoint": True}}, "must be of type string"),
    "the endpoint off, and more": (
        {"options": {"httpEndpoint": "disabled", "httpTokens": "required"}},
        "httpEndpoint disabled stands alone",
    ),
    "an unknown option": ({"options": {"httpTokenz": "required"}}, 'unknown field "spec.options.httpTokenz"'),
    "an unknown mode": ({**HOP, "mode": "Repair"}, 'supported values: "Audit", "Enforce"'),
    "a hop limit that Enforce may not set": (
        {"options": {"httpPutResponseHopLimit": 4}, "mode": "Enforce"},
        "is more than spec.safety.maxHopLimit lets Enforce set: raise maxHopLimit, or lower the hop limit",
    ),
    "a gate before optional tokens": (
        {"options": {"httpTokens": "optional"}, "tokenGate": {}},
        "spec.tokenGate holds back that tokens are required: set spec.options.httpTokens to required",
    ),
    "a gate of no days": ({**GATED, "tokenGate": {"days": 0}}, "greater than or equal to 1"),
    "a gate of more days than data": ({**GATED, "tokenGate": {"days": 64}}, "less than or equal to 63"),
    "a gate beside a probe that asks without a token": (
        {**GATED, "verification": {"probe": True, "expect": "PodBlocked"}},
        "spec.verification.expect PodBlocked needs a probe that asks without a token",
    ),
    "an unknown loosening": (
        {**HOP, "safety": {"allowLoosening": ["Hops"]}},
        'supported values: "HopLimit", "Tokens", "Endpoint", "Tags", "IPv6"',
    ),
    "a loosening twice": ({**HOP, "safety": {"allowLoosening": ["IPv6", "IPv6"]}}, "Duplicate value"),
    "fewer canaries than none": (
        {**HOP, "safety": {"canary": {"instances": -1}}},
        "greater than or equal to 0",
    ),
    "a soak that is no duration": (
        {**HOP, "safety": {"canary": {"soak": "2 minutes"}}},
        "spec.safety.canary.soak",
    ),
    "no changes at all": ({**HOP, "safety": {"maxChangesPerMinute": 0}}, "greater than or equal to 1"),
    "more than all drift": ({**HOP, "safety": {"maxDriftPercent": 101}}, "less than or equal to 100"),
    "a breaker that is always open": (
        {**HOP, "safety": {"stopAfterConsecutiveFailures": 0}},
        "greater than or equal to 1",
    ),
    "an impatient pendingTimeout": (
        {**HOP, "pendingTimeout": "5s"},
        "must be a duration from 10s to 1h, such as 2m",
    ),
    "a negative priority": ({**HOP, "priority": -1}, "greater than or equal to 0"),
    "a priority beyond all": ({**HOP, "priority": 1000001}, "less than or equal to 1000000"),
    "a resync without end": (
        {**HOP, "resyncInterval": "0s"},
        "must be a duration from 1m to 24h, such as 15m",
    ),
    "a resync that is no duration": ({**HOP, "resyncInterval": "often"}, "from 1m to 24h, such as 15m"),
    "a resync in a wrong order": ({**HOP, "resyncInterval": "1m1h"}, "from 1m to 24h, such as 15m"),
    "an unknown kind of group": (
        {**HOP, "selector": {"groups": [{"kind": "Fleet", "names": ["a"]}]}},
        'supported values: "EKSManagedNodegroup"',
    ),
    "a group's ARN in place of its name": (
        {
            **HOP,
            "selector": {
                "groups": [
                    {
                        "kind": "EKSManagedNodegroup",
                        "names": ["arn:aws:eks:eu-west-1:1:nodegroup/prod/apps/a"],
                    }
                ]
            },
        },
        "must be the group's name, not its ARN",
    ),
    "a group without names": (
        {**HOP, "selector": {"groups": [{"kind": "KarpenterNodePool", "names": []}]}},
        "should have at least 1 items",
    ),
    "a group with an empty name": (
        {**HOP, "selector": {"groups": [{"kind": "KarpenterNodePool", "names": [""]}]}},
        "should be at least 1 chars long",
    ),
    "In without values": (labels(operator="In"), "values must be given with In and NotIn"),
    "Exists with values": (labels(operator="Exists", values=["b"]), "must not be with Exists"),
    "an operator that does not exist": (labels(operator="Gt", values=["1"]), 'supported values: "In"'),
    "a region by its name for people": (aws(region="Ireland"), "spec.aws.region"),
    "a user in place of a role": (aws(roleARN="arn:aws:iam::123456789012:user/a"), "spec.aws.roleARN"),
    "an external ID without a role": (aws(externalID="abc"), "set roleARN as well, or remove externalID"),
    "an endpoint of another service": (
        aws(endpointURLs={"sqs": "http://127.0.0.1:1"}),
        "keyed by service: ec2, sts, autoscaling or cloudwatch",
    ),
    "a Secret, which has no namespace here": (
        aws(credentialsSecretRef={"name": "keys"}),
        'unknown field "spec.aws.credentialsSecretRef"',
    ),
}
ACCEPTED = {
    "one option": HOP,
    "the endpoint off, alone": {"options": {"httpEndpoint": "disabled"}},
    "all options": {
        "options": {
            "httpPutResponseHopLimit": 64,
            "httpTokens": "required",
            "httpEndpoint": "enabled",
            "httpProtocolIpv6": "disabled",
            "instanceMetadataTags": "disabled",
        }
    },
    "every term": {
        **HOP,
        "selector": {
            "nodeSelector": {
                "matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "c", "operator": "Exists"}],
            },
            "groups": [{"kind": "AutoScalingGroup", "names": ["*"]}],
            "exclude": {"matchLabels": {"imds": "unmanaged"}},
        },
    },
}


async def submitted(admin: Admin, spec: Json) -> Json:
    """As kubectl create --dry-run=server --validate=strict."""
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "IMDSPolicy",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    return await admin.create(f"{path('imdspolicies')}?dryRun=All&fieldValidation=Strict", body)


@pytest.mark.parametrize(("spec", "words"), REFUSED.values(), ids=REFUSED.keys())
async def test_refused(spec: Json, words: str, admin: Admin) -> None:
    with pytest.raises(ApiError) as refused:
        await submitted(admin, spec)
    assert refused.value.status in (400, 422)
    assert words in str(refused.value)


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
async def test_accepted(spec: Json, admin: Admin) -> None:
    found = await submitted(admin, spec)
    assert (found["spec"]["mode"], found["spec"]["priority"], found["spec"]["resyncInterval"]) == (
        "Audit",
        100,
        "15m",
    )
    assert found["status"]["observedGeneration"] == -1
