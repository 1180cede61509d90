"""Passes of planners over 5,000 nodes, or one message: what a pass does in one turn of the event loop.

What it does in pieces, with other tasks in between, is done before: the eligibility of nodes, and what
policies want of them.
"""

from functools import lru_cache
from typing import Any, Final

import msgspec

from caretaker.api.daemontask import DaemonTask, Result
from caretaker.api.imds import Options, Selector
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Filter
from caretaker.daemontask import events as task_events
from caretaker.daemontask import plan as task_plan
from caretaker.daemontask import recheck
from caretaker.daemontask.ecs import plan as ecs_plan
from caretaker.daemontask.ecs import snapshot as ecs_snapshot
from caretaker.daemontask.ecs import status as ecs_status
from caretaker.daemontask.ecs.check import ServiceState
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.imds import plan as policy_plan
from caretaker.imds import status as policy_status
from caretaker.imds.conditions import StatusInput
from caretaker.imds.enforce_input import EnforceInput
from caretaker.imds.probe import ProbeState
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.verify import Probing
from caretaker.s3refresh import plan as refresh_plan
from caretaker.s3refresh import snapshot as refresh_snapshot
from caretaker.s3refresh.debounce import DirtyScope, TargetState
from caretaker.s3refresh.envelope import ObjectEvent, Parsed
from caretaker.s3refresh.folders import MAX_BYTES, MAX_FOLDERS, Scope, length, of_folder, union
from caretaker.s3refresh.match import EventMatcher, Matches, Share, by_bucket, joined
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.receiver import PASS_EVENTS
from fuzz import fleet
from fuzz.fleet import NOW

# Other policies that mean all nodes.
_RIVALS: Final = tuple(
    policy_plan.Policy(f"p{number}", 50 + number, Options(2, "required"), Selector()) for number in range(9)
)


@lru_cache(maxsize=8)
def _eligibility(template: bytes) -> EligibilityRules:
    """With the eligibility of all nodes known, as they are before a plan is made."""
    rules = EligibilityRules(msgspec.json.decode(template))
    for node in fleet.BY_NAME.values():
        rules.check(node)
    return rules


@lru_cache(maxsize=8)
def _entries(told: tuple[Result, ...]) -> dict[str, Entry]:
    return fleet.entries(told)


def task(of: DaemonTask) -> Snapshot:
    """A pass over all nodes, of which every tenth has a Pod of which nothing is recorded."""
    entries = _entries(of.spec.results)
    ledger = Ledger(entries, shards=5, since=dict.fromkeys(entries, 0.0))
    rules = _eligibility(msgspec.json.encode(of.spec.template))
    return Snapshot(of, fleet.REVISION, rules, fleet.BY_NAME, fleet.pods(), ledger, NOW)


def planned_task(snapshot: Snapshot) -> Any:
    """The plan, what is to be read again before it is carried out, what status says of it, and events."""
    plan = task_plan.plan(snapshot)
    recheck.doubtful(snapshot.task.spec, snapshot.nodes, snapshot.ledger, plan)
    recheck.unlisted(snapshot.pods, snapshot.ledger, plan)
    status = status_of(snapshot, plan, Outcome())
    return task_events.transitions(snapshot.task.status, status, plan.nodes.duplicates), status


def policy(of: ParsedPolicy) -> tuple[StatusInput, policy_plan.PlanInput]:
    """A pass over all nodes with other policies beside."""
    mine = of.policy()
    assert mine is not None
    snapshot = policy_plan.PlanInput(
        mine.name,
        [mine, *_RIVALS],
        fleet.members(),
        enforce_input=_enforce_input(of) if of.enforces else None,
        probing=_probing(of) if of.probes else None,
        probe_state=ProbeState(fleet.findings()),
        now=NOW,
    )
    return StatusInput(of, asked=True), msgspec.structs.replace(
        snapshot, desired=list(policy_plan.desired(snapshot))
    )


def _enforce_input(of: ParsedPolicy) -> EnforceInput:
    assert of.spec is not None
    safety = of.spec.safety
    return EnforceInput(
        of.meta.name,
        *(of.meta.generation, 100.0, NOW),
        loosening=safety.allow_loosening,
        tightening=safety.allow_tightening,
        canary_instances=safety.canary.instances,
        canary_soak=of.soak,
        on_failure=safety.canary.on_failure,
        max_drift_percent=safety.max_drift_percent,
        pending_timeout=of.pending,
        canary=of.status.canary,
        watched=of.status.changed,
        breaker=of.status.breaker,
        free={"eu-west-1": 100},
    )


def _probing(of: ParsedPolicy) -> Probing:
    assert of.spec is not None
    asked = of.spec.verification
    return Probing(asked.nodes_per_group, asked.expect, asked.max_latency_milliseconds, of.interval)


def planned_policy(prepared: tuple[StatusInput, policy_plan.PlanInput]) -> Any:
    """The plan, what status says of it, and events."""
    view, snapshot = prepared
    plan = policy_plan.plan(snapshot)
    status = policy_status.status_of(view, plan, "2027-01-15T08:00:00Z")
    return policy_status.events_of(view.read.status, status, view.read.spec), status


def _cluster(number: int) -> ecs_snapshot.ClusterState:
    """Every tenth fails, every other tenth is left as it is; the others were set a moment ago."""
    if number % 10 == 0:
        trouble = ecs_snapshot.CallFailure("AccessDenied", f"allow {number}", transient=False)
        return ecs_snapshot.ClusterState(failure=trouble, failures=3, retry=NOW + number)
    reason = "DaemonService" if number % 10 == 1 else ""
    service = ServiceState(reason, f"cluster {number}: {reason}", desired=3, running=2, counted=4, target=3)
    return ecs_snapshot.ClusterState(
        service, NOW - 10 - number, NOW - 5, event_at=NOW - 5, update_at=NOW, calls=3
    )


_CLUSTERS: Final = {"a": _cluster(2), **{f"c{number}": _cluster(number) for number in range(1000)}}


def ecs(of: DaemonTask) -> ecs_snapshot.Snapshot:
    """A pass over 1,001 clusters, or over those that the spec names."""
    return ecs_snapshot.Snapshot(
        WireMeta(name="a", namespace="ns", uid="u", generation=7),
        of.spec.ecs,
        of.status,
        of.spec.suspend,
        *(NOW, NOW),
        clusters=_CLUSTERS,
        listing=ecs_snapshot.Listing(at=NOW - 10),
        queue=ecs_snapshot.Queue(received=True),
    )


def planned_ecs(snapshot: ecs_snapshot.Snapshot) -> Any:
    """The plan, what status says of it, and events."""
    status = ecs_status.status_of(snapshot)
    return ecs_plan.plan(snapshot), ecs_status.transitions(snapshot.status, status, "s"), status


def targets(known: list[TargetState]) -> Any:
    """The plan for these targets, all of which are there, and its record."""
    shares = tuple({one.id: Share(one.id, "", "media") for one in known}.values())
    found = refresh_snapshot.Discovery(complete=True, shares=shares)
    snapshot = refresh_snapshot.PlanInput(
        tuple(known), False, found, Filter(), DebounceOptions(), "o", "p", NOW
    )
    return msgspec.json.encode(refresh_plan.plan(snapshot).targets)


def refresh(parsed: Parsed, shares: dict[str, list[Share]]) -> Any:
    """The plan for one message."""
    message = refresh_snapshot.Message(0, tuple(parsed.events), tuple(parsed.completions))
    known = tuple(share for some in shares.values() for share in some)
    found = refresh_snapshot.Discovery(complete=True, shares=known)
    snapshot = refresh_snapshot.PlanInput(
        (), False, found, Filter(), DebounceOptions(), "o", "p", NOW, messages=(message,)
    )
    return msgspec.json.encode(refresh_plan.plan(snapshot).targets)


def storm(key: str) -> refresh_snapshot.PlanInput:
    """As many messages as a pass takes, each of another key like this one, for 64 shares of one bucket. The
    targets were marked by a pass before; the events are matched, as they are before a plan is made."""
    shares = tuple(
        Share(f"share-{number}", "", "media", "in/" * (number % 2), f"g{number}") for number in range(64)
    )
    found = refresh_snapshot.Discovery(complete=True, shares=shares)
    before = refresh_snapshot.PlanInput(
        (), True, found, Filter(), DebounceOptions(), "o", "p", NOW, resync_on_start=False
    )
    first = refresh_plan.plan(msgspec.structs.replace(before, messages=_messages(f"a{key}")))
    messages = _messages(key)
    matcher = EventMatcher(before.filter, by_bucket(shares))
    concerned = {message.id: matcher.add(message.events) for message in messages}
    return msgspec.structs.replace(
        before,
        first=False,
        targets=first.targets,
        now=NOW + 900,
        free=dict.fromkeys((share.group for share in shares), 1),
        messages=messages,
        matches=matcher.matches(),
        concerned=concerned,
    )


def full(key: str) -> refresh_snapshot.PlanInput:
    """Events for 64 shares whose records have no room for their folders: as many as fit are closed, and as
    many wait behind. What is found is joined with the records, as it is before a plan is made."""
    before = storm("a")
    found = union(*(of_folder(f"{n}{key[:24]}") for n in range(40)))
    waits = DirtyScope(NOW, _filled(f"b/{key}"))
    targets = [
        msgspec.structs.replace(one, dirty=DirtyScope(NOW, _filled(f"a/{key}"), closed=True, later=waits))
        for one in before.targets
    ]
    matches = Matches({one.id: joined(one, found) for one in targets})
    return msgspec.structs.replace(before, targets=tuple(targets), messages=(), matches=matches)


def _filled(key: str) -> Scope:
    """Nearly as many folders as a record takes: their names are distinct, and end like the key."""
    filled, room = set[str](), MAX_BYTES
    for number in range(MAX_FOLDERS // 2):
        name = f"{number % 40}/{number}{key[:24]}"
        some = of_folder(name).folders - filled
        room -= sum(map(length, some))
        if room < 0 or len(filled | some) > MAX_FOLDERS:
            break
        filled |= some
    return Scope(folders=frozenset(filled))


def _messages(key: str) -> tuple[refresh_snapshot.Message, ...]:
    return tuple(
        refresh_snapshot.Message(number, (ObjectEvent("ObjectCreated", "media", one),))
        for number, one in enumerate(distinct(key))
    )


def distinct(key: str) -> list[str]:
    """As many keys as a pass takes, below two prefixes. They differ in every folder."""
    return [f"in/in/{number:x}{key}".replace("/a", f"/{number:x}") for number in range(PASS_EVENTS)]


def merged(key: str) -> list[Scope]:
    """The folders of a pass that one step of the matching merges."""
    return [of_folder(one.rpartition("/")[0]) for one in distinct(key)]
