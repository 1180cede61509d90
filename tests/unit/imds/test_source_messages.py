"""Whole messages about sources of future nodes. States and fix commands: test_source_checks.py."""

from typing import Any

import pytest

from caretaker.api.imds import Options, SourceStatus
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.launching import LaunchSnapshot, ScalingGroup, Template, TemplateRef, Version
from caretaker.imds.merge import PolicyOptions, merge
from caretaker.imds.node_sources import NodeSources
from caretaker.imds.source_checks import MAX_MESSAGE, Findings, audit
from unit.imds.test_source_checks import (
    APPS,
    BAD,
    GOOD,
    HERE,
    ME,
    OWN,
    POOL,
    SPOT,
    STATES,
    found,
    known,
    template,
)

HOP = "httpPutResponseHopLimit is 1, should be 2"
TOKENS = "httpTokens is not set, should be required"
NOTHING = f"httpPutResponseHopLimit is not set, should be 2, {TOKENS}"
FOLLOW = "all that follow $Default follow the change"
EKS = (
    "EKS made this launch template by itself, and it must not be edited: make a node group with a launch "
    "template of your own"
)
REPLACES = "EKS then replaces all nodes of the node group"
KARPENTER = "Karpenter then replaces all nodes of the class"
NOT_SEEN = "the launch template could not be looked at"
NO_MORE = "is not there any more: nothing can be launched"

# State -> (launch template, version), what is told.
MESSAGES: dict[str, tuple[tuple[str, str], str]] = {
    "$Latest, as it should be": (("lt-1", "$Latest"), ""),
    "$Latest, another value: a new version is all": (("lt-1", "$Latest"), HOP),
    "$Default, not set: a new version, and the default is that": (
        ("lt-1", "$Default"),
        f"{TOKENS}; {FOLLOW}",
    ),
    "by number: a new version, and the group refers to it": (("lt-1", "1"), HOP),
    "nothing is set at all": (("lt-1", "$Latest"), NOTHING),
    "a template of CloudFormation's": (
        ("lt-1", "$Latest"),
        f"{HOP}; it belongs to CloudFormation stack net: change that",
    ),
    "a group of CloudFormation's that would have to refer to another version": (
        ("lt-1", "1"),
        f"{HOP}; the Auto Scaling group belongs to CloudFormation stack net",
    ),
    "a launch configuration": (
        ("", ""),
        "the Auto Scaling group has a launch configuration, which cannot be changed: give it a launch "
        "template",
    ),
    "a group that is gone": (("", ""), "the Auto Scaling group is not there any more"),
    "a group that could not be looked at": (("", ""), "the Auto Scaling group could not be looked at"),
    "a template that is gone": (("lt-1", "1"), f"the launch template {NO_MORE}"),
    "a version that is gone": (("lt-1", "7"), f"version 7 of it {NO_MORE}"),
    "a template that could not be looked at": (("lt-1", "1"), NOT_SEEN),
    "EKS' own template": (("lt-1", "1"), f"{HOP}; {EKS}"),
    "EKS' own template that is as it should be": (("lt-1", "1"), ""),
    "EKS' own template, that could not be looked at": (("lt-1", "1"), NOT_SEEN),
    "EKS' own template, of which no tag tells": (("", ""), EKS),
    "a node group with a template of the user's": (("lt-1", "1"), f"{HOP}; {REPLACES}"),
    "an EC2NodeClass as it should be": (("", ""), ""),
    "an EC2NodeClass with another value": (("", ""), f"{HOP}; {KARPENTER}"),
    "an EC2NodeClass that says nothing": (("", ""), f"{NOTHING}; {KARPENTER}"),
    "an EC2NodeClass that is not in the cluster": (
        ("", ""),
        "there is no EC2NodeClass default in this cluster",
    ),
    "EC2NodeClasses that could not be listed": (("", ""), "EC2NodeClasses could not be listed"),
    "a node pool of which no label tells the class": (
        ("", ""),
        "no label names the EC2NodeClass of node pool pool",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_known_of_a_source_is_told(name: str) -> None:
    launching, group, node, state, command = STATES[name]
    (launch_template, version), message = MESSAGES[name]
    source = found(launching, group, **node).groups[group]
    assert source == SourceStatus(
        state,  # type: ignore[arg-type]
        launch_template,
        version,
        node_class=node.get("node_class", ""),
        auto_scaling_group="spot" if group is SPOT else "",
        message=message,
        mend=command,
    )


def of(
    *nodes: tuple[Any, InstanceRef, Any], launching: LaunchSnapshot, others: tuple[Any, ...] = ()
) -> Findings:
    """`nodes`: group, InstanceRef and wanted options."""
    mine, rest = NodeSources(), NodeSources()
    for node_sources, some in ((mine, nodes), (rest, others)):
        for group, ref, wanted in some:
            node_sources.add((group,), ref, ObservedInstance(Options(), cluster="prod"), wanted)
    return audit(mine, lambda: rest, launching, "me", OWN)


def claim(*options: Any, name: str = "you") -> Any:
    return merge([PolicyOptions(name, 100, Options(*options))])


SPOT_HERE, WEB = InstanceRef("i-1", HERE), ("AutoScalingGroup", "web")
CONTESTED = (
    "other nodes from this source need another httpPutResponseHopLimit: give this group its own source"
)


def test_why_there_is_no_command_for_a_template_whose_nodes_should_differ_is_told() -> None:
    groups = {
        (HERE, name): ScalingGroup(name, (TemplateRef("lt-1", "$Default"),)) for name in ("spot", "web")
    }
    launching = LaunchSnapshot(groups, {(HERE, "lt-1"): template(BAD)})
    other = (WEB, SPOT_HERE, claim(3))
    source = of((SPOT, SPOT_HERE, ME), launching=launching, others=(other,)).groups[SPOT]
    assert (source.message, source.mend) == (f"{HOP}; {FOLLOW}; {CONTESTED}", "")


def test_all_options_that_nodes_of_a_source_should_have_differently_are_told() -> None:
    ref = InstanceRef("i-1", HERE, node_class="default")
    other = (("KarpenterNodePool", "other"), ref, claim(3, "optional"))
    launching = known(classes={"default": Options(1)})
    source = of((POOL, ref, ME), launching=launching, others=(other,)).groups[POOL]
    assert source.message == (
        f"{HOP}, {TOKENS}; other nodes from this source need another httpPutResponseHopLimit, httpTokens: "
        "give this group its own source"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((3,), f"{HOP}; {CONTESTED}"),
        ((2,), f"{HOP}; {KARPENTER}"),
    ],
)
def test_an_ec2_node_class_whose_nodes_should_differ_has_no_command(options: Any, message: str) -> None:
    ref = InstanceRef("i-1", HERE, node_class="default")
    launching = known(classes={"default": Options(1, "required")})
    other = (("KarpenterNodePool", "other"), ref, claim(*options))
    source = of((POOL, ref, ME), launching=launching, others=(other,)).groups[POOL]
    assert (source.message, bool(source.mend)) == (message, KARPENTER in message)


def test_what_an_ec2_node_class_cannot_set_is_told_and_the_rest_is_patched() -> None:
    ref = InstanceRef("i-1", HERE, node_class="default")
    tags = claim(2, None, None, None, "enabled", name="me")
    node_sources = NodeSources()
    node_sources.add((POOL,), ref, None, tags)
    own = frozenset(("httpPutResponseHopLimit", "instanceMetadataTags"))
    cannot = (
        "instanceMetadataTags is not set, should be enabled; an EC2NodeClass cannot set instanceMetadataTags"
    )
    both = audit(node_sources, tuple, known(classes={"default": Options(1)}), "me", own).groups[POOL]
    assert (both.state, both.node_class) == ("Drifted", "default")
    assert both.message == f"{HOP}, {cannot}; {KARPENTER}"
    assert both.mend.endswith("""-p '{"spec":{"metadataOptions":{"httpPutResponseHopLimit":2}}}'""")
    alone = audit(node_sources, tuple, known(classes={"default": Options(2)}), "me", own).groups[POOL]
    assert alone == SourceStatus("Unset", node_class="default", message=cannot)


def test_why_no_version_is_made_that_others_would_come_from_is_told() -> None:
    made = Template("lt-1", {1: Version(1, BAD, "old"), 2: Version(2, GOOD, "new")}, 2, 1, "")
    groups = {
        (HERE, "spot"): ScalingGroup("spot", (TemplateRef("lt-1", "1"),)),
        (HERE, "web"): ScalingGroup("web", (TemplateRef("lt-1", "$Latest"),)),
    }
    launching = LaunchSnapshot(groups, {(HERE, "lt-1"): made})
    other = (WEB, SPOT_HERE, ME)
    source = of((SPOT, SPOT_HERE, ME), launching=launching, others=(other,)).groups[SPOT]
    assert source.message == (
        f"{HOP}; a new version would become $Latest, which other nodes follow and which should differ: give "
        "this group a source of its own"
    )


def test_why_there_is_no_command_while_a_node_group_is_being_updated_is_told() -> None:
    refs = [InstanceRef("i-1", HERE, template="lt-1", version="1", image=f"ami-{n}") for n in range(5)]
    source = of(*((APPS, one, ME) for one in refs), launching=known(template(BAD))).groups[APPS]
    assert source.message == (
        f"{HOP}; its nodes come from version 1 ami-0 and version 1 ami-1 and version 1 ami-2: an update of "
        "the node group is running or has failed; there is no command until it is complete; and 4 more "
        "source(s) of the group"
    )


def test_versions_without_an_image_are_told_by_their_numbers() -> None:
    refs = [InstanceRef("i-1", HERE, template="lt-1", version=version) for version in ("1", "2")]
    source = of(*((APPS, one, ME) for one in refs), launching=known(template(BAD, BAD))).groups[APPS]
    assert f"{HOP}; its nodes come from version 1 and version 2: an update" in source.message


def test_a_message_is_bounded() -> None:
    long = "x" * 2 * MAX_MESSAGE
    ref = InstanceRef("i-1", HERE, node_class=long)
    source = of((POOL, ref, ME), launching=known(classes={})).groups[POOL]
    assert source.message == f"there is no EC2NodeClass {long}"[:MAX_MESSAGE]
    both = of(
        *((POOL, one, ME) for one in (ref, InstanceRef("i-1", HERE, node_class="a" + long))),
        launching=known(classes={}),
    ).groups[POOL]
    told = f"there is no EC2NodeClass a{long}"[: MAX_MESSAGE - 64]
    assert both.message == f"{told}; and 1 more source(s) of the group"


def test_a_source_that_is_as_it_should_be_is_not_counted_among_the_others() -> None:
    refs = [InstanceRef("i-1", HERE, node_class=name) for name in ("good", "better", "bad")]
    good = Options(2, "required")
    classes = {"good": good, "better": good, "bad": Options(1, "required")}
    source = of(*((POOL, one, ME) for one in refs), launching=known(classes=classes)).groups[POOL]
    assert source.message == f"{HOP}; {KARPENTER}"
