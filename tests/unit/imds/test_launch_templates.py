"""How often sources of future nodes are asked for, and what becomes of failures."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import Aws, Options
from caretaker.api.objects import Node
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.imds import inventory
from caretaker.imds import launch_templates as module
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.imds.launch_templates import LaunchResult, LaunchTemplateProvider
from caretaker.imds.plan import Member
from caretaker.kube.errors import ApiError
from testing.clock import Clock

HERE = "eu-west-1"
FRESH = 900.0
GOOD = {
    "HttpTokens": "required",
    "HttpPutResponseHopLimit": 2,
    "HttpEndpoint": "enabled",
    "InstanceMetadataTags": "disabled",
}
THROTTLED = AwsError(ErrorClass.THROTTLED, "RequestLimitExceeded")
DENIED = AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation")


class Cloud:
    """AWS and the API server: every call as (operation, what it names)."""

    def __init__(self) -> None:
        self.groups: dict[str, tuple[str, str]] = {}  # name -> template, version
        self.templates: dict[str, int] = {"lt-1": 3}  # id -> latest; the default is 1
        self.stacks: dict[str, str] = {}
        self.options: dict[str, Any] = GOOD  # of all templates
        self.unset: set[int] = set()  # versions without options
        self.defaults: dict[str, Any] = {}  # of the account
        self.calls: list[tuple[str, Any]] = []
        self.errors: dict[str, Exception] = {}
        self.classes: dict[str, dict[str, Any]] = {}
        self.unserved: set[str] = set()  # paths

    def _call(self, operation: str, what: Any) -> None:
        self.calls.append((operation, what))
        if operation in self.errors:
            raise self.errors[operation]

    async def describe_auto_scaling_groups(self, **given: Any) -> Any:
        names = list(given["AutoScalingGroupNames"])
        self._call("groups", names)
        assert len(names) <= given["MaxRecords"] == 100
        first = int(given.get("NextToken", 0))
        known = [name for name in names if name in self.groups]
        found = [
            {
                "AutoScalingGroupName": name,
                "LaunchTemplate": {
                    "LaunchTemplateId": self.groups[name][0],
                    "Version": self.groups[name][1],
                },
            }
            for name in known[first : first + 60]
        ]
        more = {"NextToken": str(first + 60)} if first + 60 < len(known) else {}
        return {"AutoScalingGroups": found, **more}

    async def describe_launch_template_versions(self, **given: Any) -> Any:
        name = given.get("LaunchTemplateId") or given["LaunchTemplateName"]
        self._call("versions", (name, *given["Versions"]))
        if name not in self.templates:
            raise AwsError(ErrorClass.NOT_FOUND, "InvalidLaunchTemplateId.NotFound")
        latest = self.templates[name]
        asked = given["Versions"]
        numbers = {int({"$Latest": latest, "$Default": 1}.get(one, one)) for one in asked}
        if max(numbers) > latest:
            raise AwsError(ErrorClass.NOT_FOUND, "InvalidLaunchTemplateId.VersionNotFound")
        found = [
            {
                "LaunchTemplateId": name,
                "VersionNumber": number,
                "DefaultVersion": number == 1,
                "LaunchTemplateData": {} if number in self.unset else {"MetadataOptions": self.options},
            }
            for number in sorted(numbers)
        ]
        return {"LaunchTemplateVersions": found}

    async def describe_tags(self, **given: Any) -> Any:
        ids, keys = (one["Values"] for one in given["Filters"])
        assert keys == ["aws:cloudformation:stack-name"]
        self._call("tags", list(ids))
        return {"Tags": [{"ResourceId": i, "Value": self.stacks[i]} for i in ids if i in self.stacks]}

    async def get_instance_metadata_defaults(self) -> Any:
        self._call("defaults", None)
        return {"AccountLevel": {"ManagedBy": "account", **self.defaults}}

    async def list(self, path: str, kind: Any) -> Any:
        self._call("classes", path)
        if path in self.unserved:
            raise ApiError(404, "NotFound")
        found = [
            {"metadata": {"name": name}, "spec": {"metadataOptions": options}}
            for name, options in self.classes.items()
        ]
        return [msgspec.convert(one, kind) for one in found], "1"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for one in (module, inventory):
        monkeypatch.setattr(one, "time", made)
    return made


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def provider(cloud: Cloud, clock: Clock) -> LaunchTemplateProvider:
    return LaunchTemplateProvider(lambda _: cloud, lambda _: cloud, cloud)  # type: ignore[arg-type,return-value]


def defaults(found: LaunchResult) -> dict[str, Options]:
    return {region: account.defaults for region, account in found.launching.accounts.items()}


def member(labels: dict[str, str] | None = None, *, group: str = "", region: str = HERE) -> Member:
    node = Node("n", "u", labels or {}, provider_id=f"aws:///{region}a/i-0abc1234")
    ref, seen = instance_ref_of(node), ObservedInstance(Options(), group=group)
    tagged = (("AutoScalingGroup", group),) if group else ()
    return Member(node, ref, seen, (*ref.groups, *tagged))


def eks(version: str = "1", template: str = "lt-1") -> Member:
    prefix = "eks.amazonaws.com"
    labels = {f"{prefix}/nodegroup": "apps", f"{prefix}/sourceLaunchTemplateId": template}
    return member({**labels, f"{prefix}/sourceLaunchTemplateVersion": version})


KARPENTER = member({"karpenter.sh/nodepool": "p", "karpenter.k8s.aws/ec2nodeclass": "default"})


async def get(
    provider: LaunchTemplateProvider,
    *mine: Member,
    every: tuple[Member, ...] = (),
    optional: tuple[str, ...] = (),
) -> LaunchResult:
    async def all_of_them() -> tuple[Member, ...]:
        return (*mine, *every)

    return await provider.get(Aws(), mine, all_of_them, FRESH, optional)


async def test_all_policies_share_one_look_a_resync(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.groups = {"a": ("lt-1", "2"), "b": ("lt-1", "$Latest"), "c": ("lt-2", "$Default")}
    cloud.templates["lt-2"] = 1
    every = (member(group="a"), member(group="b"), member(group="c"), eks("3"))
    for _ in range(3):
        for one in every:
            await get(provider, one, every=every)
        assert cloud.calls == [
            ("groups", ["a", "b", "c"]),
            ("versions", ("lt-1", "$Latest", "$Default", "2", "3")),
            ("versions", ("lt-2", "$Latest", "$Default")),
            ("tags", ["lt-1", "lt-2"]),
        ]
        cloud.calls.clear()
        clock.now += FRESH


async def test_nothing_is_asked_for_sorts_of_sources_that_the_policy_does_not_need(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    every = (member(group="a"), KARPENTER)
    await get(provider, member(), every=every)
    assert cloud.calls == []
    await get(provider, eks(), every=every)
    assert [operation for operation, _ in cloud.calls] == ["versions", "tags"]


async def test_what_is_new_alone_is_asked_for(provider: LaunchTemplateProvider, cloud: Cloud) -> None:
    cloud.groups = {"a": ("lt-1", "$Latest"), "b": ("lt-1", "2")}
    await get(provider, member(group="a"))
    cloud.calls.clear()
    found = await get(provider, member(group="a"), member(group="b"))
    assert cloud.calls == [
        ("groups", ["b"]),
        ("versions", ("lt-1", "$Latest", "$Default", "2")),
        ("tags", ["lt-1"]),
    ]
    template = found.launching.templates[HERE, "lt-1"]
    assert template is not None
    assert sorted(template.versions) == [1, 2, 3]


async def test_names_go_by_100_a_call_and_pages_are_followed(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    cloud.groups = {f"g{number:03d}": ("lt-1", "$Latest") for number in range(150)}
    found = await get(provider, *(member(group=name) for name in cloud.groups))
    assert len(found.launching.groups) == 150
    assert all(group is not None for group in found.launching.groups.values())
    asked = [len(what) for operation, what in cloud.calls if operation == "groups"]
    assert asked == [100, 100, 50]


async def test_what_is_not_there_is_asked_for_once_and_fails_nothing_else(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    cloud.stacks["lt-1"] = "net"
    for _ in range(2):
        found = await get(provider, member(group="gone"), eks("9"), eks("1", "lt-9"), eks("1", "garbage"))
    assert found.problems == ()
    assert found.launching.groups == {(HERE, "gone"): None}
    template = found.launching.templates[HERE, "lt-1"]
    assert template is not None
    assert (sorted(template.versions), template.stack) == ([1, 3], "net")
    assert found.launching.templates[HERE, "lt-9"] is None
    assert found.launching.templates[HERE, "garbage"] is None
    asked = [what for operation, what in cloud.calls if operation == "versions"]
    assert len(asked) == 4, "lt-1 once more, without the version that is not there"


async def test_a_version_that_is_gone_hides_none_that_is_there(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    cloud.templates["lt-1"] = 8
    for _ in range(2):
        found = await get(provider, eks("5"), eks("9"))
    template = found.launching.templates[HERE, "lt-1"]
    assert template is not None
    assert (sorted(template.versions), template.latest, template.default) == ([1, 5, 8], 8, 1)
    assert len([operation for operation, _ in cloud.calls if operation == "versions"]) == 4


@pytest.mark.parametrize(
    ("denied", "groups", "templates", "stack"),
    [
        pytest.param("groups", [], ["lt-1"], "", id="groups: those of node groups are looked at"),
        pytest.param("versions", ["a"], [], None, id="templates: groups are known"),
        pytest.param("tags", ["a"], ["lt-1", "lt-2"], None, id="tags: all else is known"),
    ],
)
async def test_a_denied_action_is_told_and_waited_out_while_the_rest_is_known(
    provider: LaunchTemplateProvider,
    cloud: Cloud,
    clock: Clock,
    denied: str,
    groups: list[str],
    templates: list[str],
    stack: str | None,
) -> None:
    cloud.groups = {"a": ("lt-2", "$Latest")}
    cloud.templates["lt-2"] = 1
    cloud.errors[denied] = DENIED
    mine = (member(group="a"), eks())
    found = await get(provider, *mine)
    assert found.problems == (DENIED,)
    assert [name for _, name in found.launching.groups] == groups
    assert sorted(name for _, name in found.launching.templates) == templates
    assert {one.stack for one in found.launching.templates.values() if one} == (
        {stack} if templates else set()
    )
    tries = []
    for wait in (15.0, 30.0, 60.0, 300.0):
        clock.now += wait - 1
        before = len(cloud.calls)
        assert (await get(provider, *mine)).problems == (DENIED,)
        assert len(cloud.calls) == before, wait
        clock.now += 1
        await get(provider, *mine)
        tries.append([operation for operation, _ in cloud.calls[before:]])
    assert tries == [[denied]] * 4
    cloud.errors.clear()
    clock.now += 300
    found = await get(provider, *mine)
    assert found.problems == ()
    assert sorted(name for _, name in found.launching.templates) == ["lt-1", "lt-2"]
    assert {one.stack for one in found.launching.templates.values() if one} == {""}


@pytest.mark.parametrize("unset", sorted(GOOD))
async def test_the_accounts_defaults_are_read_once_a_resync_where_an_option_is_not_set(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock, unset: str
) -> None:
    cloud.groups = {"a": ("lt-1", "$Latest"), "b": ("lt-1", "$Latest")}
    await get(provider, member(group="a"))
    assert [operation for operation, _ in cloud.calls] == ["groups", "versions", "tags"]
    cloud.options = {name: value for name, value in GOOD.items() if name != unset}
    for value in ("optional", "required"):
        cloud.defaults = {"HttpTokens": value, "HttpTokensEnforced": "disabled"}
        clock.now += FRESH
        cloud.calls.clear()
        for _ in range(2):
            found = await get(provider, member(group="a"), every=(member(group="b"),))
        assert [operation for operation, _ in cloud.calls].count("defaults") == 1
        assert defaults(found) == {HERE: Options(http_tokens=value)}  # type: ignore[arg-type]
    assert provider.calls == 3 + 2 * 4


@pytest.mark.parametrize(
    ("version", "calls"), [("2", 1), ("$Latest", 0)], ids=["the pinned one", "another that nothing uses"]
)
async def test_only_versions_that_a_group_launches_from_count(
    provider: LaunchTemplateProvider, cloud: Cloud, version: str, calls: int
) -> None:
    cloud.unset = {2}
    cloud.groups = {"a": ("lt-1", version)}
    await get(provider, member(group="a"), eks("2"))
    assert [operation for operation, _ in cloud.calls].count("defaults") == calls


async def test_for_node_groups_of_eks_alone_the_defaults_are_not_read(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    cloud.options = {}
    found = await get(provider, eks("2"))
    assert [operation for operation, _ in cloud.calls] == ["versions", "tags"]
    assert defaults(found) == {}


OPEN = {**GOOD, "HttpTokens": "optional"}


@pytest.mark.parametrize(
    ("mine", "options", "classes", "optional", "calls"),
    [
        pytest.param(member(group="a"), OPEN, {}, (), 1, id="a group launches with optional tokens"),
        pytest.param(eks("2"), OPEN, {}, (), 1, id="a node group of EKS"),
        pytest.param(eks("2"), GOOD, {}, (), 0, id="tokens are required"),
        pytest.param(KARPENTER, GOOD, {"default": {"httpTokens": "optional"}}, (), 1, id="Karpenter"),
        pytest.param(KARPENTER, GOOD, {"default": {}}, (), 0, id="Karpenter requires them by itself"),
        pytest.param(KARPENTER, GOOD, {"other": {"httpTokens": "optional"}}, (), 0, id="another class"),
        pytest.param(member(), GOOD, {}, (HERE,), 1, id="a policy wants them so, of nodes without a source"),
        pytest.param(member(group="a"), GOOD, {}, (HERE,), 1, id="a policy wants them so"),
        pytest.param(member(group="a"), GOOD, {}, (), 0, id="nobody wants them so"),
    ],
)
async def test_whether_the_account_enforces_tokens_is_read_only_where_that_decides(
    provider: LaunchTemplateProvider,
    cloud: Cloud,
    clock: Clock,
    mine: Member,
    options: dict[str, Any],
    classes: dict[str, dict[str, Any]],
    optional: tuple[str, ...],
    calls: int,
) -> None:
    cloud.groups, cloud.options, cloud.classes = {"a": ("lt-1", "$Latest")}, options, classes
    for value in ("enabled", "disabled"):
        cloud.defaults = {"HttpTokensEnforced": value, "ManagedBy": "declarative-policy"}
        cloud.calls.clear()
        for _ in range(3):
            found = await get(provider, mine, optional=optional)
        assert [operation for operation, _ in cloud.calls].count("defaults") == calls
        accounts = found.launching.accounts
        assert [one.enforces for one in accounts.values()] == [value == "enabled"] * calls
        assert all("declarative policy" in one.held for one in accounts.values())
        clock.now += FRESH


async def test_an_account_that_could_not_be_read_is_waited_out(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.errors["defaults"] = DENIED
    for wait in (15, 30, 60, 300):
        for _ in range(3):
            found = await get(provider, member(), optional=(HERE,))
        assert (found.problems, found.launching.accounts) == ((DENIED,), {})
        assert cloud.calls == [("defaults", None)]
        cloud.calls.clear()
        clock.now += wait
    cloud.errors.clear()
    found = await get(provider, member(), optional=(HERE,))
    assert (found.problems, [*found.launching.accounts]) == ((), [HERE])


def refusals(found: LaunchResult) -> str:
    (told,) = found.launching.refusals.values()
    return told


async def test_the_last_answer_of_the_account_counts_while_it_cannot_be_asked_again(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.defaults = {"HttpTokensEnforced": "enabled"}
    first = await get(provider, member(), optional=(HERE,))
    assert "the account enforces IMDSv2" in refusals(first)
    for error in (THROTTLED, DENIED):
        clock.now += FRESH
        cloud.errors["defaults"] = error
        found = await get(provider, member(), optional=(HERE,))
        assert (found.problems, found.launching.accounts) == ((error,), {}), "its sources are not known"
        assert refusals(found) == refusals(first), "no optional tokens are sent"
    cloud.errors, cloud.defaults = {}, {}
    clock.now += FRESH
    found = await get(provider, member(), optional=(HERE,))
    assert (found.problems, refusals(found)) == ((), "")


@pytest.mark.parametrize(("error", "held"), [(THROTTLED, True), (DENIED, False)])
async def test_before_its_first_answer_optional_tokens_wait_for_a_read_that_may_succeed_by_itself(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock, error: AwsError, held: bool
) -> None:
    cloud.errors["defaults"] = error
    for _ in range(3):
        found = await get(provider, member(), optional=(HERE,))
        assert ("not sent while it could not be read" in refusals(found)) == held
        clock.now += 10
    cloud.errors.clear()
    clock.now += FRESH
    assert refusals(await get(provider, member(), optional=(HERE,))) == ""


async def test_a_read_that_is_needed_no_more_is_no_problem(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.groups, cloud.errors["defaults"] = {"a": ("lt-1", "$Latest"), "b": ("lt-1", "2")}, DENIED
    cloud.unset = {2}
    assert (await get(provider, member(group="a"), optional=(HERE,))).problems == (DENIED,)
    a, b = member(group="a"), member(group="b")
    for mine, problems in ((a, ()), (KARPENTER, ()), (b, (DENIED,)), (a, ())):
        assert (await get(provider, mine)).problems == problems
    clock.now += FRESH
    assert (await get(provider, member(group="a"))).problems == ()


async def test_each_region_has_defaults_of_its_own(cloud: Cloud, clock: Clock) -> None:
    other = Cloud()
    cloud.options = other.options = {}
    cloud.groups = other.groups = {"a": ("lt-1", "1")}
    cloud.defaults, other.defaults = {"HttpTokens": "required"}, {"HttpTokens": "optional"}
    assert clock
    regions: Any = {HERE: cloud, "us-east-1": other}
    provider = LaunchTemplateProvider(
        lambda key: regions[key.region],
        lambda key: regions[key.region],
        cloud,  # type: ignore[arg-type]
    )
    found = await get(provider, member(group="a"), member(group="a", region="us-east-1"))
    assert defaults(found) == {
        HERE: Options(http_tokens="required"),
        "us-east-1": Options(http_tokens="optional"),
    }


@pytest.mark.parametrize(
    ("said", "known"),
    [
        pytest.param({}, Options(), id="nothing"),
        pytest.param(
            {"HttpTokens": "required", "HttpEndpoint": "no-preference", "HttpPutResponseHopLimit": -1},
            Options(http_tokens="required"),
            id="no preference",
        ),
        pytest.param({"HttpTokens": "something new"}, Options(), id="an unknown value"),
    ],
)
async def test_an_option_without_a_preference_has_no_default(
    provider: LaunchTemplateProvider, cloud: Cloud, said: dict[str, Any], known: Options
) -> None:
    cloud.groups, cloud.options, cloud.defaults = {"a": ("lt-1", "1")}, {}, said
    for _ in range(2):
        found = await get(provider, member(group="a"))
        assert defaults(found) == {HERE: known}
    assert [operation for operation, _ in cloud.calls].count("defaults") == 1


async def test_denied_defaults_are_told_and_waited_out_alone(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.groups, cloud.options = {"a": ("lt-1", "$Latest"), "b": ("lt-1", "$Latest")}, {}
    cloud.errors["defaults"] = DENIED
    for _ in range(2):
        found = await get(provider, member(group="a"))
        assert found.problems == (DENIED,)
        assert defaults(found) == {}
        assert [one.stack for one in found.launching.templates.values() if one] == [""]
    assert [operation for operation, _ in cloud.calls] == ["groups", "versions", "tags", "defaults"]
    found = await get(provider, member(group="a"), member(group="b"))
    assert found.launching.groups.keys() == {(HERE, "a"), (HERE, "b")}, "a new group is read at once"
    cloud.errors["tags"] = DENIED
    clock.now += FRESH
    cloud.calls.clear()
    assert (await get(provider, member(group="a"))).problems == (DENIED, DENIED)
    assert [operation for operation, _ in cloud.calls] == ["groups", "versions", "tags", "defaults"]
    cloud.errors.clear()
    clock.now += 30
    found = await get(provider, member(group="a"))
    assert (found.problems, defaults(found)) == ((), {HERE: Options()})


async def test_node_classes_are_listed_once_a_resync_and_may_come_later(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.errors["classes"] = ApiError(404, "NotFound")
    for _ in range(3):
        found = await get(provider, KARPENTER)
    assert (found.launching.classes, found.problems) == ({}, ())
    urls = [f"/apis/karpenter.k8s.aws/{version}/ec2nodeclasses" for version in ("v1", "v1beta1")]
    assert cloud.calls == [("classes", url) for url in urls]
    cloud.errors.clear()
    cloud.classes["default"] = {"httpProtocolIPv6": "enabled", "httpPutResponseHopLimit": 1}
    cloud.classes["later"] = {"httpTokens": "something new"}
    clock.now += FRESH
    found = await get(provider, KARPENTER)
    assert found.launching.classes == {
        "default": Options(1, None, None, "enabled", "disabled"),
        "later": Options(),
    }
    assert (await get(provider, member())).launching.classes is None, "no node of this policy comes from one"


async def test_node_classes_of_the_older_version_are_read_where_it_alone_is_served(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.unserved.add("/apis/karpenter.k8s.aws/v1/ec2nodeclasses")
    cloud.classes["default"] = {"httpPutResponseHopLimit": 1}
    found = await get(provider, KARPENTER)
    assert found.launching.classes == {"default": Options(1, instance_metadata_tags="disabled")}
    assert found.problems == ()
    cloud.errors["classes"] = problem = ApiError(403, "Forbidden", "cannot list")
    clock.now += FRESH
    assert (await get(provider, KARPENTER)).problems == (problem,)


async def test_node_classes_that_may_not_be_listed_are_told_and_tried_again(
    provider: LaunchTemplateProvider, cloud: Cloud, clock: Clock
) -> None:
    cloud.errors["classes"] = problem = ApiError(403, "Forbidden", 'cannot list resource "ec2nodeclasses"')
    for _ in range(3):
        found = await get(provider, KARPENTER)
        assert (found.launching.classes, found.problems) == (None, (problem,))
    assert len(cloud.calls) == 1
    cloud.errors.clear()
    clock.now += 15
    found = await get(provider, KARPENTER)
    assert (found.launching.classes, found.problems) == ({}, ())


async def test_regions_are_apart_and_another_leader_starts_anew(
    provider: LaunchTemplateProvider, cloud: Cloud
) -> None:
    cloud.groups = {"a": ("lt-1", "$Latest")}
    found = await get(provider, member(group="a"), member(group="a", region="us-east-1"))
    assert set(found.launching.groups) == {(HERE, "a"), ("us-east-1", "a")}
    assert provider.calls == len(cloud.calls) == 6
    provider.clear()
    await get(provider, member(group="a"))
    assert provider.calls == 9
