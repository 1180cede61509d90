"""What a policy finds of the sources of future nodes, for every kind of reference and every state."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import MAX_COMMAND, GroupStatus, Options, SourceStatus
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.launching import (
    Account,
    LaunchSnapshot,
    ScalingGroup,
    Template,
    TemplateRef,
    Version,
    scaling_group,
    template_of,
)
from caretaker.imds.merge import PolicyOptions, merge
from caretaker.imds.node_sources import NodeSources
from caretaker.imds.source_checks import Findings, audit

HERE = "eu-west-1"
GOOD = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}
BAD = {"HttpPutResponseHopLimit": 1, "HttpTokens": "required"}
UNSET: dict[str, Any] = {"HttpPutResponseHopLimit": 2}
OTHER = {"HttpTokens": "optional"}
WANTED = Options(2, "required")
OWN = frozenset(("httpPutResponseHopLimit", "httpTokens"))
ME = merge([PolicyOptions("me", 100, WANTED)])
SPOT = ("AutoScalingGroup", "spot")
APPS = ("EKSManagedNodegroup", "apps")
POOL = ("KarpenterNodePool", "pool")


def template(*blocks: dict[str, Any], default: int = 1, stack: str | None = "", name: str = "lt-1") -> Any:
    versions = {number: Version(number, block, "same") for number, block in enumerate(blocks, start=1)}
    return Template(name, versions, len(blocks), default, stack)


def known(*templates: Any, group: ScalingGroup | None = None, **more: Any) -> LaunchSnapshot:
    defaults = more.pop("defaults", {HERE: Options()})
    return LaunchSnapshot(
        {} if group is None else {(HERE, group.name): group},
        {(HERE, one.id): one for one in templates},
        **{"accounts": {region: Account(one, enforces=False) for region, one in defaults.items()}, **more},
    )


def of_group(version: str, stack: str = "") -> ScalingGroup:
    return ScalingGroup("spot", (TemplateRef("lt-1", version),), stack=stack)


def found(
    known: LaunchSnapshot,
    group: tuple[str, str] = SPOT,
    *,
    observed: ObservedInstance | None = None,
    **ref: str,
) -> Findings:
    node_sources = NodeSources()
    node_sources.add((group,), InstanceRef("i-1", HERE, **ref), observed or ObservedInstance(Options()), ME)  # type: ignore[arg-type]
    return audit(node_sources, tuple, known, "me", OWN)


EKS = {"observed": ObservedInstance(Options(), template="lt-1", version="1", cluster="prod")}
MINE = {"template": "lt-1", "version": "1", "observed": ObservedInstance(Options(), cluster="prod")}
CLASS = {"node_class": "default"}
CREATE = (
    "aws ec2 create-launch-template-version --region eu-west-1 --launch-template-id lt-1 --source-version "
)
DATA = (
    """ --launch-template-data '{"MetadataOptions":{"HttpPutResponseHopLimit":2,"HttpTokens":"required"}}'"""
)
NUMBER = " --query LaunchTemplateVersion.VersionNumber --output text"

IN = "--region eu-west-1"


def unless(test: str, why: str) -> str:
    told = f"{{ echo 'nothing is changed: {why}; run caretaker plan again' >&2; false; }}; }} && "
    return f"{{ {test} || {told}"


def same(latest: int, default: int) -> str:
    """Goes on only if the template is as it was."""
    numbers = f"LatestVersionNumber==`{latest}` && DefaultVersionNumber==`{default}`"
    query = f"'LaunchTemplates[?{numbers}].LaunchTemplateId'"
    asked = "aws ec2 describe-launch-templates --region eu-west-1 --launch-template-ids lt-1 --query"
    return unless(f'[ -n "$({asked} {query} --output text)" ]', "lt-1 has new versions or another default")


def refers(version: str) -> str:
    """Goes on only if the group refers to this version."""
    asked = f"aws autoscaling describe-auto-scaling-groups {IN} --auto-scaling-group-names spot"
    which = f'LaunchTemplateId==`"lt-1"` && (Version || `"$Default"`)==`"{version}"`'
    query = f"'AutoScalingGroups[?[LaunchTemplate][?{which}]].AutoScalingGroupName'"
    observed = f'[ -n "$({asked} --query {query} --output text)" ]'
    return unless(observed, "the Auto Scaling group refers to something else")


def at_rest(*groups: str) -> str:
    """Goes on only if no instance refresh runs."""
    asked = f'aws autoscaling describe-instance-refreshes {IN} --auto-scaling-group-name "$g" --query '
    ended = '`["Successful","Failed","Cancelled","RollbackFailed","RollbackSuccessful"]`'
    count = f"{asked}'length(InstanceRefreshes[?!contains({ended}, Status)])' --output text"
    test = f'(for g in {" ".join(groups)}; do [ "$({count})" = 0 ] || exit 1; done)'
    return unless(test, "an instance refresh runs")


REST = at_rest("spot")
ACTIVE = (
    f"r=$(aws eks describe-nodegroup {IN} --cluster-name prod --nodegroup-name apps --query "
    """'[nodegroup][?status==`"ACTIVE"` && launchTemplate.version==`"1"`]"""
    """.join(`" "`, [version, releaseVersion])' --output text) && """
) + unless('[ -n "$r" ]', "the node group is being updated, or is not of version 1")
RELEASE = ' --kubernetes-version "${r% *}" --release-version "${r#* }"'
GROUP = "aws autoscaling update-auto-scaling-group --region eu-west-1 --auto-scaling-group-name spot"
NODEGROUP = (
    "aws eks update-nodegroup-version --region eu-west-1 --cluster-name prod --nodegroup-name apps "
    "--launch-template "
)

STATES: dict[str, tuple[LaunchSnapshot, tuple[str, str], dict[str, Any], str, str]] = {
    "$Latest, as it should be": (
        known(template(BAD, GOOD), group=of_group("$Latest")),
        SPOT,
        {},
        "Compliant",
        "",
    ),
    "$Latest, another value: a new version is all": (
        known(template(GOOD, BAD), group=of_group("$Latest")),
        SPOT,
        {},
        "Drifted",
        f"{REST}{same(2, 1)}{CREATE}2{DATA}",
    ),
    "$Default, as it should be though the latest is not": (
        known(template(GOOD, BAD), group=of_group("$Default")),
        SPOT,
        {},
        "Compliant",
        "",
    ),
    "$Default, not set: a new version, and the default is that": (
        known(template(GOOD, UNSET, default=2), group=of_group("$Default")),
        SPOT,
        {},
        "Unset",
        f"{REST}{same(2, 2)}v1=$({CREATE}2{DATA}{NUMBER}) && aws ec2 modify-launch-template "
        f'{IN} --launch-template-id lt-1 --default-version "$v1"',
    ),
    "$Default, and somebody has made the version already": (
        known(template(BAD, GOOD), group=of_group("$Default")),
        SPOT,
        {},
        "Drifted",
        f"{REST}{same(2, 1)}aws ec2 modify-launch-template {IN} --launch-template-id lt-1 "
        '--default-version "2"',
    ),
    "by number: a new version, and the group refers to it": (
        known(template(BAD, OTHER), group=of_group("1")),
        SPOT,
        {},
        "Drifted",
        f"{refers('1')}{REST}{same(2, 1)}v1=$({CREATE}1{DATA}{NUMBER}) && {GROUP} --launch-template "
        '"LaunchTemplateId=lt-1,Version=$v1"',
    ),
    "nothing is set at all": (
        known(template({}), group=of_group("$Latest")),
        SPOT,
        {},
        "Unset",
        f"{REST}{same(1, 1)}{CREATE}1{DATA}",
    ),
    "a template of CloudFormation's": (
        known(template(BAD, stack="net"), group=of_group("$Latest")),
        SPOT,
        {},
        "IaCOwned",
        "",
    ),
    "a template of CloudFormation's that is as it should be": (
        known(template(GOOD, stack="net"), group=of_group("$Latest")),
        SPOT,
        {},
        "Compliant",
        "",
    ),
    "a group of CloudFormation's that would have to refer to another version": (
        known(template(BAD), group=of_group("1", stack="net")),
        SPOT,
        {},
        "IaCOwned",
        "",
    ),
    "a group of CloudFormation's that follows $Latest": (
        known(template(BAD), group=of_group("$Latest", stack="net")),
        SPOT,
        {},
        "Drifted",
        f"{REST}{same(1, 1)}{CREATE}1{DATA}",
    ),
    "a launch configuration": (known(group=ScalingGroup("spot")), SPOT, {}, "Unsupported", ""),
    "a group that is gone": (LaunchSnapshot({(HERE, "spot"): None}), SPOT, {}, "Unsupported", ""),
    "a group that could not be looked at": (LaunchSnapshot(), SPOT, {}, "Unknown", ""),
    "a template that is gone": (
        LaunchSnapshot({(HERE, "spot"): of_group("1")}, {(HERE, "lt-1"): None}),
        SPOT,
        {},
        "Unsupported",
        "",
    ),
    "a version that is gone": (known(template(GOOD), group=of_group("7")), SPOT, {}, "Unsupported", ""),
    "a template that could not be looked at": (known(group=of_group("1")), SPOT, {}, "Unknown", ""),
    "EKS' own template": (known(template(BAD)), APPS, EKS, "EKSOwned", ""),
    "EKS' own template that is as it should be": (known(template(GOOD)), APPS, EKS, "Compliant", ""),
    "EKS' own template, that could not be looked at": (known(), APPS, EKS, "Unknown", ""),
    "EKS' own template, of which no tag tells": (known(), APPS, {}, "EKSOwned", ""),
    "a node group with a template of the user's, as it should be": (
        known(template(GOOD)),
        APPS,
        MINE,
        "Compliant",
        "",
    ),
    "a node group with a template of the user's": (
        known(template(BAD, OTHER)),
        APPS,
        MINE,
        "Drifted",
        f'{ACTIVE}{same(2, 1)}v1=$({CREATE}1{DATA}{NUMBER}) && {NODEGROUP}"id=lt-1,version=$v1"{RELEASE}',
    ),
    "a node group whose template has the version already": (
        known(template(BAD, GOOD)),
        APPS,
        MINE,
        "Drifted",
        f'{ACTIVE}{NODEGROUP}"id=lt-1,version=2"{RELEASE}',
    ),
    "an EC2NodeClass as it should be": (
        known(classes={"default": Options(2, "required")}),
        POOL,
        CLASS,
        "Compliant",
        "",
    ),
    "an EC2NodeClass with another value": (
        known(classes={"default": Options(1, "required")}),
        POOL,
        CLASS,
        "Drifted",
        "kubectl patch ec2nodeclass default --type merge -p "
        """'{"spec":{"metadataOptions":{"httpPutResponseHopLimit":2,"httpTokens":"required"}}}'""",
    ),
    "an EC2NodeClass that says nothing": (
        known(classes={"default": Options()}),
        POOL,
        CLASS,
        "Unset",
        "kubectl patch ec2nodeclass default --type merge -p "
        """'{"spec":{"metadataOptions":{"httpPutResponseHopLimit":2,"httpTokens":"required"}}}'""",
    ),
    "an EC2NodeClass that is not in the cluster": (known(classes={}), POOL, CLASS, "Ephemeral", ""),
    "EC2NodeClasses that could not be listed": (known(), POOL, CLASS, "Unknown", ""),
    "a node pool of which no label tells the class": (known(), POOL, {}, "Ephemeral", ""),
}


@pytest.mark.parametrize(("known", "group", "node", "state", "command"), STATES.values(), ids=STATES.keys())
def test_state_and_command(
    known: LaunchSnapshot, group: tuple[str, str], node: Any, state: str, command: str
) -> None:
    observed = {"observed": ObservedInstance(Options(), group="spot")} if group is SPOT else {}
    made = found(known, group, **{**observed, **node})
    source = made.groups[group]
    assert (source.state, source.mend) == (state, command)
    assert bool(source.message) == (state != "Compliant")
    counts = (0, 0) if state not in ("Drifted", "Unset") else (0, 1) if group is POOL else (1, 0)
    assert (made.launch_templates, made.node_classes) == counts


DEFAULTS = {HERE: Options(http_tokens="required", instance_metadata_tags="enabled")}


def test_an_option_that_is_not_set_is_that_of_the_account() -> None:
    made = found(known(template(UNSET), group=of_group("$Latest"), defaults=DEFAULTS))
    source = made.groups[SPOT]
    assert (source.state, source.mend) == ("Compliant", "")
    assert source.message == "not set, the account's default: httpTokens required"
    assert (made.launch_templates, made.wrong) == (0, ())


@pytest.mark.parametrize(
    ("block", "defaults", "state", "message"),
    [
        pytest.param(
            UNSET,
            {HERE: Options(http_tokens="optional")},
            "Unset",
            "httpTokens is not set (the account's default is optional), should be required",
            id="another default",
        ),
        pytest.param(
            {},
            DEFAULTS,
            "Unset",
            "httpPutResponseHopLimit is not set, should be 2",
            id="one of two is the default",
        ),
        pytest.param(
            {"HttpPutResponseHopLimit": 1},
            DEFAULTS,
            "Drifted",
            "httpPutResponseHopLimit is 1, should be 2",
            id="the template's own value wins",
        ),
        pytest.param(
            {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional"},
            DEFAULTS,
            "Drifted",
            "httpTokens is optional, should be required",
            id="the template's own value wins over a default that is right",
        ),
        pytest.param(
            UNSET,
            {HERE: Options(), "us-east-1": DEFAULTS[HERE]},
            "Unset",
            "httpTokens is not set, should be required",
            id="defaults of another region",
        ),
    ],
)
def test_other_defaults_of_the_account_are_named(block: Any, defaults: Any, state: str, message: str) -> None:
    source = found(known(template(block), group=of_group("$Latest"), defaults=defaults)).groups[SPOT]
    assert (source.state, source.message) == (state, message)
    assert DATA in source.mend, "the new version does not rely on the account"


def test_all_that_comes_of_the_account_is_named() -> None:
    """Of each option, and of each template of a mixed instances policy."""
    both = {HERE: Options(2, "required")}
    made = template({"HttpEndpoint": "enabled"}, GOOD)
    for refs in (("1",), ("1", "2"), ("2", "1")):
        group = ScalingGroup("spot", tuple(TemplateRef("lt-1", ref) for ref in refs), mixed=True)
        source = found(known(made, group=group, defaults=both)).groups[SPOT]
        assert source.state == "Compliant"
        assert source.message == (
            "not set, the account's default: httpPutResponseHopLimit 2, httpTokens required"
        )


@pytest.mark.parametrize(
    ("block", "state"),
    [
        pytest.param(UNSET, "Unknown", id="what differs may be a default"),
        pytest.param({"HttpPutResponseHopLimit": 1}, "Drifted", id="something else differs, too"),
        pytest.param(GOOD, "Compliant", id="all is set"),
    ],
)
def test_where_the_defaults_could_not_be_read_only_what_they_may_decide_is_unknown(
    block: Any, state: str
) -> None:
    source = found(known(template(block), group=of_group("$Latest"), defaults={})).groups[SPOT]
    assert source.state == state
    assert ("could not be read" in source.message, bool(source.mend)) == (
        state == "Unknown",
        state == "Drifted",
    )


def test_ipv6_has_no_default_of_the_account() -> None:
    want = Options(http_protocol_ipv6="enabled")
    node_sources = NodeSources()
    observed = ObservedInstance(Options(), group="spot")
    merged = merge([PolicyOptions("me", 100, want)])
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), observed, merged)
    unread = known(template(GOOD), group=of_group("$Latest"), defaults={})
    (source,) = audit(node_sources, tuple, unread, "me", frozenset(("httpProtocolIpv6",))).groups.values()
    assert source.state == "Unset"


def test_for_a_node_group_of_eks_no_default_is_inferred() -> None:
    source = found(known(template(UNSET), defaults=DEFAULTS), APPS, **MINE).groups[APPS]  # type: ignore[arg-type]
    assert source.state == "Unset"


def test_what_is_wrong_is_told_by_option_with_what_follows_from_the_mend() -> None:
    told = found(known(template({"HttpPutResponseHopLimit": 1}), group=of_group("$Default"))).groups[SPOT]
    assert told == SourceStatus(
        "Drifted",
        launch_template="lt-1",
        version="$Default",
        auto_scaling_group="spot",
        message="httpPutResponseHopLimit is 1, should be 2, httpTokens is not set, should be required; "
        "all that follow $Default follow the change",
        mend=told.mend,
    )
    for finding, group in (
        (found(known(template(BAD)), APPS, **MINE), APPS),  # type: ignore[arg-type]
        (found(known(classes={"default": Options(1)}), POOL, **CLASS), POOL),  # type: ignore[arg-type]
    ):
        assert "replaces all nodes of the" in finding.groups[group].message


def test_a_new_version_keeps_what_the_policy_does_not_manage() -> None:
    block = {**BAD, "InstanceMetadataTags": "disabled", "HttpSomethingNew": "x"}
    command = found(known(template(block), group=of_group("$Latest"))).groups[SPOT].mend
    assert (
        '{"HttpPutResponseHopLimit":2,"HttpSomethingNew":"x","HttpTokens":"required","InstanceMetadataTags":"disabled"}'
        in command
    )


def test_a_latest_version_that_differs_in_something_else_is_not_taken() -> None:
    made = Template("lt-1", {1: Version(1, BAD, "a"), 2: Version(2, GOOD, "b")}, 2, 1, "")
    command = found(known(made, group=of_group("$Default"))).groups[SPOT].mend
    assert f"v1=$({CREATE}1 " in command


MIXED = {
    "LaunchTemplate": {
        "LaunchTemplateSpecification": {
            "LaunchTemplateId": "lt-1",
            "LaunchTemplateName": "a",
            "Version": "1",
        },
        "Overrides": [
            {"InstanceType": "m5.large", "WeightedCapacity": "2"},
            {
                "InstanceType": "c6g.large",
                "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-2", "Version": "1"},
            },
            {
                "InstanceType": "r6g.large",
                "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-3", "Version": "$Latest"},
            },
        ],
    },
    "InstancesDistribution": {"OnDemandBaseCapacity": 1},
}


def test_a_mixed_instances_policy_is_as_good_as_its_worst_template_and_sent_back_whole() -> None:
    group = scaling_group({"AutoScalingGroupName": "spot", "MixedInstancesPolicy": MIXED})  # type: ignore[typeddict-item]
    assert group.templates == (
        TemplateRef("lt-1", "1"),
        TemplateRef("lt-2", "1"),
        TemplateRef("lt-3", "$Latest"),
    )
    one = known(template(BAD), template(GOOD, name="lt-2"), template(GOOD, name="lt-3"), group=group)
    source = found(one).groups[SPOT]
    assert (source.state, source.launch_template, source.version) == ("Drifted", "lt-1", "1")
    assert '"InstanceType"' not in source.mend, "no copy of what it is now: that is read when it is run"
    assert source.mend.endswith(f') && {GROUP} --mixed-instances-policy "$m"')
    assert len(source.mend) < MAX_COMMAND
    all_of_them = known(template(GOOD), template(GOOD, name="lt-2"), template(GOOD, name="lt-3"), group=group)
    assert found(all_of_them).groups[SPOT].state == "Compliant"
    two = known(template(GOOD), template(BAD, name="lt-2"), template({}, name="lt-3"), group=group)
    source = found(two).groups[SPOT]
    assert (source.state, source.launch_template) == ("Drifted", "lt-2")
    assert source.mend.count("create-launch-template-version") == 2, "the third's, by $Latest, needs no more"


def test_a_policy_is_asked_for_what_it_wins_and_mends_for_all_policies() -> None:
    both = merge(
        [PolicyOptions("me", 100, WANTED), PolicyOptions("tokens", 200, Options(None, "optional", "enabled"))]
    )
    node_sources = NodeSources()
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options(), group="spot"), both)
    one = known(template(BAD), group=of_group("$Latest"))
    source = audit(node_sources, tuple, one, "me", OWN).groups[SPOT]
    assert source.message == "httpPutResponseHopLimit is 1, should be 2"
    assert '{"HttpEndpoint":"enabled","HttpPutResponseHopLimit":2,"HttpTokens":"optional"}' in source.mend
    other = audit(node_sources, tuple, one, "tokens", frozenset(("httpTokens", "httpEndpoint"))).groups[SPOT]
    assert (other.state, other.mend) == ("Drifted", source.mend), "whichever is run, both are content"


def test_an_option_in_conflict_is_nobodys() -> None:
    rivals = merge([PolicyOptions("me", 100, WANTED), PolicyOptions("you", 100, Options(3))])
    node_sources = NodeSources()
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options(), group="spot"), rivals)
    source = audit(node_sources, tuple, known(template(BAD), group=of_group("$Latest")), "me", OWN).groups[
        SPOT
    ]
    assert source.state == "Compliant"


@pytest.mark.parametrize("priority", [200, 100], ids=["another policy wins it", "it is in conflict"])
@pytest.mark.parametrize("first", [True, False], ids=["on the last node", "on the first node"])
def test_what_only_some_nodes_of_a_group_should_have_is_not_asked_of_its_source(
    first: bool, priority: int
) -> None:
    node_sources = NodeSources()
    other = merge([PolicyOptions("me", 100, WANTED), PolicyOptions("some", priority, Options(1))])
    for fields in (ME, other) if first else (other, ME):
        node_sources.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options(), group="spot"), fields)
    one = known(template(BAD), group=of_group("$Latest"))
    assert audit(node_sources, tuple, one, "me", OWN).groups[SPOT].state == "Compliant"


def test_a_template_whose_nodes_should_differ_has_no_command() -> None:
    mine, others = NodeSources(), NodeSources()
    mine.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options(), group="spot"), ME)
    three = merge([PolicyOptions("you", 100, Options(3))])
    others.add(
        (("AutoScalingGroup", "b"),), InstanceRef("i-2", HERE), ObservedInstance(Options(), group="b"), three
    )
    refs = (TemplateRef("lt-1", "$Latest"),)
    one = LaunchSnapshot(
        {(HERE, "spot"): ScalingGroup("spot", refs), (HERE, "b"): ScalingGroup("b", refs)},
        {(HERE, "lt-1"): template(BAD)},
    )
    source = audit(mine, lambda: others, one, "me", OWN).groups[SPOT]
    assert (source.state, source.mend) == ("Drifted", "")
    assert "other nodes from this source need another httpPutResponseHopLimit" in source.message


def test_karpenter_never_sets_tags() -> None:
    tags = merge([PolicyOptions("me", 100, Options(instance_metadata_tags="enabled"))])
    node_sources = NodeSources()
    node_sources.add((POOL,), InstanceRef("i-1", HERE, node_class="default"), None, tags)
    one = known(classes={"default": Options(2, instance_metadata_tags="disabled")})
    source = audit(node_sources, tuple, one, "me", frozenset(("instanceMetadataTags",))).groups[POOL]
    assert (source.state, source.mend) == ("Drifted", "")
    assert "cannot set instanceMetadataTags" in source.message


def test_ipv6_is_spelled_as_each_of_them_spells_it() -> None:
    ipv6 = merge([PolicyOptions("me", 100, Options(http_protocol_ipv6="enabled"))])
    own = frozenset(("httpProtocolIpv6",))
    for ref, observed, group, spelled in (
        (InstanceRef("i-1", HERE, node_class="default"), None, POOL, "httpProtocolIPv6"),
        (InstanceRef("i-1", HERE), ObservedInstance(Options(), group="spot"), SPOT, "HttpProtocolIpv6"),
    ):
        node_sources = NodeSources()
        node_sources.add((group,), ref, observed, ipv6)
        one = known(template({}), group=of_group("$Latest"), classes={"default": Options()})
        assert f'"{spelled}":"enabled"' in audit(node_sources, tuple, one, "me", own).groups[group].mend


def test_the_worst_source_of_a_group_is_shown_and_the_others_are_counted() -> None:
    node_sources = NodeSources()
    for number, name in enumerate(("good", "bad", "unset", "gone")):
        node_sources.add((POOL,), InstanceRef(f"i-{number}", HERE, node_class=name), None, ME)
    classes = {"good": Options(2, "required"), "bad": Options(1, "required"), "unset": Options(2)}
    made = audit(node_sources, tuple, known(classes=classes), "me", OWN)
    source = made.groups[POOL]
    assert (source.node_class, source.state) == ("bad", "Drifted")
    assert source.message.endswith("; and 2 more source(s) of the group")


def test_groups_are_told_by_what_is_known_and_sources_are_counted_once() -> None:
    node_sources = NodeSources()
    for group in ("a", "b", "c", "d", "e"):
        observed = ObservedInstance(Options(), group=group)
        node_sources.add((("AutoScalingGroup", group),), InstanceRef("i-1", HERE), observed, ME)
    node_sources.add((POOL,), InstanceRef("i-2", HERE, node_class="default"), None, ME)
    node_sources.add((), InstanceRef("i-3", HERE), ObservedInstance(Options()), ME)
    node_sources.add((APPS,), InstanceRef("i-4", HERE), ObservedInstance(Options(), managed=True), ME)
    refs = (TemplateRef("lt-1", "$Latest"),)
    groups: dict[tuple[str, str], ScalingGroup | None] = {
        (HERE, n): ScalingGroup(n, refs) for n in ("a", "b")
    }
    groups[HERE, "c"] = ScalingGroup("c")
    groups[HERE, "e"] = ScalingGroup("e", (TemplateRef("lt-2", "1"),))
    templates = {(HERE, "lt-1"): template(BAD), (HERE, "lt-2"): template(GOOD, name="lt-2")}
    made = audit(node_sources, tuple, LaunchSnapshot(groups, templates, {"default": Options(1)}), "me", OWN)
    assert made.groups["AutoScalingGroup", "e"].state == "Compliant"
    assert made.wrong == (
        "AutoScalingGroup/a: Drifted",
        "AutoScalingGroup/b: Drifted",
        "KarpenterNodePool/pool: Drifted",
    )
    assert made.unknown == ("AutoScalingGroup/c: Unsupported", "AutoScalingGroup/d: Unknown")
    assert (made.launch_templates, made.node_classes) == (1, 1)
    rows = made.on([GroupStatus("AutoScalingGroup", "a", 1), GroupStatus("AutoScalingGroup", "z", 1)])
    assert [row.source is not None for row in rows] == [True, False]


def test_a_template_is_read_as_the_api_tells_it() -> None:
    versions: Any = [
        {
            "LaunchTemplateId": "lt-1",
            "VersionNumber": number,
            "DefaultVersion": number == 2,
            "LaunchTemplateData": {
                "ImageId": image,
                "MetadataOptions": {
                    "State": "applied",
                    "HttpProtocolIpv6": "enabled",
                    "HttpTokens": "required",
                },
            },
        }
        for number, image in ((2, "ami-1"), (5, "ami-1"), (4, "ami-2"))
    ]
    made = template_of(versions)
    assert made is not None
    assert (made.latest, made.default, made.stack) == (5, 2, None)
    two, four, five = (made.versions[number] for number in (2, 4, 5))
    assert two.rest == five.rest != four.rest
    assert dict(two.options.given()) == {"httpProtocolIpv6": "enabled", "httpTokens": "required"}
    assert "State" not in two.block
    assert [made.version(one) for one in ("$Latest", "$Default", "", "4", "3", "x")] == [
        *(five, two, two, four, None, None)
    ]
    assert template_of([]) is None


def test_without_a_version_a_group_follows_the_default_and_a_name_will_do() -> None:
    group = scaling_group({"AutoScalingGroupName": "g", "LaunchTemplate": {"LaunchTemplateName": "workers"}})
    assert group.templates == (TemplateRef("workers", "$Default"),)
    assert scaling_group({"AutoScalingGroupName": "g", "LaunchConfigurationName": "old"}).templates == ()
    stack = {"Key": "aws:cloudformation:stack-name", "Value": "net"}
    assert scaling_group({"AutoScalingGroupName": "g", "Tags": [stack]}).stack == "net"  # type: ignore[list-item]


def of_two(latest: Version, pinned: str = "1") -> Findings:
    """`spot` refers to version 1, which is not as it should be; `web` follows $Latest, which is."""
    template = Template("lt-1", {1: Version(1, BAD, "old"), 2: latest}, 2, 1, "")
    groups = {"spot": pinned, "web": "$Latest"}
    launching = LaunchSnapshot(
        {
            (HERE, name): ScalingGroup(name, (TemplateRef("lt-1", version),))
            for name, version in groups.items()
        },
        {(HERE, "lt-1"): template},
    )
    node_sources, others = NodeSources(), NodeSources()
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options()), ME)
    others.add((("AutoScalingGroup", "web"),), InstanceRef("i-2", HERE), ObservedInstance(Options()), ME)
    return audit(node_sources, lambda: others, launching, "me", OWN)


@pytest.mark.parametrize("reference", ["1", "$Default"])
def test_no_version_is_made_that_others_would_come_from_by_latest(reference: str) -> None:
    """A new version is $Latest: made from an old one, it would take `web` back to that one's image."""
    source = of_two(Version(2, GOOD, "new"), reference).groups[SPOT]
    assert (source.state, source.mend) == ("Drifted", "")
    assert "would become $Latest" in source.message
    assert "source of its own" in source.message


@pytest.mark.parametrize(
    ("default", "command"), [(Options(None, "required"), True), (Options(None, "optional"), False)]
)
def test_followers_of_latest_get_the_accounts_default_from_a_new_version(
    default: Options, command: bool
) -> None:
    """`web` follows $Latest and should have required tokens, which no version of the template sets."""
    groups = {"spot": ScalingGroup("spot", (TemplateRef("lt-1", "1"),))}
    groups["web"] = ScalingGroup("web", (TemplateRef("lt-1", "$Latest"),))
    snapshot = known(
        template({"HttpPutResponseHopLimit": 1}, {"HttpPutResponseHopLimit": 3}), defaults={HERE: default}
    )
    launching = LaunchSnapshot(
        {(HERE, name): group for name, group in groups.items()},
        snapshot.templates,
        accounts=snapshot.accounts,
    )
    node_sources, others = NodeSources(), NodeSources()
    hop = merge([PolicyOptions("me", 100, Options(2))])
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options()), hop)
    tokens = merge([PolicyOptions("other", 100, Options(None, "required"))])
    others.add((("AutoScalingGroup", "web"),), InstanceRef("i-2", HERE), ObservedInstance(Options()), tokens)
    made = audit(node_sources, lambda: others, launching, "me", frozenset(("httpPutResponseHopLimit",)))
    source = made.groups[SPOT]
    assert (source.state, bool(source.mend)) == ("Drifted", command)
    assert ("would become $Latest" in source.message) == (not command)


def of_three(version: str, *blocks: dict[str, Any]) -> SourceStatus:
    """`spot` should have another hop limit, `a` and `b` different values of another option."""
    names = ("spot", "a", "b")
    refs = [TemplateRef("lt-1", reference) for reference in (version, "$Latest", "$Latest")]
    launching = LaunchSnapshot(
        {(HERE, name): ScalingGroup(name, (one,)) for name, one in zip(names, refs, strict=True)},
        {(HERE, "lt-1"): template(*blocks)},
    )
    hop = merge([PolicyOptions("me", 100, Options(2))])
    node_sources, others = NodeSources(), NodeSources()
    node_sources.add((SPOT,), InstanceRef("i-1", HERE), None, hop)
    for name, tokens in (("a", "required"), ("b", "optional")):
        wanted = merge(
            [PolicyOptions("me", 100, Options(2)), PolicyOptions(name, 100, Options(None, tokens))]
        )
        others.add((("AutoScalingGroup", name),), InstanceRef("i-2", HERE), None, wanted)
    return audit(node_sources, lambda: others, launching, "me", OWN).groups[SPOT]


def test_a_new_latest_version_leaves_alone_what_those_who_follow_it_want_differently() -> None:
    source = of_three("$Latest", BAD)
    assert (source.state, source.message) == ("Drifted", "httpPutResponseHopLimit is 1, should be 2")
    assert "create-launch-template-version" in source.mend


def test_a_latest_version_that_is_there_already_displaces_none() -> None:
    source = of_three("1", BAD, GOOD)
    assert source.mend.endswith(f'{GROUP} --launch-template "LaunchTemplateId=lt-1,Version=2"')


def test_a_version_that_serves_those_who_follow_latest_as_well_is_made() -> None:
    source = of_two(Version(2, {**GOOD, "HttpEndpoint": "enabled"}, "old")).groups[SPOT]
    assert "create-launch-template-version" in source.mend


def of_nodes(*refs: InstanceRef, image: str = "") -> SourceStatus:
    """A node group whose nodes are there, of a template whose versions 7 and 8 have other images."""
    old, new = Version(7, BAD, "old", image), Version(8, GOOD, "new", image)
    node_sources, others = NodeSources(), NodeSources()
    for number, ref in enumerate(refs):
        (node_sources if not number else others).add(
            (APPS,), ref, ObservedInstance(Options(), cluster="prod"), ME
        )
    made = known(Template("lt-1", {7: old, 8: new}, 8, 7, ""))
    return audit(node_sources, lambda: others, made, "me", OWN).groups[APPS]


def test_images_differ_among_nodes_that_are_alike_else() -> None:
    node_sources = NodeSources()
    for image in ("ami-1", "ami-2"):
        node_sources.add((APPS,), of_version("1", image), ObservedInstance(Options(), cluster="prod"), ME)
    assert audit(node_sources, tuple, known(template(BAD)), "me", OWN).groups[APPS].mend == ""


def of_version(version: str, image: str = "ami-1") -> InstanceRef:
    return InstanceRef("i-1", HERE, template="lt-1", version=version, image=image)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        pytest.param(of_version("8", "ami-2"), "version 7 ami-1 and version 8 ami-2", id="another version"),
        pytest.param(of_version("7", "ami-2"), "version 7 ami-1 and version 7 ami-2", id="another image"),
    ],
)
def test_there_is_no_command_while_a_node_group_is_being_updated(other: InstanceRef, told: str) -> None:
    """From the labels of its old nodes it would take version 8 back to what 7 was. The other node need not be
    one that the policy means."""
    source = of_nodes(of_version("7"), other)
    assert (source.state, source.mend) == ("Drifted", "")
    assert f"its nodes come from {told}: an update of the node group is running" in source.message
    assert of_nodes(of_version("7"), of_version("7")).mend


def test_a_release_is_not_named_where_the_template_names_the_image() -> None:
    assert "--release-version" in of_nodes(of_version("7")).mend
    command = of_nodes(of_version("7"), image="ami-1").mend
    assert "describe-nodegroup" in command
    assert "--release-version" not in command
    assert "--kubernetes-version" not in command


def test_a_group_that_follows_what_is_as_it_should_be_is_not_asked_for_a_refresh() -> None:
    """The command changes nothing for `web`, and need not wait for its instance refresh."""
    good, bad = (TemplateRef(name, "$Latest") for name in ("good", "bad"))
    groups = {"spot": (good, bad), "web": (good,), "old": (bad,)}
    launching = LaunchSnapshot(
        {(HERE, name): ScalingGroup(name, refs) for name, refs in groups.items()} | {(HERE, "gone"): None},
        {(HERE, name): template(block, name="lt-1") for name, block in (("good", GOOD), ("bad", BAD))},
    )
    assert found(launching).groups[SPOT].mend.startswith(at_rest("old", "spot"))


def test_a_template_that_a_group_refers_to_by_name_is_told_by_its_id() -> None:
    for block, state in ((BAD, "Drifted"), (GOOD, "Compliant")):
        group = ScalingGroup("spot", (TemplateRef("workers", "$Latest"),))
        launching = LaunchSnapshot({(HERE, "spot"): group}, {(HERE, "workers"): template(block)})
        source = found(launching).groups[SPOT]
        assert (source.state, source.launch_template) == (state, "lt-1")


def test_groups_that_follow_the_same_have_the_same_command() -> None:
    """One command serves all of them."""
    refs = (TemplateRef("lt-1", "$Latest"),)
    groups = {(HERE, name): ScalingGroup(name, refs) for name in ("a", "b")}
    groups[HERE, "c"] = ScalingGroup("c", (TemplateRef("lt-1", "1"),))
    groups["us-east-1", "d"] = ScalingGroup("d", refs)
    node_sources = NodeSources()
    for name in "ab":
        node_sources.add(
            (("AutoScalingGroup", name),),
            InstanceRef("i-1", HERE),
            ObservedInstance(Options(), group=name),
            ME,
        )
    found = audit(
        node_sources, tuple, LaunchSnapshot(groups, {(HERE, "lt-1"): template(BAD)}), "me", OWN
    ).groups
    assert {one.mend for one in found.values()} == {f"{at_rest('a', 'b')}{same(1, 1)}{CREATE}1{DATA}"}


LOOSE = {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional"}


@pytest.mark.parametrize(
    ("launching", "group", "more"),
    [
        pytest.param(known(template(LOOSE), group=of_group("$Latest")), SPOT, {}, id="its own template"),
        pytest.param(
            known(template(LOOSE, GOOD, default=1), group=of_group("$Default")),
            SPOT,
            {},
            id="reused",
        ),
        pytest.param(known(template(LOOSE)), APPS, MINE, id="a managed node group"),
        pytest.param(known(classes={"default": Options(2, "optional")}), POOL, CLASS, id="a node class"),
    ],
)
def test_while_the_gate_holds_a_group_no_command_requires_tokens_of_its_next_nodes(
    launching: LaunchSnapshot, group: tuple[str, str], more: dict[str, Any]
) -> None:
    assert found(launching, group, **more).groups[group].mend
    held = msgspec.structs.replace(launching, tokens_shut=frozenset((group,)))
    source = found(held, group, **more).groups[group]
    assert (source.state, source.mend) == ("Drifted", "")
    name = "/".join(group)
    assert f"spec.tokenGate holds required tokens back in {name}: there is no command" in source.message
    elsewhere = msgspec.structs.replace(launching, tokens_shut=frozenset((("AutoScalingGroup", "x"),)))
    assert found(elsewhere, group, **more).groups[group].mend


def test_a_policy_without_gate_prints_no_command_either_for_a_source_that_a_held_group_shares() -> None:
    other = ScalingGroup("other", (TemplateRef("lt-1", "1"),))
    launching = known(template(LOOSE), template(LOOSE, name="lt-2"), group=of_group("$Latest"))
    launching = msgspec.structs.replace(launching, groups={**launching.groups, (HERE, "other"): other})
    held = ("AutoScalingGroup", "other")
    mine, others = NodeSources(), NodeSources()
    mine.add((SPOT,), InstanceRef("i-1", HERE), ObservedInstance(Options()), ME)
    others.add((held,), InstanceRef("i-2", HERE), ObservedInstance(Options()), ME)
    free = audit(mine, lambda: others, launching, "me", OWN).groups[SPOT]
    assert '"HttpTokens":"required"' in free.mend
    launching = msgspec.structs.replace(launching, tokens_shut=frozenset((held,)))
    source = audit(mine, lambda: others, launching, "me", OWN).groups[SPOT]
    assert (source.mend, "AutoScalingGroup/other" in source.message) == ("", True)
