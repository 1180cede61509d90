"""The report of an IMDSPolicy about sources of future nodes; its commands fix them."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from awsdoubles.ec2.control import ControlError
from testbed.admin import Admin, Json, path
from testing.awscli import Shell
from testing.imds import Fleet
from testing.karpenter import URLS, node_class, node_classes
from testing.operator import OperatorProcess
from testing.rollouts import until

from .conftest import TIME_SCALE

pytestmark = pytest.mark.slow

GOOD = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}
BAD = {"ImageId": "ami-1", "MetadataOptions": {"HttpPutResponseHopLimit": 1, "HttpProtocolIpv6": "disabled"}}
RIGHT = {"MetadataOptions": GOOD}
OPEN = {"HttpTokens": "optional"}
ENFORCES = "the account enforces IMDSv2 (HttpTokensEnforced)"
RESYNC = "1m"  # 3 s here
MOVING = ("latest", "default", "pinned", "mixed")


def nodegroup(shell: Shell, version: str = "1", status: str = "ACTIVE") -> None:
    """What EKS tells of any node group."""
    about = {"version": "1.29", "releaseVersion": "1.29.0-20240129", "status": status}
    shell.answers["DescribeNodegroup"] = {"nodegroup": {**about, "launchTemplate": {"version": version}}}


@pytest.fixture
def shell(fleet: Fleet, tmp_path: Path) -> Iterator[Shell]:
    with Shell.open(tmp_path, fleet.url) as opened:
        nodegroup(opened)
        yield opened


def sources(found: Json) -> dict[str, Json]:
    """By the group's name."""
    return {group["name"]: group["source"] for group in found["status"]["groups"] if group["source"]}


def states(found: Json) -> dict[str, str]:
    return {name: source["state"] for name, source in sources(found).items()}


async def launched(fleet: Fleet, group: str, template: str, version: str) -> None:
    """A node of a new group that refers to the template so."""
    fleet.control.put_group(group, LaunchTemplate={"LaunchTemplateId": template, "Version": version})
    await fleet.add(1, group=group)


@pytest.mark.parametrize("image", [True, False], ids=["the template names the AMI", "EKS chooses the AMI"])
async def test_each_reference_is_told_and_its_command_mends_what_is_launched_next(
    fleet: Fleet, shell: Shell, admin: Admin, image: bool
) -> None:
    control = fleet.control
    bad = BAD if image else {"MetadataOptions": BAD["MetadataOptions"]}
    ids = {name: str(control.put_template(name, [bad])["id"]) for name in (*MOVING, "stack", "eks-1", "mine")}
    control.put_template("stack", [], tags={"aws:cloudformation:stack-name": "net"})
    for name, version in (("latest", "$Latest"), ("default", "$Default"), ("pinned", "1"), ("stack", "1")):
        await launched(fleet, name, ids[name], version)
    of_all = {"LaunchTemplateId": ids["mixed"], "LaunchTemplateName": "mixed", "Version": "1"}
    own = {"InstanceType": "c6g.large", "LaunchTemplateSpecification": {**of_all, "Version": "$Default"}}
    overrides = [{"InstanceType": "m5.large", "WeightedCapacity": "2"}, own]
    policy = {"LaunchTemplateSpecification": of_all, "Overrides": overrides}
    control.put_group("mixed", MixedInstancesPolicy={"LaunchTemplate": policy})
    await fleet.add(1, group="mixed")
    control.put_group("old", LaunchConfigurationName="old")
    await fleet.add(1, group="old")
    eks = {"eks.amazonaws.com/nodegroup": "theirs"}
    await fleet.add(1, labels=eks, template={"LaunchTemplateId": ids["eks-1"], "Version": "1"})
    mine = {"eks.amazonaws.com/nodegroup": "mine", "eks.amazonaws.com/sourceLaunchTemplateId": ids["mine"]}
    version = {"eks.amazonaws.com/sourceLaunchTemplateVersion": "1"}
    await fleet.add(1, labels={**mine, **version}, tags={"eks:cluster-name": "prod"})

    resource = await fleet.create(resyncInterval=RESYNC)
    found = await resource.summary(nodes=8, compliant=8)
    drifted = dict.fromkeys((*MOVING, "mine"), "Drifted")
    assert states(found) == {**drifted, "stack": "IaCOwned", "old": "Unsupported", "theirs": "EKSOwned"}
    assert found["status"]["plan"] == {"instances": 0, "launchTemplates": 5, "ec2NodeClasses": 0}
    told = sources(found)
    assert {name for name, source in told.items() if source.get("mend")} == set(drifted)
    assert told["latest"]["message"] == (
        "httpPutResponseHopLimit is 1, should be 2, httpTokens is not set, should be required"
    )
    await resource.condition("Compliant", "True", "Compliant")
    await resource.condition("Ready", "True", "Audited")
    await resource.condition("SourcesCompliant", "False", "SourcesDrifted")

    def event(events: list[Json]) -> bool:
        mine = [e for e in events if e["involvedObject"]["name"] == resource.name]
        return any(e["type"] == "Warning" and e["reason"] == "SourcesDrifted" for e in mine)

    await admin.wait_for_all(path("events", "default"), event, 30)

    for name in drifted:
        done = shell.run(told[name]["mend"])
        assert (done.returncode, done.stderr) == (0, ""), told[name]["mend"]
    for name in MOVING:
        options = control.add_nodes(1, group=name)[0]["options"]
        assert {**options, **GOOD} == options, name
    for call in control.calls("CreateLaunchTemplateVersion"):
        block = call["params"]["LaunchTemplateData"]["MetadataOptions"]
        assert block == {**GOOD, "HttpProtocolIpv6": "disabled"}, "whole, with what is not managed"
    group = next(
        p for _, o, p in shell.calls if o == "UpdateAutoScalingGroup" and "MixedInstancesPolicy" in p
    )
    sent = group["MixedInstancesPolicy"]["LaunchTemplate"]
    assert sent["Overrides"][0] == overrides[0]
    assert sent["Overrides"][1]["InstanceType"] == "c6g.large"
    assert shell.calls[-1] == (
        "eks",
        "UpdateNodegroupVersion",
        {
            "clusterName": "prod",
            "nodegroupName": "mine",
            "launchTemplate": {"id": ids["mine"], "version": "2"},
            **({} if image else {"version": "1.29", "releaseVersion": "1.29.0-20240129"}),
        },
    )
    found = await resource.when(lambda f: all(states(f)[name] == "Compliant" for name in MOVING))
    # Its nodes still come from version 1: EKS has not replaced them. What is left to do is the update alone.
    left = await resource.when(lambda f: "create" not in sources(f)["mine"].get("mend", "create"))
    assert "aws eks update-nodegroup-version " in sources(left)["mine"]["mend"]


async def mixed(fleet: Fleet, template: str, capacity: int = 1) -> Json:
    """A node of the group `mixed`; its mixed instances policy."""
    of_all = {"LaunchTemplateId": template, "LaunchTemplateName": "x", "Version": "1"}
    own = {"InstanceType": "c6g.large", "LaunchTemplateSpecification": of_all}
    overrides = [{"InstanceType": "m5.large", "WeightedCapacity": "2"}, own]
    policy = {
        "LaunchTemplate": {"LaunchTemplateSpecification": of_all, "Overrides": overrides},
        "InstancesDistribution": {"OnDemandBaseCapacity": capacity},
    }
    fleet.control.put_group("mixed", MixedInstancesPolicy=policy)
    await fleet.add(1, group="mixed")
    return policy


WRITES = (
    "CreateLaunchTemplateVersion",
    "ModifyLaunchTemplate",
    "UpdateAutoScalingGroup",
    "UpdateNodegroupVersion",
)


def written(shell: Shell) -> list[str]:
    return [operation for _, operation, _ in shell.calls if operation in WRITES]


async def test_a_command_changes_nothing_where_the_source_is_not_as_it_was_looked_at(
    fleet: Fleet, shell: Shell
) -> None:
    """A user may run it hours later: later edits stay."""
    control = fleet.control
    ids = {name: str(control.put_template(name, [BAD])["id"]) for name in (*MOVING, "mine")}
    for name, version in (("latest", "$Latest"), ("default", "$Default"), ("pinned", "1")):
        await launched(fleet, name, ids[name], version)
    await mixed(fleet, ids["mixed"])
    labels = {"nodegroup": "mine", "sourceLaunchTemplateId": ids["mine"], "sourceLaunchTemplateVersion": "1"}
    await fleet.add(1, labels={f"eks.amazonaws.com/{key}": value for key, value in labels.items()})
    policy = await fleet.create(resyncInterval="24h")
    found = await policy.when(lambda f: len(states(f)) == 5)
    assert set(states(found).values()) == {"Drifted"}
    commands = {name: source["mend"] for name, source in sources(found).items()}

    def stops(name: str, why: str) -> None:
        done = shell.run(commands[name])
        assert (done.returncode, done.stdout, written(shell)) == (1, "", []), done
        assert done.stderr == f"nothing is changed: {why}; run caretaker plan again\n"

    for status in ("InProgress", "Baking", "SomethingNew"):
        shell.answers["DescribeInstanceRefreshes"] = {"InstanceRefreshes": [{"Status": status}]}
        for name in MOVING:
            stops(name, "an instance refresh runs")
    shell.answers["DescribeInstanceRefreshes"] = {"InstanceRefreshes": [{"Status": "Successful"}]}
    for version, status in (("1", "UPDATING"), ("2", "ACTIVE")):
        nodegroup(shell, version, status)
        stops("mine", "the node group is being updated, or is not of version 1")
    nodegroup(shell)
    for name in ("latest", "default", "mine"):
        control.put_template(name, [{**BAD, "ImageId": "ami-2"}])
        stops(name, f"{ids[name]} has new versions or another default")
    other = {"LaunchTemplateId": ids["latest"], "Version": "1"}
    control.put_group("pinned", LaunchTemplate=other)
    stops("pinned", "the Auto Scaling group refers to something else")
    policy_of_group = {"LaunchTemplate": {"LaunchTemplateSpecification": other}}
    control.put_group("mixed", MixedInstancesPolicy=policy_of_group)
    stops("mixed", "the Auto Scaling group refers to something else")


async def test_a_command_that_is_run_twice_makes_one_version(fleet: Fleet, shell: Shell) -> None:
    template = str(fleet.control.put_template("pinned", [BAD])["id"])
    await launched(fleet, "pinned", template, "1")
    policy = await fleet.create(resyncInterval="24h")
    found = await policy.when(lambda f: states(f) == {"pinned": "Drifted"})
    command = sources(found)["pinned"]["mend"]
    assert [shell.run(command).returncode for _ in range(3)] == [0, 1, 1]
    assert written(shell) == ["CreateLaunchTemplateVersion", "UpdateAutoScalingGroup"]


async def test_a_mixed_instances_policy_is_taken_as_it_is_when_the_command_is_run(
    fleet: Fleet, shell: Shell
) -> None:
    control = fleet.control
    template = str(control.put_template("mixed", [BAD])["id"])
    later = await mixed(fleet, template)
    policy = await fleet.create(resyncInterval="24h")
    found = await policy.when(lambda f: states(f) == {"mixed": "Drifted"})
    overrides = later["LaunchTemplate"]["Overrides"]
    overrides += [{"InstanceType": "r6g.large", "WeightedCapacity": "4"}]
    later["InstancesDistribution"]["OnDemandBaseCapacity"] = 9
    control.put_group("mixed", MixedInstancesPolicy=later)
    done = shell.run(sources(found)["mixed"]["mend"])
    assert (done.returncode, done.stderr) == (0, "")
    (sent,) = (params for _, operation, params in shell.calls if operation == "UpdateAutoScalingGroup")
    new = {"LaunchTemplateId": template, "Version": "2"}
    overrides[1] = {**overrides[1], "LaunchTemplateSpecification": new}
    assert sent["MixedInstancesPolicy"] == {
        "LaunchTemplate": {"LaunchTemplateSpecification": new, "Overrides": overrides},
        "InstancesDistribution": {"OnDemandBaseCapacity": 9},
    }


async def seen(fleet: Fleet, count: int) -> None:
    """Return once the operator knows whose these nodes are: a policy of another region asks EC2 nothing."""
    elsewhere = await fleet.create("elsewhere", aws={"region": "us-east-1"})
    wanted = ["OtherRegion"] * count
    await elsewhere.when(lambda f: [e["reason"] for e in f["status"].get("exceptions", [])] == wanted)


async def test_all_policies_share_one_look_each_resync_and_a_quiet_time_has_none(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    template = str(fleet.control.put_template("workers", [RIGHT])["id"])
    for name in ("a", "b"):
        await launched(fleet, name, template, "$Latest")
    await seen(fleet, 2)  # one that comes to be known later would be asked for by itself
    described = ("DescribeAutoScalingGroups", "DescribeLaunchTemplateVersions", "DescribeTags")
    calls = (*described, "GetInstanceMetadataDefaults")
    policies = [await fleet.create(f"p{n}", resyncInterval="24h") for n in range(3)]
    for policy in policies:
        await policy.condition("SourcesCompliant", "True")
    assert [len(fleet.control.calls(name)) for name in calls] == [1, 1, 1, 1]
    for policy in policies:
        await policy.edit(resyncInterval=RESYNC)
    fleet.control.put_template("workers", [BAD])
    for policy in policies:
        await policy.condition("SourcesCompliant", "False")
    for name in calls:
        await until(lambda name=name: len(fleet.control.calls(name)) == len(fleet.told(operator, "forgot")))
    for earlier, later in itertools.pairwise(fleet.told(operator, "forgot")):
        assert later["forgot"] - earlier["forgot"] >= 60 * TIME_SCALE, "1m, scaled, whoever asks"


@pytest.mark.parametrize(
    ("operation", "action"),
    [
        ("DescribeAutoScalingGroups", "autoscaling:DescribeAutoScalingGroups"),
        ("DescribeLaunchTemplateVersions", "ec2:DescribeLaunchTemplateVersions"),
        ("DescribeTags", "ec2:DescribeTags"),
        ("GetInstanceMetadataDefaults", "ec2:GetInstanceMetadataDefaults"),
    ],
)
async def test_a_denied_action_is_named_while_the_instances_are_audited(
    fleet: Fleet, operation: str, action: str
) -> None:
    template = str(fleet.control.put_template("workers", [RIGHT])["id"])
    await launched(fleet, "spot", template, "$Latest")
    fleet.control.deny(operation)
    policy = await fleet.create()
    told = await policy.condition("PermissionOK", "False", "AccessDenied")
    assert f"allow {action} to the identity that spec.aws names" in told["message"]
    await policy.summary(nodes=1, compliant=1)
    await policy.condition("Ready", "True", "Audited")
    # Neither a stack nor the account's defaults matter while the template itself complies.
    if operation not in ("DescribeTags", "GetInstanceMetadataDefaults"):
        await policy.condition("SourcesCompliant", "Unknown", "SourcesUnknown")
    fleet.control.allow(operation)
    await policy.condition("PermissionOK", "True", "Permitted")
    await policy.condition("SourcesCompliant", "True", "SourcesCompliant")


async def test_an_unset_option_is_the_accounts_default_and_so_are_the_next_nodes(fleet: Fleet) -> None:
    hops = {"HttpPutResponseHopLimit": 2}
    template = str(fleet.control.put_template("workers", [{"MetadataOptions": hops}])["id"])
    await launched(fleet, "spot", template, "$Latest")
    fleet.control.defaults(HttpTokens="required")
    policy = await fleet.create(resyncInterval=RESYNC)
    found = await policy.when(lambda f: states(f) == {"spot": "Compliant"})
    assert sources(found)["spot"]["message"] == "not set, the account's default: httpTokens required"
    await policy.condition("SourcesCompliant", "True")
    launched_now = fleet.control.add_nodes(1, group="spot")[0]["options"]
    assert {**launched_now, **GOOD} == launched_now
    fleet.control.deny("GetInstanceMetadataDefaults")
    found = await policy.when(lambda f: states(f) == {"spot": "Unknown"})
    assert "the account's defaults could not be read" in sources(found)["spot"]["message"]
    fleet.control.allow("GetInstanceMetadataDefaults")
    fleet.control.defaults(HttpTokens="optional")
    found = await policy.when(lambda f: states(f) == {"spot": "Unset"})
    assert "(the account's default is optional)" in sources(found)["spot"]["message"]
    await policy.condition("SourcesCompliant", "False", "SourcesDrifted")


async def test_an_account_that_enforces_imdsv2_refuses_what_the_command_then_mends(
    fleet: Fleet, shell: Shell
) -> None:
    control = fleet.control
    template = str(control.put_template("workers", [{"MetadataOptions": {**GOOD, **OPEN}}])["id"])
    await launched(fleet, "spot", template, "$Latest")
    loose = await fleet.create("loose", options={"httpTokens": "optional"}, resyncInterval=RESYNC)
    await loose.condition("SourcesCompliant", "True")
    control.defaults(HttpTokensEnforced="enabled")
    found = await loose.when(lambda f: states(f) == {"spot": "LaunchesFail"})
    assert "mend" not in sources(found)["spot"]
    told = await loose.condition("SourcesCompliant", "False", "LaunchesFail")
    assert told["message"] == f"launches of AutoScalingGroup/spot fail: {ENFORCES}"
    with pytest.raises(ControlError, match="can't launch instances with IMDSv1"):
        control.add_nodes(1, group="spot")
    await loose.delete()
    tight = await fleet.create("tight", resyncInterval=RESYNC)
    found = await tight.when(lambda f: states(f) == {"spot": "LaunchesFail"})
    assert sources(found)["spot"]["message"] == (
        f"httpTokens is optional, should be required; launches with httpTokens optional fail: {ENFORCES}"
    )
    shell.run(sources(found)["spot"]["mend"])
    await tight.when(lambda f: states(f) == {"spot": "Compliant"})
    assert control.add_nodes(1, group="spot")[0]["options"]["HttpTokens"] == "required"
    control.put_template("workers", [{"MetadataOptions": {**GOOD, **OPEN}}])
    control.deny("GetInstanceMetadataDefaults")
    plain = await fleet.create("plain", options={"httpPutResponseHopLimit": 2}, resyncInterval=RESYNC)
    found = await plain.when(lambda f: states(f) == {"spot": "Unknown"})
    assert "which could not be read" in sources(found)["spot"]["message"]


@pytest.mark.parametrize("served", URLS)
async def test_node_classes_are_found_once_their_crd_is_there_and_the_command_mends_them(
    fleet: Fleet, shell: Shell, admin: Admin, operator: OperatorProcess, served: str
) -> None:
    labels = {"karpenter.sh/nodepool": "pool", "karpenter.k8s.aws/ec2nodeclass": "default"}
    await fleet.add(2, labels=labels)
    policy = await fleet.create(resyncInterval=RESYNC)
    found = await policy.summary(nodes=2, compliant=2)
    assert states(found) == {"pool": "Ephemeral"}
    await policy.condition("SourcesCompliant", "Unknown", "SourcesUnknown")
    assert operator.metric("caretaker_missing_permission", verb="list", resource="ec2nodeclasses") == 0
    async with node_classes(admin, served):
        url = URLS[served]
        await admin.create(
            url, node_class("default", served, httpPutResponseHopLimit=1, httpEndpoint="enabled")
        )
        found = await policy.when(lambda f: states(f) == {"pool": "Drifted"})
        source = sources(found)["pool"]
        assert source["message"].endswith("; Karpenter then replaces all nodes of the class")
        assert found["status"]["plan"] == {"instances": 0, "launchTemplates": 0, "ec2NodeClasses": 1}
        assert shell.run(source["mend"]).returncode == 0
        await admin.patch(f"{url}/default", patch_of(shell.patches[0]))
        await policy.when(lambda f: states(f) == {"pool": "Compliant"})
        options = (await admin.get(f"{url}/default"))["spec"]["metadataOptions"]
        assert options == {"httpPutResponseHopLimit": 2, "httpEndpoint": "enabled", "httpTokens": "required"}
    await policy.when(lambda f: states(f) == {"pool": "Ephemeral"})


def patch_of(words: list[str]) -> Any:
    assert words[:5] == ["patch", "ec2nodeclass", "default", "--type", "merge"]
    assert words[5] == "-p"
    return json.loads(words[6])
