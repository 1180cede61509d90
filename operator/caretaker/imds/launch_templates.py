"""The sources of the cluster's future nodes: one read for all policies each resync, and one for new sources.

Inputs: AWS and the API server, the members of the cluster. As in inventory.py there is one lock for each
identity and region, and policies that ask at the same moment share one answer. DescribeAutoScalingGroups is
asked for 100 names at once, DescribeLaunchTemplateVersions once for a template, DescribeTags once for 100 of
them, GetInstanceMetadataDefaults once where the account decides, and the EC2NodeClasses are listed once; each
only if a node of the policy that asks comes from such a source. The account decides where a group's version
leaves an option unset, and where tokens are, or are to be, optional. This decides nothing and changes
nothing; failed reads are reported, and the audit of instances goes on without it.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.imds import Aws as AwsOfPolicy
from caretaker.api.imds import Options
from caretaker.api.objects import WireMeta
from caretaker.aws.ec2 import AutoScaling, Ec2, LaunchTemplateVersion
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.pages import batched, pages
from caretaker.imds.inventory import SharedRead
from caretaker.imds.launching import (
    DEFAULT,
    DEFAULTED,
    LATEST,
    STACK_TAG,
    UNREAD,
    Account,
    LaunchSnapshot,
    ScalingGroup,
    Template,
    TemplateRef,
    account_of,
    node_class_options,
    scaling_group,
    template_of,
)
from caretaker.imds.node_sources import launch_source_of
from caretaker.imds.plan import Member
from caretaker.imds.resource import user_of
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError

log = logging.getLogger(__name__)

NAMES: Final = 100  # groups of one call: DescribeAutoScalingGroups' largest page
IDS: Final = 100  # values of a filter: the vendor's limit is 200 in a call, in all filters
PAGE: Final = 200  # DescribeLaunchTemplateVersions' own limit
TAGS: Final = 1000  # DescribeTags' own limit
# The newest first: Karpenter served v1beta1 alone before version 1.0.
NODE_CLASSES: Final = tuple(f"/apis/karpenter.k8s.aws/{v}/ec2nodeclasses" for v in ("v1", "v1beta1"))


class Needs(msgspec.Struct):
    """The sources of some nodes: Auto Scaling groups, launch templates, EC2NodeClasses."""

    groups: set[str] = msgspec.field(default_factory=set)
    refs: set[TemplateRef] = msgspec.field(default_factory=set)
    classes: set[str] = msgspec.field(default_factory=set)


class LaunchResult(msgspec.Struct, frozen=True):
    """The sources, and the problems of failed reads."""

    launching: LaunchSnapshot
    problems: tuple[AwsError | ApiError, ...] = ()


class _NodeClassSpec(msgspec.Struct, rename="camel"):
    metadata_options: dict[str, Any] | None = None


class _NodeClass(msgspec.Struct):
    """Karpenter's EC2NodeClass, as far as it is read (Karpenter, "NodeClasses")."""

    metadata: WireMeta
    spec: _NodeClassSpec = msgspec.field(default_factory=_NodeClassSpec)


class _Account(SharedRead):
    """The account in a region. `last`: its last answer, None = there was none; `stale`: it has to be asked
    again. A denial holds up no other read."""

    last: Account | None = None
    stale = True

    def refusal(self) -> str:
        """By the last answer, also while the account cannot be asked again."""
        if self.last is not None:
            return self.last.refusal
        return UNREAD if isinstance(self.problem, AwsError) and self.problem.transient else ""


class _RegionCache(SharedRead):
    """The cache of a region for one identity."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, ScalingGroup | None] = {}
        self.templates: dict[str, Template | None] = {}
        self.asked: dict[str, set[str]] = {}  # versions of each template
        self.account = _Account()

    def forget(self) -> None:
        """All is asked for again."""
        self.groups, self.templates, self.asked, self.account.stale = {}, {}, {}, True
        self.at = time.monotonic()

    def of_groups(self, names: Iterable[str]) -> set[TemplateRef]:
        """The templates of these groups."""
        groups = map(self.groups.get, names)
        return {ref for group in groups if group is not None for ref in group.templates}

    def lacking(self, needs: Needs) -> dict[str, set[str]]:
        """The needed templates that are not known, with every version by number that was ever asked for."""
        wanted: dict[str, set[str]] = {}
        for ref in needs.refs | self.of_groups(needs.groups):
            wanted.setdefault(ref.template, set()).update({ref.version} - {LATEST, DEFAULT, ""})
        return {
            name: numbers | self.asked.get(name, set())
            for name, numbers in wanted.items()
            if name not in self.asked or not numbers <= self.asked[name]
        }

    def untagged(self) -> dict[str, str]:
        """id -> the name by which it is known, of templates whose stack is not known."""
        return {one.id: name for name, one in self.templates.items() if one is not None and one.stack is None}

    def complete(self, needs: Needs) -> bool:
        """Whether there is nothing to ask for."""
        return needs.groups <= self.groups.keys() and not self.lacking(needs) and not self.untagged()

    def account_decides(self, needs: Needs) -> bool:
        """Whether a group launches from a version that leaves an option to the account, or anything from one
        with optional tokens, which the account may refuse."""
        grouped = self.of_groups(needs.groups)
        for ref in grouped | needs.refs:
            template = self.templates.get(ref.template)
            version = template.version(ref.version) if template is not None else None
            if version is not None and (
                version.block.get("HttpTokens") == "optional"
                or (ref in grouped and DEFAULTED - version.block.keys())
            ):
                return True
        return False


class _Classes(SharedRead):
    """The cluster's EC2NodeClasses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Mapping[str, Options] | None = None


class LaunchTemplateProvider:
    """Regions by ClientKey, and the cluster's EC2NodeClasses. `calls` counts the requests to AWS."""

    def __init__(
        self,
        ec2: Callable[[ClientKey], Ec2],
        autoscaling: Callable[[ClientKey], AutoScaling],
        client: KubeClient,
    ) -> None:
        self.calls = 0
        self._ec2 = ec2
        self._autoscaling = autoscaling
        self._client = client
        self._caches: dict[ClientKey, _RegionCache] = {}
        self._classes = _Classes()

    async def get(
        self,
        aws: AwsOfPolicy,
        mine: Iterable[Member],
        every: Callable[[], Awaitable[Iterable[Member]]],
        max_age: float,
        optional: Collection[str] = (),
    ) -> LaunchResult:
        """The sources of the nodes `mine` of a policy, not older than `max_age` seconds.

        `every` answers the nodes of all policies: where something has to be asked, it is asked for them, too.
        `optional`: regions where a policy wants optional tokens.
        """
        needs = needs_of(mine)
        groups: dict[tuple[str, str], ScalingGroup | None] = {}
        templates: dict[tuple[str, str], Template | None] = {}
        accounts: dict[str, Account] = {}
        refusals: dict[str, str] = {}
        problems: list[AwsError | ApiError] = []
        classes = None
        if any(own.classes for own in needs.values()):
            classes = await self._node_classes(max_age)
            problems += [self._classes.problem] if self._classes.problem is not None else []
        loose = {name for name, one in (classes or {}).items() if one.http_tokens == "optional"}
        for region in sorted({*needs, *optional}):
            own = needs.get(region, Needs())
            tokens = region in optional or not loose.isdisjoint(own.classes)
            cache, decides = await self._region(aws.within(region), own, every, max_age, tokens=tokens)
            groups |= {(region, name): group for name, group in cache.groups.items()}
            templates |= {(region, name): template for name, template in cache.templates.items()}
            account, refusals[region] = cache.account, cache.account.refusal()
            accounts |= {region: account.last} if account.last is not None and not account.stale else {}
            failed = (cache.problem, account.problem if decides else None)
            problems += [one for one in failed if one is not None]
        return LaunchResult(LaunchSnapshot(groups, templates, classes, accounts, refusals), tuple(problems))

    def clear(self) -> None:
        """Another process may have changed everything."""
        self._caches.clear()
        self._classes = _Classes()

    # ---------------------------------------------------------------- AWS

    async def _region(
        self,
        spec: AwsSpec,
        own: Needs,
        every: Callable[[], Awaitable[Iterable[Member]]],
        max_age: float,
        *,
        tokens: bool,
    ) -> tuple[_RegionCache, bool]:
        """And whether the account decides. `tokens`: it decides on optional ones."""
        user = user_of("")
        ec2, autoscaling = ClientKey.of(spec, "ec2", user=user), ClientKey.of(spec, "autoscaling", user=user)
        cache = self._caches.setdefault(ec2, _RegionCache())
        if not (own.groups or own.refs or tokens):
            return cache, False
        async with cache.lock:
            if cache.due(max_age):
                cache.forget()
            if time.monotonic() >= cache.again_at and not cache.complete(own):
                log.debug("reading the sources of future nodes from AWS", extra={"forgot": cache.at})
                await self._ask(
                    cache,
                    self._ec2(ec2),
                    self._autoscaling(autoscaling),
                    own,
                    needs_of(await every()).get(spec.region, own),
                )
            decides = tokens or cache.account_decides(own)
            if decides and cache.account.stale and time.monotonic() >= cache.account.again_at:
                await self._ask_account(cache.account, self._ec2(ec2))
        return cache, decides

    async def _ask(
        self, cache: _RegionCache, ec2: Ec2, autoscaling: AutoScaling, own: Needs, every: Needs
    ) -> None:
        """Ask for the unknown names and versions that all policies need, of the sorts that this one needs."""
        problem: AwsError | None = None
        names = (own.groups | every.groups) - cache.groups.keys() if own.groups else set()
        try:
            for some in batched(sorted(names), NAMES):
                found = await self._groups(autoscaling, some)
                cache.groups |= {name: found.get(name) for name in some}
        except AwsError as error:
            problem = error
        wanted = Needs(own.groups | every.groups if own.groups else set(), own.refs | every.refs)
        try:
            for name, numbers in sorted(cache.lacking(wanted).items()):
                cache.templates[name] = await self._template(ec2, name, numbers)
                cache.asked[name] = numbers
            await self._tags(cache, ec2)
        except AwsError as error:
            problem = problem or error
        cache.done(problem)

    async def _ask_account(self, account: _Account, ec2: Ec2) -> None:
        problem: AwsError | None = None
        try:
            self.calls += 1
            account.last = account_of((await ec2.get_instance_metadata_defaults())["AccountLevel"])
            account.stale = False
        except AwsError as error:
            problem = error
        account.done(problem)

    async def _groups(self, autoscaling: AutoScaling, names: Sequence[str]) -> dict[str, ScalingGroup]:
        found: dict[str, ScalingGroup] = {}
        given: dict[str, Any] = {
            "AutoScalingGroupNames": names,
            "IncludeInstances": False,
            "MaxRecords": NAMES,
        }
        async for page in pages(autoscaling.describe_auto_scaling_groups, **given):
            self.calls += 1
            found |= {one["AutoScalingGroupName"]: scaling_group(one) for one in page["AutoScalingGroups"]}
        return found

    async def _template(self, ec2: Ec2, name: str, numbers: Collection[str]) -> Template | None:
        """None: there is none. One version that is not there fails the call for all: then each is asked for
        by itself."""
        try:
            return template_of(await self._versions(ec2, name, (LATEST, DEFAULT, *sorted(numbers))))
        except AwsError as error:
            if not _absent(error):
                raise
            if not (numbers and error.not_found and "Version" in error.code):
                return None
        found: list[LaunchTemplateVersion] = []
        for some in ((LATEST, DEFAULT), *((one,) for one in sorted(numbers) if len(numbers) > 1)):
            try:
                found += await self._versions(ec2, name, some)
            except AwsError as error:
                if not _absent(error):
                    raise
        return template_of(found)

    async def _versions(self, ec2: Ec2, name: str, versions: Sequence[str]) -> list[LaunchTemplateVersion]:
        by = {"LaunchTemplateId": name} if name.startswith("lt-") else {"LaunchTemplateName": name}
        found: list[LaunchTemplateVersion] = []
        given: dict[str, Any] = {"Versions": versions, "MaxResults": PAGE, **by}
        async for page in pages(ec2.describe_launch_template_versions, **given):
            self.calls += 1
            found += page["LaunchTemplateVersions"]
        return found

    async def _tags(self, cache: _RegionCache, ec2: Ec2) -> None:
        """Learn which templates belong to a stack. By filter: an id that is not there fails no call."""
        names = cache.untagged()
        for some in batched(sorted(names), IDS):
            stacks = await self._stacks(ec2, some)
            for one in some:
                template = cache.templates[names[one]]
                if template is not None:
                    tagged = msgspec.structs.replace(template, stack=stacks.get(one, ""))
                    cache.templates[names[one]] = tagged

    async def _stacks(self, ec2: Ec2, ids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        which = [{"Name": "resource-id", "Values": ids}, {"Name": "key", "Values": [STACK_TAG]}]
        async for page in pages(ec2.describe_tags, Filters=which, MaxResults=TAGS):
            self.calls += 1
            found |= {tag["ResourceId"]: tag.get("Value", "") for tag in page["Tags"]}
        return found

    # ---------------------------------------------------------------- Karpenter

    async def _node_classes(self, max_age: float) -> Mapping[str, Options] | None:
        """By name; none where their CRD is absent, None when they could not be listed."""
        classes = self._classes
        async with classes.lock:
            if classes.due(max_age) or (classes.problem is not None and time.monotonic() >= classes.again_at):
                classes.at, problem = time.monotonic(), None
                try:
                    classes.found = await self._served()
                except ApiError as error:
                    classes.found, problem = None, error
                classes.done(problem)
            return classes.found

    async def _served(self) -> dict[str, Options]:
        """By the first version of the API that is served."""
        for url in NODE_CLASSES:
            try:
                listed, _ = await self._client.list(url, _NodeClass)
            except ApiError as error:
                if not error.not_found:
                    raise
                continue
            return {one.metadata.name: node_class_options(one.spec.metadata_options or {}) for one in listed}
        return {}


def needs_of(members: Iterable[Member]) -> dict[str, Needs]:
    """By region."""
    found: dict[str, Needs] = {}
    for member in {_alike(one): one for one in members if one.groups}.values():
        launch = launch_source_of(member.groups, member.ref, member.observed)
        needs = found.setdefault(member.ref.region, Needs())
        if launch is None:
            continue
        if launch.kind == "EC2NodeClass":
            needs.classes.add(launch.name)
        elif launch.kind == "AutoScalingGroup":
            needs.groups.add(launch.name)
        if launch.template:
            needs.refs.add(TemplateRef(launch.template, launch.version))
    return found


def _alike(member: Member) -> tuple[Any, ...]:
    """The same for nodes that come from the same: there are thousands of them, and a handful of these."""
    ref, observed = member.ref, member.observed
    tags = (observed.group, observed.template, observed.version) if observed is not None else ()
    return member.groups, ref.region, ref.node_class, ref.template, ref.version, tags


def _absent(error: AwsError) -> bool:
    return error.not_found or error.invalid
