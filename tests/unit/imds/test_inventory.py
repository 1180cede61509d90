"""How often EC2 is asked, and for what; against a double of its one call."""

import asyncio
import math
from typing import Any, Final

import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity
from caretaker.imds import inventory as module
from caretaker.imds.checks import OWN_SECONDS
from caretaker.imds.inventory import Inventory
from caretaker.imds.observations import LOST_SECONDS, observed_instance
from testing.clock import Clock

HERE = ClientKey("ec2", "eu-west-1")
OTHER = ClientKey("ec2", "eu-west-1", identity=Identity(role_arn="arn:aws:iam::1:role/x"))
FRESH = 900.0
APPLIED: Final = {
    "State": "applied",
    "HttpPutResponseHopLimit": 1,
    "HttpTokens": "optional",
    "HttpEndpoint": "enabled",
}
WITHOUT_TOKENS: Final = {name: value for name, value in APPLIED.items() if name != "HttpTokens"}


class Ec2:
    """Instances by id, each with tags; every call's filters, in order."""

    def __init__(self, *ids: str, tag: str = "") -> None:
        tags = [{"Key": tag, "Value": "owned"}] if tag else []
        self.instances = {
            name: {
                "InstanceId": name,
                "Tags": list(tags),
                "State": {"Name": "running"},
                "MetadataOptions": APPLIED,
            }
            for name in ids
        }
        self.calls: list[tuple[str, list[str]]] = []
        self.error: AwsError | None = None
        self.page = 1000

    async def describe_instances(self, **given: Any) -> Any:
        (wanted,) = given["Filters"]
        self.calls.append((wanted["Name"], list(wanted["Values"])))
        if self.error is not None:
            raise self.error
        found = [one for name, one in self.instances.items() if self._fits(name, one, wanted)]
        first = int(given.get("NextToken", 0))
        answer: dict[str, Any] = {
            "Reservations": [{"Instances": [one]} for one in found[first : first + self.page]]
        }
        if first + self.page < len(found):
            answer["NextToken"] = str(first + self.page)
        return answer

    def _fits(self, name: str, one: Any, wanted: Any) -> bool:
        if wanted["Name"] == "instance-id":
            return name in wanted["Values"]
        return any(tag["Key"] in wanted["Values"] for tag in one["Tags"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


async def test_the_second_whole_look_is_one_call_by_the_clusters_tag(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2", "i-3", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    for _ in range(5):  # as many policies
        found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert set(found.instances) == {"i-1", "i-2"}
    assert ec2.calls == [("instance-id", ["i-1", "i-2"])]
    clock.now += FRESH
    for _ in range(5):
        found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert ec2.calls[1:] == [("tag-key", ["kubernetes.io/cluster/prod"])]
    assert set(found.instances) == {"i-1", "i-2", "i-3"}
    assert inventory.calls == 2


async def test_what_the_tag_does_not_find_is_asked_for_by_id(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    ec2.instances["i-2"]["Tags"] = []
    clock.now += FRESH
    found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert set(found.instances) == {"i-1", "i-2"}
    assert ec2.calls[1:] == [("tag-key", ["kubernetes.io/cluster/prod"]), ("instance-id", ["i-2"])]


async def test_new_instances_alone_are_asked_for_and_those_that_are_not_there_twice(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    clock.now += 5
    found = await inventory.get(HERE, {"i-1", "i-2", "i-9"}, FRESH)
    assert (set(found.instances), set(found.lost)) == ({"i-1", "i-2", "i-9"}, {"i-9"})
    assert ec2.calls[1:] == [("instance-id", ["i-2", "i-9"])]
    clock.now += LOST_SECONDS - 1
    await inventory.get(HERE, {"i-1", "i-2", "i-9"}, FRESH)
    assert len(ec2.calls) == 2
    clock.now += 1
    found = await inventory.get(HERE, {"i-1", "i-2", "i-9"}, FRESH)
    assert (set(found.instances), set(found.lost)) == ({"i-1", "i-2"}, set())
    assert ec2.calls[2:] == [("instance-id", ["i-9"])]
    for _ in range(3):
        clock.now += 60
        await inventory.get(HERE, {"i-1", "i-2", "i-9"}, FRESH)
    assert len(ec2.calls) == 3
    assert found.at == 1000.0, "it was no whole look"
    clock.now += FRESH
    found = await inventory.get(HERE, {"i-1", "i-2", "i-9"}, FRESH)
    assert set(found.instances) == {"i-1", "i-2"}, "it is known to be gone"


async def test_ids_go_by_200_a_call_and_pages_are_followed(clock: Clock) -> None:
    names = [f"i-{number:04d}" for number in range(450)]
    ec2 = Ec2(*names)
    ec2.page = 150
    found = await Inventory(lambda _: ec2).get(HERE, names, FRESH)  # type: ignore[arg-type,return-value]
    assert len(found.instances) == 450
    assert [len(ids) for _, ids in ec2.calls] == [200, 200, 200, 200, 50]


async def test_a_failure_keeps_what_was_known_tells_it_and_backs_off(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    ec2.error = AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation")
    clock.now += FRESH
    found = await inventory.get(HERE, {"i-1"}, FRESH)
    assert (found.problem, set(found.instances)) == (ec2.error, {"i-1"})
    waits = []
    for wait in (15.0, 30.0, 60.0, 300.0, 300.0):
        before = len(ec2.calls)
        clock.now += wait - 1
        await inventory.get(HERE, {"i-1"}, FRESH)
        assert len(ec2.calls) == before, wait
        clock.now += 1
        await inventory.get(HERE, {"i-1"}, FRESH)
        waits.append(len(ec2.calls) - before)
    assert waits == [1] * 5
    ec2.error = None
    clock.now += 300
    fixed = await inventory.get(HERE, {"i-1"}, FRESH)
    assert fixed.problem is None


async def test_nothing_is_asked_where_there_is_no_instance(clock: Clock) -> None:
    ec2 = Ec2()
    await Inventory(lambda _: ec2).get(HERE, set(), FRESH)  # type: ignore[arg-type,return-value]
    assert ec2.calls == []


def test_an_instance_is_read_as_the_api_tells_it() -> None:
    found = observed_instance(
        {
            "InstanceId": "i-1",
            "State": {"Name": "stopped"},
            "MetadataOptions": {
                "State": "pending",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 2,
                "HttpEndpoint": "enabled",
                "HttpProtocolIpv6": "disabled",
                "InstanceMetadataTags": "disabled",
            },
            "Tags": [
                {"Key": "aws:autoscaling:groupName", "Value": "spot-1"},
                {"Key": "aws:ec2launchtemplate:id", "Value": "lt-1"},
                {"Key": "aws:ec2launchtemplate:version", "Value": "7"},
                {"Key": "eks:cluster-name", "Value": "prod"},
            ],
            "Operator": {"Managed": True},
        },
        7.0,
    )
    assert dict(found.options.given()) == {
        "httpPutResponseHopLimit": 2,
        "httpTokens": "required",
        "httpEndpoint": "enabled",
        "httpProtocolIpv6": "disabled",
        "instanceMetadataTags": "disabled",
    }
    assert (found.state, found.pending, found.managed, found.group) == ("stopped", True, True, "spot-1")
    assert (found.template, found.version, found.cluster) == ("lt-1", "7", "prod")
    assert found.clusters == ("prod",)
    bare = observed_instance({"InstanceId": "i-2"}, 7.0)
    assert (dict(bare.options.given()), bare.state, bare.group, bare.at) == ({}, "", "", 7.0)
    assert (bare.template, bare.version) == ("", "")
    assert (bare.lost, found.lost) == (True, False), "its options are not told"
    tags: Any = [{"Value": "x"}, {"Key": "aws:autoscaling:groupName"}]
    half = observed_instance({"InstanceId": "i-3", "Tags": tags}, 7.0)
    assert (half.group, half.unfit_tags) == ("", True)
    assert not observed_instance({"InstanceId": "i-2", "State": {"Name": "terminated"}}, 7.0).lost


async def test_an_option_with_an_unknown_value_leaves_one_instance_unread_and_no_other(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    before = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    ec2.instances["i-1"]["MetadataOptions"] = {**APPLIED, "HttpTokens": "sometimes"}
    clock.now += FRESH
    found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert found.problem is None
    assert [found.instances[name].lost for name in ("i-1", "i-2")] == [True, False]
    assert found.instances["i-1"].options == before.instances["i-1"].options, "the last that were read"


@pytest.mark.parametrize("option", ["HttpPutResponseHopLimit", "HttpTokens", "HttpEndpoint"])
async def test_an_option_that_a_description_lacks_keeps_its_value_and_is_not_known(
    clock: Clock, option: str
) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    without = {name: value for name, value in APPLIED.items() if name != option}
    ec2.instances["i-1"]["MetadataOptions"] = without
    found = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert found.lost, "never read"
    ec2.instances["i-1"]["MetadataOptions"] = APPLIED
    clock.now += LOST_SECONDS
    before = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert not before.lost
    ec2.instances["i-1"]["MetadataOptions"] = without
    clock.now += FRESH
    found = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (found.lost, found.options) == (True, before.options)


async def test_an_instance_that_lacked_an_option_is_not_gone_at_the_first_response_without_it(
    clock: Clock,
) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    ec2.instances["i-1"]["MetadataOptions"] = WITHOUT_TOKENS
    for _ in range(3):
        clock.now += FRESH
        assert (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].lost
    del ec2.instances["i-1"]
    clock.now += LOST_SECONDS
    found = (await inventory.get(HERE, {"i-1"}, FRESH)).instances
    assert found["i-1"].lost


async def test_a_description_without_the_changed_option_confirms_nothing(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", {**APPLIED, "HttpTokens": "required"})  # type: ignore[arg-type]
    ec2.instances["i-1"]["MetadataOptions"] = WITHOUT_TOKENS
    clock.now += 3
    await inventory.again(HERE, ["i-1"], clock.now)
    assert (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].under_way


class Waiting:
    """Instances whose options are pending; how many values the filters of each call had."""

    def __init__(self, count: int, tag: str = "") -> None:
        self.ids = [f"i-{number:03d}" for number in range(count)]
        self.tags = [{"Key": tag, "Value": "owned"}] if tag else []
        self.values: list[int] = []

    async def describe_instances(self, **given: Any) -> Any:
        filters = {one["Name"]: one["Values"] for one in given["Filters"]}
        self.values.append(sum(map(len, filters.values())))
        made = {"MetadataOptions": {"State": "pending"}, "State": {"Name": "running"}, "Tags": self.tags}
        wanted = filters.get("instance-id", self.ids)
        return {"Reservations": [{"Instances": [{"InstanceId": one, **made} for one in wanted]}]}


@pytest.mark.parametrize("knows", [True, False])
async def test_what_one_identity_changes_counts_for_all(clock: Clock, knows: bool) -> None:
    """Descriptions lag."""
    ec2, other = Ec2("i-1"), OTHER
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    if knows:
        await inventory.get(other, {"i-1"}, FRESH)
    inventory.doubt("i-1", {"HttpPutResponseHopLimit": 2})
    doubted = (await inventory.get(other, {"i-1"}, FRESH)).instances["i-1"]
    assert (doubted.at, doubted.under_way) == ((-math.inf, False) if knows else (clock.now, True))
    inventory.changed(HERE, "i-1", {**APPLIED, **PENDING})  # type: ignore[arg-type]
    found = (await inventory.get(other, {"i-1"}, FRESH)).instances["i-1"]
    assert (found.options.http_put_response_hop_limit, found.under_way) == (2, True)
    clock.now += OWN_SECONDS + 1
    await inventory.again(other, {"i-1"}, clock.now)
    late = (await inventory.get(other, {"i-1"}, FRESH)).instances["i-1"]
    assert (late.options.http_put_response_hop_limit, late.under_way) == (1, False)


async def test_what_one_identity_changes_is_polled_by_the_others_at_the_same_pace(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    for target in (HERE, OTHER):
        await inventory.get(target, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", {**APPLIED, **PENDING})  # type: ignore[arg-type]
    clock.now += 3
    await inventory.poll(OTHER)
    assert len(ec2.calls) == 3


async def test_changes_of_an_earlier_time_as_leader_are_forgotten(clock: Clock) -> None:
    """Another process may have changed the instance since."""
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", {**APPLIED, **PENDING})  # type: ignore[arg-type]
    inventory.clear()
    found = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (found.options.http_put_response_hop_limit, found.under_way) == (1, False)


@pytest.mark.parametrize(
    ("count", "tag", "calls"),
    [
        pytest.param(200, "", 1, id="as many as one call takes"),
        pytest.param(201, "", 2, id="one more"),
        pytest.param(450, "kubernetes.io/cluster/prod", 3, id="many"),
    ],
)
async def test_what_is_pending_is_asked_for_within_the_limit_of_a_call(
    clock: Clock, count: int, tag: str, calls: int
) -> None:
    ec2 = Waiting(count, tag)
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, set(ec2.ids), FRESH)
    await inventory.poll(HERE)
    ec2.values.clear()
    clock.now += 3
    await inventory.poll(HERE)
    assert len(ec2.values) == calls
    assert max(ec2.values) <= 200, "of all filters of a call together"


@pytest.mark.parametrize(
    ("tags", "clusters"),
    [
        ({}, ()),
        ({"Name": "a"}, ()),
        ({"kubernetes.io/cluster/b": "owned", "kubernetes.io/cluster/a": "shared"}, ("a", "b")),
        ({"aws:eks:cluster-name": "a", "kubernetes.io/cluster/a": "owned"}, ("a",)),
        ({"eks:cluster-name": "a", "aws:eks:cluster-name": "b"}, ("a", "b")),
    ],
)
def test_the_clusters_of_an_instance_are_all_that_its_tags_name(
    tags: dict[str, str], clusters: tuple[str, ...]
) -> None:
    told: Any = {"InstanceId": "i", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    seen = observed_instance(told, 0.0)
    assert (seen.clusters, seen.cluster) == (clusters, tags.get("aws:eks:cluster-name", ""))


@pytest.mark.parametrize(
    ("keys", "unfit"),
    [(("Name",), False), (("Name", "kubernetes.io/cluster/a"), True), (("_index",), True), ((), None)],
)
def test_tags_that_the_metadata_service_cannot_show_are_seen(
    keys: tuple[str, ...], unfit: bool | None
) -> None:
    tags = [{"Key": key, "Value": "x"} for key in keys]
    assert observed_instance({"InstanceId": "i", "Tags": tags}, 0.0).unfit_tags is unfit


def test_the_tag_of_the_cluster_is_what_most_instances_carry() -> None:
    def tagged(*keys: str) -> Any:
        return {"InstanceId": "i", "Tags": [{"Key": key, "Value": "prod"} for key in keys]}

    eks, ours, other = "aws:eks:cluster-name", "kubernetes.io/cluster/prod", "kubernetes.io/cluster/old"
    assert module.cluster_tag([tagged(ours), tagged(other), tagged(ours)]) == {
        "Name": "tag-key",
        "Values": [ours],
    }
    assert module.cluster_tag([tagged(eks)]) == {"Name": f"tag:{eks}", "Values": ["prod"]}
    assert module.cluster_tag([tagged("Name"), {"InstanceId": "i"}]) is None


async def test_policies_that_mean_different_nodes_share_a_whole_look_by_tag(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    for ids in ({"i-1"}, {"i-2"}):
        await inventory.get(HERE, ids, FRESH)
    before = len(ec2.calls)
    for _ in range(4):
        clock.now += FRESH
        for ids in ({"i-1"}, {"i-2"}):
            await inventory.get(HERE, ids, FRESH)
    assert len(ec2.calls) - before == 4
    ec2.instances["i-2"]["State"] = {"Name": "pending"}
    clock.now += FRESH
    await inventory.get(HERE, {"i-1"}, FRESH)
    ec2.instances["i-2"]["State"] = {"Name": "running"}
    found = await inventory.get(HERE, {"i-2"}, FRESH)
    assert found.instances["i-2"].state == "running", "it was starting: when its node joins it is asked for"


async def test_what_is_asked_for_by_id_and_not_found_is_gone(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    del ec2.instances["i-1"]
    clock.now += 61
    await inventory.again(HERE, ["i-1"], clock.now - 60)
    found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert found.instances["i-1"].lost, "the answer may lag"
    clock.now += LOST_SECONDS
    await inventory.again(HERE, ["i-1"], clock.now)
    found = await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    assert set(found.instances) == {"i-2"}
    ec2.instances |= Ec2("i-1").instances
    clock.now += 1
    await inventory.again(HERE, ["i-1"], clock.now)
    assert "i-1" in (await inventory.get(HERE, {"i-1", "i-2"}, FRESH)).instances, "EC2 tells it after all"


async def test_an_answer_that_lags_changes_no_verdict_of_an_instance_that_it_leaves_out(clock: Clock) -> None:
    ec2 = Ec2("i-1", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    before = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    kept = ec2.instances.pop("i-1")
    clock.now += FRESH
    found = await inventory.get(HERE, {"i-1"}, FRESH)
    lost = found.instances["i-1"]
    assert (lost.lost, lost.options, lost.tagged, set(found.lost)) == (True, before.options, True, {"i-1"})
    ec2.instances["i-1"] = kept
    clock.now += LOST_SECONDS
    found = await inventory.get(HERE, {"i-1"}, FRESH)
    assert (found.instances["i-1"].lost, set(found.lost)) == (False, set())


async def test_one_whose_options_are_not_told_keeps_them_and_is_never_gone(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    before = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    del ec2.instances["i-1"]["MetadataOptions"]
    for _ in range(4):
        clock.now += FRESH
        found = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
        assert (found.lost, found.options) == (True, before.options)
    ec2.instances["i-1"]["MetadataOptions"] = APPLIED
    clock.now += LOST_SECONDS
    assert not (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].lost


async def test_whose_account_it_is_is_told_by_ec2(clock: Clock) -> None:
    class Owned(Ec2):
        async def describe_instances(self, **given: Any) -> Any:
            answer = await super().describe_instances(**given)
            return {"Reservations": [{**one, "OwnerId": "111122223333"} for one in answer["Reservations"]]}

    ec2 = Owned("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    assert inventory.account(HERE) == ""
    await inventory.get(HERE, {"i-1"}, FRESH)
    assert inventory.account(HERE) == "111122223333"


PENDING = {"State": "pending", "HttpPutResponseHopLimit": 2}


async def test_a_look_for_what_is_pending_that_fails_is_made_good_by_the_next_one(clock: Clock) -> None:
    ec2 = Slow("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    inventory.changed(HERE, "i-1", PENDING)  # type: ignore[arg-type]
    clock.now += 3
    ec2.error = AwsError(ErrorClass.THROTTLED, "RequestLimitExceeded")
    await inventory.poll(HERE)
    assert (await inventory.get(HERE, {"i-1", "i-2"}, FRESH)).problem is ec2.error
    ec2.error = None
    clock.now += 15
    assert (await inventory.get(HERE, {"i-1", "i-2"}, FRESH)).problem is None, "not after the resync only"


class Slow(Ec2):
    """Its answers wait while `open` is not set."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    def tell(self, instance: str, **options: Any) -> None:
        self.instances[instance]["MetadataOptions"] = {**APPLIED, **options}

    async def describe_instances(self, **given: Any) -> Any:
        answer = await super().describe_instances(**given)  # as it is when the question comes
        self.asked.set()
        await self.open.wait()
        return answer


async def test_pending_is_looked_for_after_3_6_and_every_12_seconds(clock: Clock) -> None:
    ec2 = Slow("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", PENDING)  # type: ignore[arg-type]
    ec2.instances["i-1"]["MetadataOptions"] = PENDING
    began, at = clock.now, []
    for _ in range(60):
        clock.now += 1
        before = len(ec2.calls)
        await inventory.poll(HERE)
        if len(ec2.calls) > before:
            at.append(clock.now - began)
    assert at == [3, 9, 21, 33, 45, 57]
    ec2.instances["i-1"]["MetadataOptions"] = {**PENDING, "State": "applied"}
    clock.now += 12
    await inventory.poll(HERE)
    assert not (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].pending
    before = len(ec2.calls)
    clock.now += 60
    await inventory.poll(HERE)
    assert len(ec2.calls) == before


async def test_what_changes_while_pending_is_looked_for_is_not_taken_for_applied(clock: Clock) -> None:
    ec2 = Slow("i-1", "i-2", "i-3")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2", "i-3"}, FRESH)
    for one in ("i-1", "i-2", "i-3"):
        inventory.changed(HERE, one, {**APPLIED, **PENDING})  # type: ignore[arg-type]
    for one in ("i-1", "i-2", "i-3"):
        ec2.tell(one, HttpPutResponseHopLimit=2)
    clock.now += 3
    ec2.open.clear()
    ec2.asked.clear()
    polling = asyncio.create_task(inventory.poll(HERE))
    await ec2.asked.wait()
    clock.now += 1
    inventory.changed(HERE, "i-1", {**PENDING, "HttpPutResponseHopLimit": 3})  # type: ignore[arg-type]
    inventory.instances(HERE).gone("i-2", clock.now)
    ec2.open.set()
    await polling
    found = (await inventory.get(HERE, {"i-1", "i-2", "i-3"}, FRESH)).instances
    assert {one: seen.under_way for one, seen in found.items()} == {"i-1": True, "i-3": False}


async def test_applied_is_what_ec2_tells_of_the_instance_and_nothing_else(clock: Clock) -> None:
    """Not its answer to the change, nor that it lists nothing as pending: another client may set it back."""
    ec2 = Slow("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)

    async def poll() -> Any:
        clock.now += 12
        await inventory.poll(HERE)
        seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
        return seen.options.http_put_response_hop_limit, seen.under_way

    inventory.changed(HERE, "i-1", {**PENDING, **APPLIED, "HttpPutResponseHopLimit": 2})  # type: ignore[arg-type]
    seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (seen.options.http_put_response_hop_limit, seen.under_way) == (2, True)
    ec2.tell("i-1", HttpPutResponseHopLimit=2, State="pending")
    assert await poll() == (2, True)
    ec2.tell("i-1", HttpPutResponseHopLimit=2)
    assert await poll() == (2, False)
    assert [name for name, _ in ec2.calls] == ["instance-id"] * 3

    inventory.changed(HERE, "i-1", {**APPLIED, **PENDING, "HttpPutResponseHopLimit": 3})  # type: ignore[arg-type]
    ec2.tell("i-1", HttpPutResponseHopLimit=1)
    assert [await poll() for _ in range(3)] == [(3, True), (3, True), (1, False)]


async def test_one_that_ends_while_it_is_pending_is_told_so(clock: Clock) -> None:
    ec2 = Slow("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", PENDING)  # type: ignore[arg-type]
    ec2.instances["i-1"]["State"] = {"Name": "terminated"}
    clock.now += 3
    await inventory.poll(HERE)
    assert (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].state == "terminated"
    clock.now += 60
    await inventory.poll(HERE)
    assert len(ec2.calls) == 2, "nothing is waited for"


async def test_our_own_change_outranks_a_description_that_does_not_know_of_it(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    inventory.changed(HERE, "i-1", PENDING)  # type: ignore[arg-type]
    seen = []
    applied = {**PENDING, "State": "applied"}
    for state in (PENDING, applied):
        inventory.changed(HERE, "i-1", state)  # type: ignore[arg-type]
        clock.now += 1
        await inventory.again(HERE, ["i-1"], clock.now)
        one = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
        assert (one.options.http_put_response_hop_limit, one.under_way) == (2, True), state
    clock.now -= 1
    for _ in range(3):
        clock.now += OWN_SECONDS / 2 - 1
        one = (await inventory.get(HERE, {"i-1"}, 1.0)).instances["i-1"]
        seen.append((one.options.http_put_response_hop_limit, one.under_way))
    assert seen == [(2, True), (2, True), (1, False)], "nor is it believed before it is told"


async def test_without_an_answer_a_description_that_does_not_show_the_change_proves_nothing(
    clock: Clock,
) -> None:
    ec2 = Slow("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    for one in ("i-1", "i-2"):
        inventory.instances(HERE).doubt(one, {"HttpPutResponseHopLimit": 2}, clock.now)
    ec2.tell("i-2", HttpPutResponseHopLimit=2)
    seen = []
    for _ in range(2):
        await inventory.again(HERE, ["i-1", "i-2"], clock.now + 1)
        found = (await inventory.get(HERE, {"i-1", "i-2"}, FRESH)).instances
        seen.append({name: one.under_way for name, one in found.items()})
        clock.now += OWN_SECONDS
    assert seen == [{"i-1": True, "i-2": False}, {"i-1": False, "i-2": False}]
    inventory.instances(HERE).doubt("i-1", {"HttpPutResponseHopLimit": 2}, clock.now)
    inventory.instances(HERE).refused("i-1")
    await inventory.again(HERE, ["i-1"], clock.now + 1)
    assert not (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].under_way, "EC2 did not take it"


async def test_a_region_that_hangs_holds_up_no_other(clock: Clock) -> None:
    slow, quick = Slow("i-1"), Ec2("i-2")
    slow.open.clear()
    far = ClientKey("ec2", "us-east-1")
    inventory = Inventory(lambda target: slow if target == HERE else quick)  # type: ignore[arg-type,return-value]
    hanging = asyncio.create_task(inventory.get(HERE, {"i-1"}, FRESH))
    await slow.asked.wait()
    found = await inventory.get(far, {"i-2"}, FRESH)
    assert set(found.instances) == {"i-2"}
    slow.open.set()
    await hanging


async def test_what_was_tried_to_be_changed_is_read_again_before_anything_is_sent(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    inventory.instances(HERE).doubt("i-1", {"HttpTokens": "required"}, clock.now)
    await inventory.again(HERE, ["i-1", "i-2"], clock.now - 60)
    assert ec2.calls[1:] == [("instance-id", ["i-1"])]
    inventory.instances(HERE).doubt("i-1", {"HttpTokens": "required"}, clock.now)
    inventory.changed(HERE, "i-1", PENDING)  # type: ignore[arg-type]
    await inventory.again(HERE, ["i-1", "i-2"], clock.now - 60)
    assert len(ec2.calls) == 2, "EC2 has answered"


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ({"HttpPutResponseHopLimit": 2, "HttpTokens": "required"}, True),
        ({"HttpPutResponseHopLimit": 2, "HttpTokens": "optional"}, True),
        ({"HttpPutResponseHopLimit": 1, "HttpTokens": "required"}, False),
        ({"HttpPutResponseHopLimit": 1, "HttpTokens": "optional"}, False),
    ],
    ids=["the second is made", "it is not", "as before the first", "as before both"],
)
async def test_after_a_change_a_second_one_without_an_answer_is_believed_as_ec2_tells_it(
    clock: Clock, told: dict[str, Any], believed: bool
) -> None:
    """EC2 may tell for a while what stood before a change of ours, and what came of a later one."""
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1"}, FRESH)
    applied = {"State": "applied", "HttpPutResponseHopLimit": 2, "HttpTokens": "optional"}
    inventory.changed(HERE, "i-1", applied)  # type: ignore[arg-type]
    clock.now += 10
    inventory.instances(HERE).doubt("i-1", {"HttpTokens": "required", "HttpEndpoint": "enabled"}, clock.now)
    ec2.instances["i-1"]["MetadataOptions"] = {"State": "applied", "HttpEndpoint": "enabled", **told}
    clock.now += 3
    await inventory.again(HERE, ["i-1"], clock.now)
    seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].options
    expected = told if believed else applied
    assert seen.http_put_response_hop_limit == expected["HttpPutResponseHopLimit"]
    assert seen.http_tokens == expected["HttpTokens"]


async def test_a_whole_look_for_others_forgets_no_change_of_ours(clock: Clock) -> None:
    ec2 = Slow("i-1", "i-2")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    clock.now += FRESH
    inventory.changed(HERE, "i-1", {**APPLIED, **PENDING})  # type: ignore[arg-type]
    await inventory.get(HERE, {"i-2"}, FRESH)
    seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (seen.options.http_put_response_hop_limit, seen.under_way) == (2, True)


async def test_an_instance_that_had_tags_has_them_where_an_answer_tells_none(clock: Clock) -> None:
    """Its group would lose it, and another policy get it."""
    ec2 = Ec2("i-1", tag="kubernetes.io/cluster/prod")
    ec2.instances["i-1"]["Tags"].append({"Key": "aws:autoscaling:groupName", "Value": "dind"})
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    first = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (first.group, first.tagged, first.unfit_tags) == ("dind", True, True)
    assert first.clusters == ("prod",)
    ec2.instances["i-1"]["Tags"] = []
    ec2.instances["i-1"]["State"] = {"Name": "stopped"}
    clock.now += FRESH
    again = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (again.group, again.tagged, again.unfit_tags) == ("dind", True, True)
    assert again.clusters == ("prod",)
    assert (again.state, again.at) == ("stopped", clock.now)
    ec2.instances["i-1"]["Tags"] = [{"Key": "Name", "Value": "x"}]
    groups = []
    for _ in range(3):
        clock.now += FRESH
        groups.append((await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].group)
    assert groups == ["dind", "", ""], "one answer without its group's tag is not enough"


async def test_so_has_one_that_is_of_no_auto_scaling_group(clock: Clock) -> None:
    ec2 = Ec2("i-1", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    for _ in range(2):
        await inventory.get(HERE, {"i-1"}, FRESH)
        clock.now += FRESH
    ec2.instances["i-1"]["Tags"] = []
    seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
    assert (seen.tagged, seen.clusters) == (True, ("prod",))


async def test_the_tags_of_one_that_another_policys_look_did_not_ask_for_are_kept(clock: Clock) -> None:
    ec2 = Ec2("i-1", "i-2")
    ec2.instances["i-2"]["Tags"] = [{"Key": "aws:autoscaling:groupName", "Value": "dind"}]
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    await inventory.get(HERE, {"i-1", "i-2"}, FRESH)
    ec2.instances["i-2"]["Tags"] = []
    clock.now += FRESH
    await inventory.get(HERE, {"i-1"}, FRESH)
    assert (await inventory.get(HERE, {"i-2"}, FRESH)).instances["i-2"].group == "dind"


async def test_that_one_has_no_group_is_confirmed_half_a_minute_after_the_first_response(
    clock: Clock,
) -> None:
    """Also after its group was reported in between."""
    ec2 = Ec2("i-1", tag="kubernetes.io/cluster/prod")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    tags = ec2.instances["i-1"]["Tags"]
    grouped = [*tags, {"Key": "aws:autoscaling:groupName", "Value": "dind"}]

    async def read(after: float, *, tags: list[dict[str, str]]) -> tuple[str, float]:
        clock.now += after
        ec2.instances["i-1"]["Tags"] = tags
        await inventory.again(HERE, {"i-1"}, clock.now)
        seen = (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"]
        return seen.group, seen.ungrouped_at

    first = clock.now
    assert await read(0.0, tags=tags) == ("", first)
    assert await read(OWN_SECONDS - 1.0, tags=tags) == ("", first)
    assert await read(1.0, tags=tags) == ("", 0.0)
    assert await read(1.0, tags=tags) == ("", 0.0)
    assert await read(1.0, tags=grouped) == ("dind", 0.0)
    assert await read(1.0, tags=tags) == ("dind", 0.0)
    assert await read(OWN_SECONDS - 1.0, tags=tags) == ("dind", 0.0)
    assert await read(1.0, tags=tags) == ("", 0.0)


async def test_one_of_which_no_tags_were_ever_told_is_not_taken_for_one_without(clock: Clock) -> None:
    ec2 = Ec2("i-1")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    for _ in range(2):
        assert not (await inventory.get(HERE, {"i-1"}, FRESH)).instances["i-1"].tagged
        clock.now += FRESH


async def test_a_token_that_leads_in_circles_is_followed_once(clock: Clock) -> None:
    class Circling(Ec2):
        async def describe_instances(self, **_: Any) -> Any:
            self.calls.append(("", []))
            return {"Reservations": [], "NextToken": "a" if len(self.calls) % 2 else "b"}

    ec2 = Circling()
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    found = await inventory.get(HERE, {"i-1"}, FRESH)
    assert found.problem is not None
    assert (found.problem.code, len(ec2.calls)) == ("UnreadableAnswer", 3)


async def test_pages_have_fewer_instances_where_one_cannot_be_read(clock: Clock) -> None:
    """Instances with hundreds of addresses: a page of 1,000 of them is larger than any that is read."""

    class Large(Ec2):
        most = 300  # of an answer that can be read

        async def describe_instances(self, **given: Any) -> Any:
            self.page = given["MaxResults"]
            self.error = unreadable if self.page > self.most else None
            return await super().describe_instances(**given)

    unreadable = AwsError(ErrorClass.TRANSIENT, "UnreadableAnswer", status=200, service="ec2")
    names = {f"i-{number}" for number in range(130)}
    ec2 = Large(*names, tag="kubernetes.io/cluster/one")
    inventory = Inventory(lambda _: ec2)  # type: ignore[arg-type,return-value]
    assert (await inventory.get(HERE, names, FRESH)).problem is unreadable
    clock.now += 15
    assert (await inventory.get(HERE, names, FRESH)).instances.keys() == names
    clock.now += FRESH
    assert (await inventory.get(HERE, names, FRESH)).problem is None, "it is remembered"
    for most in (100, 10, 10):
        ec2.most, clock.now = most, clock.now + FRESH
        assert (await inventory.get(HERE, names, FRESH)).problem is unreadable
        assert ec2.page <= 250
    ec2.most = 60
    clock.now += FRESH
    assert (await inventory.get(HERE, names, FRESH)).problem is None
    inventory.clear()
    ec2.most = 1000
    assert (await inventory.get(HERE, names, FRESH)).problem is None
    assert ec2.page == 1000
    for unreadable in (
        AwsError(ErrorClass.TRANSIENT, "UnreadableAnswer", status=403, service="ec2"),
        AwsError(ErrorClass.TRANSIENT, "UnreadableAnswer", status=200, service="sts"),
        AwsError(ErrorClass.TRANSIENT, "500", status=500, service="ec2"),
    ):
        ec2.most, clock.now = 10, clock.now + FRESH
        assert (await inventory.get(HERE, names, FRESH)).problem is unreadable
        ec2.most, clock.now = 1000, clock.now + FRESH
        assert (await inventory.get(HERE, names, FRESH)).problem is None
        assert ec2.page == 1000, "the page was not what could not be read"
