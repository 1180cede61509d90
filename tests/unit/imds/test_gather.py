"""What one policy looks at: the regions of its nodes, side by side."""

import asyncio
from typing import Any

import msgspec
import pytest

from caretaker.api.imds import (
    Aws,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupTerm,
    LabelSelector,
    Options,
    Selector,
    Spec,
    Status,
)
from caretaker.api.objects import Node, WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey
from caretaker.imds.enforce_input import EnforceInput
from caretaker.imds.gather import PolicyReader, advice
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.imds.inventory import Inventory
from caretaker.imds.launch_templates import LaunchResult
from caretaker.imds.launching import LaunchSnapshot
from caretaker.imds.plan import Policy, plan
from caretaker.imds.resource import ParsedPolicy

NEAR, FAR = "eu-west-1", "us-east-1"


class Regions:
    """Every region's EC2; one answers only when all that were asked for are being asked."""

    def __init__(self, count: int) -> None:
        self.asked: set[str] = set()
        self.all = asyncio.Event()
        self.count = count

    def of(self, target: ClientKey) -> Any:
        return _Ec2(self, target.region)


class _Ec2:
    def __init__(self, regions: Regions, region: str) -> None:
        self.regions, self.region = regions, region

    async def describe_instances(self, **given: Any) -> Any:
        self.regions.asked.add(self.region)
        if len(self.regions.asked) == self.regions.count:
            self.regions.all.set()
        await asyncio.wait_for(self.regions.all.wait(), 5)
        return {"Reservations": [{"Instances": [{"InstanceId": i} for i in given["Filters"][0]["Values"]]}]}


def node(number: int, region: str, **labels: str) -> Node:
    return Node(f"n{number}", f"u{number}", labels, provider_id=f"aws:///{region}a/i-{number:08x}")


def read(mode: str = "Enforce", region: str = "") -> ParsedPolicy:
    spec = Spec(Options(2), mode=mode, aws=Aws(region))  # type: ignore[arg-type]
    return ParsedPolicy(WireMeta(name="p"), Status(), spec)


class _NoSources:
    optional: frozenset[str] = frozenset()

    async def get(self, *given: Any) -> LaunchResult:
        self.optional = given[4]
        return LaunchResult(LaunchSnapshot())


NO_SOURCES: Any = _NoSources()
APPS, IN_APPS = GroupTerm("EKSManagedNodegroup", ("apps",)), {"eks.amazonaws.com/nodegroup": "apps"}
POLICY = Policy("p", 100, Options(2), Selector(), enforces=True)


def reader(inventory: Inventory) -> PolicyReader:
    return PolicyReader(inventory, NO_SOURCES)


async def test_regions_are_asked_side_by_side() -> None:
    nodes = [(one, instance_ref_of(one)) for one in (node(1, NEAR), node(2, FAR))]
    for mode in ("Audit", "Enforce"):
        regions = Regions(2)
        found = await reader(Inventory(regions.of)).gather(read(mode), [POLICY], nodes)
        assert regions.asked == {NEAR, FAR}
        assert [one.observed is not None for one in found.plan_input.members] == [True, True]


async def test_an_instance_that_was_not_told_whole_is_told_to_be_asked_for_again() -> None:
    nodes = [(one, instance_ref_of(one)) for one in (node(1, NEAR), node(2, FAR))]
    mine = await reader(Inventory(Regions(1).of)).gather(read(region=NEAR), [POLICY], nodes)
    assert mine.lost, "its options were not"
    none = await reader(Inventory(Regions(0).of)).gather(read(region="eu-north-1"), [POLICY], nodes)
    assert not none.lost


@pytest.mark.parametrize(
    ("other", "optional"),
    [
        pytest.param({"options": Options(2)}, set(), id="nobody"),
        pytest.param({}, {NEAR, FAR}, id="another policy"),
        pytest.param({"region": FAR}, {FAR}, id="in its region"),
        pytest.param({"selector": Selector(LabelSelector({"zone": "near"}))}, {NEAR}, id="of its nodes"),
        pytest.param({"selector": Selector(groups=(APPS,))}, {NEAR}, id="of its group"),
    ],
)
async def test_where_a_policy_wants_optional_tokens_the_account_may_decide(
    other: dict[str, Any], optional: set[str]
) -> None:
    wants = {"options": Options(http_tokens="optional"), "selector": Selector(), **other}
    policies = [POLICY, Policy("other", 100, **wants)]
    others = (node(3, NEAR), node(4, NEAR, **IN_APPS))
    every = (*others, node(1, NEAR, zone="near", **IN_APPS), node(2, FAR))
    nodes = [(one, instance_ref_of(one)) for one in every]
    await reader(Inventory(Regions(2).of)).gather(read(), policies, nodes)
    assert NO_SOURCES.optional == optional
    mine = msgspec.structs.replace(read(), spec=Spec(Options(2), selector=Selector(groups=(APPS,))))
    await reader(Inventory(Regions(2).of)).gather(mine, policies, nodes)
    assert NO_SOURCES.optional == optional & {NEAR}, "where the policy has nodes"
    await reader(Inventory(Regions(1).of)).gather(read(region=FAR), policies, nodes)
    assert NO_SOURCES.optional == optional & {FAR}


class _Labels(dict[str, str]):
    """They count how often they are read."""

    reads = 0

    def get(self, *given: Any) -> Any:
        _Labels.reads += 1
        return super().get(*given)


async def test_each_policy_that_wants_optional_tokens_looks_once_at_nodes_that_are_alike() -> None:
    def policies(options: Options) -> list[Policy]:
        nobody = Selector(LabelSelector({"zone": "near", "team": "x"}))
        return [POLICY, *(Policy(f"p{number}", 100, options, nobody) for number in range(50))]

    nodes = [
        (msgspec.structs.replace(one, labels=_Labels(one.labels)), instance_ref_of(one))
        for one in (node(number, NEAR, zone="near") for number in range(200))
    ]
    reads = []
    for options in (Options(2), Options(2, "optional")):
        before = _Labels.reads
        await reader(Inventory(Regions(1).of)).gather(read(), policies(options), nodes)
        reads.append(_Labels.reads - before)
    assert NO_SOURCES.optional == set()
    assert reads[1] - reads[0] <= 200 * 2 + 50 * 2, "two labels of a node, and two for each policy"


async def test_a_region_that_is_not_meant_is_not_asked() -> None:
    nodes = [(one, instance_ref_of(one)) for one in (node(1, NEAR), node(2, FAR))]
    regions = Regions(1)
    await reader(Inventory(regions.of)).gather(read(region=FAR), [POLICY], nodes)
    assert regions.asked == {FAR}


async def test_what_was_changed_is_asked_for_though_it_is_meant_no_more() -> None:
    """Else it would look as if it were gone."""
    nodes = [(one, instance_ref_of(one)) for one in (node(1, NEAR, imds="unmanaged"), node(2, FAR))]
    at = "2026-01-01T00:00:00Z"
    one = ChangedInstance(nodes[0][1].instance, "n1", at)
    changed = (ChangedGroup("", "", (FieldChange("httpTokens", "optional", "required"),), (one,)),)
    mine = read()
    spec = Spec(Options(2), mode="Enforce", selector=Selector(exclude=LabelSelector({"imds": "unmanaged"})))
    mine = ParsedPolicy(mine.meta, Status(changed=changed), spec)
    regions = Regions(2)
    found = await reader(Inventory(regions.of)).gather(mine, [POLICY], nodes)
    assert [one.observed is not None for one in found.plan_input.members] == [True, True]


class Tagged:
    """Instances with the tags of clusters."""

    def __init__(self, *clusters: str) -> None:
        self.clusters = {f"i-{number:08x}": name for number, name in enumerate(clusters)}

    async def describe_instances(self, **given: Any) -> Any:
        by = given["Filters"][0]
        ids = by["Values"] if by["Name"] == "instance-id" else self.clusters
        found = [
            {
                "InstanceId": one,
                "State": {"Name": "running"},
                "MetadataOptions": {
                    "HttpPutResponseHopLimit": 1,
                    "HttpTokens": "optional",
                    "HttpEndpoint": "enabled",
                },
                "Tags": [
                    {"Key": f"kubernetes.io/cluster/{self.clusters[one]}".rstrip("."), "Value": "owned"}
                ],
            }
            for one in ids
        ]
        return {"Reservations": [{"Instances": found}]}


@pytest.mark.parametrize(
    ("clusters", "named", "skipped"),
    [
        pytest.param("aab", "", "b", id="that of most is ours"),
        pytest.param("aab", "b", "aa", id="the operator was told"),
        pytest.param("ab", "", "ab", id="nobody knows which is ours"),
        pytest.param("aa", "", "", id="all are ours"),
        pytest.param("aab.", "", "b", id="what has no such tag may be ours"),
    ],
)
async def test_an_instance_of_another_cluster_is_never_held(clusters: str, named: str, skipped: str) -> None:
    """A user who creates a Node can make it name any instance of the account."""
    ec2 = Tagged(*clusters)
    nodes = [(one, instance_ref_of(one)) for one in (node(number, NEAR) for number in range(len(clusters)))]
    inventory = Inventory(lambda _: ec2, cluster=named)  # type: ignore[arg-type,return-value]
    found = await reader(inventory).gather(read(), [POLICY], nodes)
    reported = [clusters[number] for number, one in enumerate(found.plan_input.members) if one.ref.skipped]
    assert "".join(reported) == skipped
    inputs = EnforceInput("p", 1, 1.0, 1.8e9, loosening=("HopLimit",), canary_instances=0, free={NEAR: 9})
    made = plan(msgspec.structs.replace(found.plan_input, enforce_input=inputs))
    assert made.enforced is not None
    assert len(made.enforced.writes) == len(clusters) - len(skipped)
    assert [one.reason for one in made.exceptions if one.reason != "Drifted"] == ["OtherCluster"] * len(
        skipped
    )


@pytest.mark.parametrize(
    ("service", "operation", "action"),
    [
        ("ec2", "DescribeInstances", "; allow ec2:DescribeInstances to the identity that spec.aws names"),
        (
            "sts",
            "AssumeRole",
            "; let the operator's identity assume it in its trust policy, and allow that sts:AssumeRole",
        ),
    ],
)
def test_what_is_denied_is_allowed_to_the_identity_that_lacks_it(
    service: str, operation: str, action: str
) -> None:
    error = AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", service=service, operation=operation)
    assert advice(error) == action
