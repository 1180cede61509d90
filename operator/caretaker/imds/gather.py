"""The reads of one policy: the regions of its nodes, and why one could not be read.

Inputs: the inventory, the policies, the nodes with their InstanceRefs. It makes no decisions: plan.py does.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Selector, Spec
from caretaker.api.objects import Node
from caretaker.api.times import format_time
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.imds.conditions import Problem, StatusInput
from caretaker.imds.enforce_input import recorded
from caretaker.imds.instance_ref import InstanceRef, most
from caretaker.imds.inventory import Inventory, Region
from caretaker.imds.launch_templates import LaunchResult, LaunchTemplateProvider
from caretaker.imds.plan import Member, PlanInput, Policy
from caretaker.imds.resource import ParsedPolicy, user_of
from caretaker.imds.selection import names, selects
from caretaker.kube.errors import ApiError
from caretaker.runtime.tasks import in_pieces

SERVICE: Final = "ec2"
NodeRef = tuple[Node, InstanceRef]


class GatherResult(msgspec.Struct, frozen=True):
    """The result. `age`: seconds since the oldest full read of a region; `targets` by region; `lost`:
    responses lacked some instances, which are read again soon."""

    status_input: StatusInput
    plan_input: PlanInput
    age: float
    targets: Mapping[str, ClientKey]
    lost: bool = False


class PolicyReader:
    """The reader of all policies. `operator`: it is the operator that asks, and a problem is reported with
    its fix."""

    def __init__(
        self, inventory: Inventory, provider: LaunchTemplateProvider, *, operator: bool = True
    ) -> None:
        self._inventory = inventory
        self._provider = provider
        self._operator = operator

    def clear(self) -> None:
        """Another process may have changed everything."""
        self._inventory.clear()
        self._provider.clear()

    async def gather(
        self,
        mine: ParsedPolicy,
        policies: Sequence[Policy],
        nodes: Sequence[NodeRef],
        unsure: Collection[str] = (),
    ) -> GatherResult:
        """Read the unknown and outdated instances. `mine` has a spec; `unsure` are asked for in any case.
        Pending instances are polled if this policy may have changed them."""
        assert mine.spec is not None  # noqa: S101 - the caller has checked
        changed = recorded(mine.status.canary, mine.status.changed)
        wanted = await _wanted(mine.spec, nodes, changed)
        aws = mine.spec.aws
        targets = {name: ClientKey.of(aws.within(name), SERVICE, user=user_of("")) for name in sorted(wanted)}

        async def ask(name: str, target: ClientKey) -> Region:
            if mine.enforces:
                await self._inventory.poll(target)
                await self._inventory.again(target, wanted[name] & set(unsure), time.monotonic())
            return await self._inventory.get(target, wanted[name], mine.resync)

        # Side by side: one that is slow holds up no other.
        found = await asyncio.gather(*(ask(name, target) for name, target in targets.items()))
        regions = dict(zip(targets, found, strict=True))
        members = [_member(node, ref, regions.get(ref.region)) for node, ref in nodes]
        members = _apart(_at_home(members, self._inventory.cluster))
        here = [m for m in members if m.ref.region in regions and not m.ref.skipped]
        sources = await self._sources(mine, policies, here)
        problems = {
            name: problem_of(region.problem, self._operator)
            for name, region in regions.items()
            if region.problem is not None
        }
        now = time.monotonic()
        asked = [region.at for region in regions.values() if region.at]
        age = now - min(asked, default=now)
        status_input = StatusInput(
            mine,
            problems=tuple(problems[name] for name in sorted(problems)),
            scanned=format_time(time.time() - age) if asked else None,
            asked=bool(regions) and not problems,
            source_problems=tuple(problem_of(problem, self._operator) for problem in sources.problems),
        )
        unasked = {name: problem.message for name, problem in problems.items()}
        plan_input = PlanInput(
            *(mine.meta.name, policies, members, unasked, mine.spec.aws.region),
            launching=sources.launching,
            stored=mine.status.unexpected,
        )
        lost = any(not region.lost.isdisjoint(wanted[name]) for name, region in regions.items())
        return GatherResult(status_input, plan_input, age, targets, lost)

    async def _sources(
        self, mine: ParsedPolicy, policies: Sequence[Policy], members: Sequence[Member]
    ) -> LaunchResult:
        """The sources of future nodes, if the policy has nodes."""
        spec = mine.spec
        assert spec is not None  # noqa: S101 - the caller has checked

        async def meant(*selectors: Selector) -> list[Member]:
            found = in_pieces(members)
            return [m async for m in found if any(selects(one, m.node.labels, m.groups) for one in selectors)]

        every = [policy.selector for policy in policies]
        own, max_age = await meant(spec.selector), mine.resync
        optional = await _optional(policies, members, {member.ref.region for member in own})
        return await self._provider.get(spec.aws, own, lambda: meant(*every), max_age, optional)


async def _optional(
    policies: Sequence[Policy], members: Sequence[Member], regions: Collection[str]
) -> set[str]:
    """Those of the regions in which a policy wants optional tokens of a node. Each selector is asked once for
    all nodes that no selector tells apart."""
    loose = [policy for policy in policies if policy.options.http_tokens == "optional"]
    keys = sorted({key for policy in loose for key in names(policy.selector)})
    found, known = set[str](), set[tuple[object, ...]]()
    async for member in in_pieces(members if loose else ()):
        region, labels = member.ref.region, member.node.labels
        if region in found or region not in regions:
            continue
        alike = (region, member.groups, *map(labels.get, keys))
        here = [one.selector for one in loose if one.region in ("", region)] if alike not in known else []
        known.add(alike)
        if any(selects(one, labels, member.groups) for one in here):
            found.add(region)
    return found


async def _wanted(spec: Spec, nodes: Sequence[NodeRef], changed: Collection[str]) -> dict[str, set[str]]:
    """Region -> instances of this policy's nodes, and those that it has changed. Groups do not count here,
    since they may be known only by EC2's tags."""
    wanted: dict[str, set[str]] = {}
    by_labels = msgspec.structs.replace(spec.selector, groups=())
    async for node, ref in in_pieces(nodes):
        here = ref.region and spec.aws.region in ("", ref.region)
        if here and (ref.instance in changed or selects(by_labels, node.labels, ref.groups)):
            wanted.setdefault(ref.region, set()).add(ref.instance)
    return wanted


def _member(node: Node, ref: InstanceRef, region: Region | None) -> Member:
    observed = region.instances.get(ref.instance) if region is not None else None
    group = observed.group if observed is not None else ""
    groups = (*ref.groups, ("AutoScalingGroup", group)) if group else ref.groups
    return Member(node, ref, observed, groups)


def _at_home(members: list[Member], cluster: str) -> list[Member]:
    """Skip nodes whose instance has the tags of another cluster, since a Node may name any instance.
    `cluster`: name of this cluster, "" = derive it from the instances."""
    clusters = Counter(one.observed.clusters for one in members if one.observed is not None)
    ours = cluster or most(clusters)
    others = {names for names in clusters if names and ours not in names}
    if not others:
        return members
    return [
        msgspec.structs.replace(one, ref=msgspec.structs.replace(one.ref, skipped=Reason.OTHER_CLUSTER))
        if one.observed is not None and one.observed.clusters in others
        else one
        for one in members
    ]


def _apart(members: list[Member]) -> list[Member]:
    """Skip instances that several Nodes name: their group and their readiness are ambiguous."""
    named = [one.ref.instance for one in members if one.ref.instance]
    if len(set(named)) == len(named):
        return members
    counts = Counter(named)
    return [
        msgspec.structs.replace(one, ref=msgspec.structs.replace(one.ref, skipped=Reason.SAME_PROVIDER_ID))
        if counts[one.ref.instance] > 1 and not one.ref.skipped
        else one
        for one in members
    ]


def problem_of(error: AwsError | ApiError, operator: bool) -> Problem:
    """For status."""
    if isinstance(error, ApiError):
        code: str = Reason.PERMISSION_DENIED if error.forbidden else Reason.NOT_ASKED
    else:
        code = str(error.error_class)
    return Problem(code, f"{error}{advice(error) if operator else ''}")


def advice(error: AwsError | ApiError) -> str:
    """An action of the user, as the end of a message; "" = none."""
    if isinstance(error, ApiError):
        return "; give the operator's role the verb that is named" if error.forbidden else ""
    credentials = "give the operator credentials, or set spec.aws.roleARN"
    found = error.remedy("spec.aws", credentials, "the identity that spec.aws names")
    return f"; {found}" if found else ""
