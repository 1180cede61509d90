"""What launches the successors of a node; what a launch template or group says as the API tells it."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from caretaker.api.imds import Options, Selector
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.enforce_input import EnforceInput, recorded
from caretaker.imds.instance_ref import InstanceRef, policy_inputs, readiness
from caretaker.imds.launching import ScalingGroup, TemplateRef, scaling_group, template_of
from caretaker.imds.merge import PolicyOptions, merge
from caretaker.imds.node_sources import LaunchSource, NodeSource, NodeSources, launch_source_of
from caretaker.imds.remediation import bounded
from caretaker.imds.selection import names
from unit.imds.enforcing import canaries, canary, changed, watched
from unit.imds.test_instance_ref import EC2
from unit.imds.test_plan import node

HERE = "eu-west-1"
POOL, APPS, SPOT = (
    ("KarpenterNodePool", "pool"),
    ("EKSManagedNodegroup", "apps"),
    ("AutoScalingGroup", "spot"),
)
SEEN = ObservedInstance(Options(), group="spot", template="lt-9", version="4", cluster="prod")
MINE = {"template": "lt-1", "version": "7", "image": "ami-1"}


@pytest.mark.parametrize(
    ("groups", "ref", "observed", "launch"),
    [
        ((POOL, SPOT), {"node_class": "c"}, SEEN, LaunchSource("EC2NodeClass", "c", HERE)),
        ((POOL, SPOT), {}, SEEN, LaunchSource("Karpenter", "pool", "")),
        ((APPS, SPOT), MINE, SEEN, LaunchSource("EKSTemplate", "apps", HERE, "lt-1", "7", "prod", "ami-1")),
        ((APPS,), MINE, None, LaunchSource("EKSTemplate", "apps", HERE, "lt-1", "7", "", "ami-1")),
        ((APPS,), {"template": "lt-1"}, None, LaunchSource("EKSTemplate", "apps", HERE, "lt-1", "$Default")),
        ((APPS, SPOT), {}, SEEN, LaunchSource("EKS", "apps", HERE, "lt-9", "4", "prod")),
        ((APPS,), {}, None, LaunchSource("EKS", "apps", HERE)),
        ((SPOT,), {}, SEEN, LaunchSource("AutoScalingGroup", "spot", HERE)),
        ((), {}, SEEN, None),
    ],
)
def test_launch_source(
    groups: Any, ref: dict[str, str], observed: ObservedInstance | None, launch: LaunchSource | None
) -> None:
    assert launch_source_of(groups, InstanceRef("i-1", HERE, **ref), observed) == launch  # type: ignore[arg-type]


def test_nodes_that_are_alike_are_one_heir_and_all_others_are_not() -> None:
    fields, other = (merge([PolicyOptions("p", 1, Options(hops))]) for hops in (2, 3))
    ref = {**MINE, "node_class": ""}
    node_sources = NodeSources()
    for _ in range(2):
        node_sources.add((APPS,), InstanceRef("i-1", HERE, **ref), SEEN, fields)  # type: ignore[arg-type]
    node_sources.add(
        (APPS,), InstanceRef("i-2", HERE, **ref), ObservedInstance(Options(), managed=True), fields
    )  # type: ignore[arg-type]
    node_sources.add((), InstanceRef("i-2", HERE), SEEN, fields)
    made = LaunchSource("EKSTemplate", "apps", HERE, "lt-1", "7", "prod", "ami-1")
    assert list(node_sources) == [NodeSource((APPS,), made, fields)]
    node_sources.add((APPS,), InstanceRef("i-3", HERE, **ref), SEEN, other)  # type: ignore[arg-type]
    for more in ({"template": "x"}, {"version": "x"}, {"image": "x"}, {"node_class": "x"}):
        node_sources.add((APPS,), InstanceRef("i-4", HERE, **{**ref, **more}), SEEN, fields)  # type: ignore[arg-type]
    node_sources.add((APPS,), InstanceRef("i-5", "us-east-1", **ref), SEEN, fields)  # type: ignore[arg-type]
    node_sources.add((APPS,), InstanceRef("i-6", HERE, **ref), None, fields)  # type: ignore[arg-type]
    for named in ({"group": "x"}, {"template": "x"}, {"version": "x"}, {"cluster": "x"}):
        node_sources.add(
            (APPS,), InstanceRef("i-7", HERE, **ref), ObservedInstance(Options(), **named), fields
        )  # type: ignore[arg-type]
    assert len(list(node_sources)) == 12


def test_a_group_as_the_api_tells_it() -> None:
    named: Any = {"AutoScalingGroupName": "g", "LaunchTemplate": {"LaunchTemplateId": "lt-1", "Version": "3"}}
    assert scaling_group(named) == ScalingGroup("g", (TemplateRef("lt-1", "3"),))
    tags: Any = [{"Key": "a", "Value": "b"}, {"Key": "aws:cloudformation:stack-name", "Value": "net"}, {}]
    assert scaling_group({**named, "Tags": tags}) == ScalingGroup(
        "g", (TemplateRef("lt-1", "3"),), stack="net"
    )
    empty: Any = [{"Key": "aws:cloudformation:stack-name"}]
    assert scaling_group({**named, "Tags": empty}).stack == ""
    mixed: Any = {"AutoScalingGroupName": "g", "MixedInstancesPolicy": {}}
    assert scaling_group(mixed) == ScalingGroup("g", mixed=True)
    spec = {"LaunchTemplateName": "a"}
    policy: Any = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": spec,
            "Overrides": [
                {},
                {"LaunchTemplateSpecification": spec},
                {"LaunchTemplateSpecification": {"Version": "2"}},
            ],
        }
    }
    assert scaling_group({**mixed, "MixedInstancesPolicy": policy}) == ScalingGroup(
        "g", (TemplateRef("a", "$Default"),), mixed=True
    )


def test_versions_as_the_api_tells_them() -> None:
    def version(number: int, **data: Any) -> Any:
        return {"LaunchTemplateId": "lt-1", "VersionNumber": number, "LaunchTemplateData": data}

    bare: Any = {"LaunchTemplateId": "lt-1", "VersionNumber": 3}
    block = {"State": "applied", "HttpTokens": "required"}
    made = template_of(
        [
            version(1, ImageId="ami-1", UserData="x", MetadataOptions=block),
            version(2, UserData="x", ImageId="ami-1"),
            bare,
        ],
        "net",
    )
    assert made is not None
    assert (made.id, made.latest, made.default, made.stack) == ("lt-1", 3, 0, "net")
    one, two, three = (made.versions[number] for number in (1, 2, 3))
    assert (one.number, one.block, one.image) == (1, {"HttpTokens": "required"}, "ami-1")
    assert (three.block, three.image, three.options) == ({}, "", Options())
    assert one.rest == two.rest != three.rest
    assert [made.version(name) for name in ("1", "x", "")] == [one, None, None]


def test_versions_that_differ_in_a_time_differ() -> None:
    def rest(day: int) -> str:
        spot = {"SpotOptions": {"ValidUntil": datetime(2026, 1, day, tzinfo=UTC)}}
        data = {"InstanceMarketOptions": spot}
        found: Any = [{"LaunchTemplateId": "lt-1", "VersionNumber": 1, "LaunchTemplateData": data}]
        made = template_of(found)
        assert made is not None
        return made.versions[1].rest

    assert rest(1) == rest(1) != rest(2)


def test_fix_commands_are_kept_while_there_is_room() -> None:
    commands = ["xx", "", "xxxx", "xxx", "xx", "x"]
    assert bounded(commands, 3, 6) == ["xx", "", "", "xxx", "", "x"]
    assert bounded(commands, 4, 100) == commands


def test_labels_that_a_selector_reads() -> None:
    wanted = {
        "nodeSelector": {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        "exclude": {"matchLabels": {"c": "1"}, "matchExpressions": [{"key": "d", "operator": "Exists"}]},
    }
    assert list(names(msgspec.convert(wanted, Selector))) == ["a", "b", "c", "d"]
    assert list(names(Selector())) == []


def test_what_of_a_node_starts_a_pass() -> None:
    one = node(1, {"a": "b"}, provider=EC2)
    assert (readiness(None), policy_inputs(None)) == (None, None)
    assert readiness(one) == ("u1", one.ready, one.ready_since)
    assert policy_inputs(one) == ("u1", EC2, {"a": "b"})


@pytest.mark.parametrize(
    ("at", "seconds", "fresh"),
    [(995.0, None, True), (994.9, None, False), (940.0, 60.0, True), (939.9, 60.0, False)],
)
def test_a_reading_is_fresh_for_some_seconds(at: float, seconds: float | None, fresh: bool) -> None:
    inputs = EnforceInput("p", 1, 0.0, 0.0, fresh_since=995.0)
    observed = ObservedInstance(Options(), at=at)
    assert (inputs.fresh(observed) if seconds is None else inputs.fresh(observed, seconds)) is fresh


def test_instances_that_were_sent_a_change_are_those_of_canaries_and_the_watched() -> None:
    made = recorded(canaries(canary("Soaking", 1, 2)), watched(changed(3)))
    assert made == {"i-1", "i-2", "i-3"}
    assert recorded(None, ()) == set()
