"""Which task of an exclusive group holds which node, as this process knows it (spec.exclusive).

In memory alone: the nodes of a task follow from its Pods, its cordons and its ledger. It does no I/O. Each
step runs between two awaits, so that of two passes that run at a time one reserves first:

    noted     a pass, or the list of the namespace's tasks, shows that the task belongs to the group
    read      its first pass has shown its nodes; until then no other task of the group starts anything
    claim     a pass is about to write: its nodes, and the starts that the group still allows
    settled   the writes are made: starts that made nothing hold nothing

A task that lets go of a node or a slot offers it to the one that has waited longest, which gets a pass and
passes on the rest; the others get none, however many wait. An offer lasts OFFER_SECONDS at the longest,
and its task waits again from its next pass on: one whose passes fail holds up the others once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from caretaker.api.names import LABEL_TASK, POD_EXCLUSIVE
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.exclusive import admitted, of_pods, view_of
from caretaker.daemontask.group_view import NOTHING, GroupView, Holding, Other
from caretaker.daemontask.intents import PATIENCE
from caretaker.daemontask.plan import Plan, with_launch
from caretaker.daemontask.pods import Start
from caretaker.kube.store import PodIndex
from caretaker.runtime.work_queue import Key

OFFER_SECONDS: Final = 30.0
_EARLIEST: Final = 0


class Enqueue(Protocol):
    """WorkQueue.add."""

    def __call__(self, key: Key, *, urgent: bool = False) -> None: ...


class Member(msgspec.Struct):
    """A task of the namespace. `group` is empty where it has none."""

    key: Key
    uid: str
    group: str
    read: bool = False
    holding: Holding = NOTHING
    waiting: frozenset[str] = frozenset()  # UIDs of nodes that others hold
    short: bool = False  # the group's width keeps nodes waiting
    ticket: int = _EARLIEST  # the lower, the longer it has waited; 0 = it does not wait
    offered: frozenset[str] = frozenset()
    turn: bool = False
    until: float = 0.0  # of the offer, seconds since the epoch
    unsure: dict[str, float] = {}  # node UID -> until when a create without an answer may still be executed

    def as_seen_by(self, other: "Member", now: float) -> Other:
        """The nodes and places that the other one has to leave to it."""
        first = self.until > now and self.ticket > 0 and not 0 < other.ticket < self.ticket
        return Other(
            name=self.key.name,
            holding=self.holding,
            read=self.read,
            offered=self.offered if first else frozenset(),
            turn=first and self.turn,
            until=self.until if first else 0.0,
        )


class Exclusion:
    """The groups of all namespaces."""

    def __init__(self, index: PodIndex, nodes: Mapping[str, Node], enqueue: Enqueue) -> None:
        self._index = index
        self._nodes = nodes  # by name
        self._enqueue = enqueue
        self._tasks: dict[str, dict[Key, Member]] = {}  # by namespace
        self._listed: set[str] = set()  # namespaces all of whose tasks are noted
        self._former: dict[str, str] = {}  # UID -> group, of tasks that are gone
        # By namespace: tasks that are gone, while a create of theirs without an answer may be executed.
        self._late: dict[str, list[Member]] = {}
        self._since: float | None = None  # time.monotonic() from which this process leads
        self._tickets = _EARLIEST

    # ---------------------------------------------------------------- who belongs to a group

    def clear(self) -> None:
        """Another process may lead from now on."""
        self._tasks.clear()
        self._listed.clear()
        self._former.clear()
        self._late.clear()
        self._since = None

    def quiet(self, clock: float, seconds: float) -> float:
        """How much longer, of these seconds since this process leads, a request of the last leader may be
        executed. The first call is the beginning."""
        if self._since is None:
            self._since = clock
        return max(self._since + seconds - clock, 0.0)

    def note(self, key: Key, uid: str, group: str) -> Member:
        """A task as it was read."""
        tasks = self._tasks.setdefault(key.namespace, {})
        member = tasks.get(key)
        if member is None or (member.uid, member.group) != (uid, group):
            unsure: dict[str, float] = {}
            if member is not None:
                self._leave(member, gone=member.uid != uid)
                unsure = member.unsure if member.uid == uid else unsure
            member = tasks[key] = Member(key, uid, group, unsure=unsure)
        return member

    def expire(self, namespace: str, now: float) -> None:
        """Drop the creates without an answer that cannot be executed any more. Where some are dropped the
        namespace has to be read again: the watch may be late with their Pods."""
        late = self._late.pop(namespace, [])
        for one in (*self._tasks.get(namespace, {}).values(), *late):
            left = {uid: until for uid, until in one.unsure.items() if until > now}
            if len(left) < len(one.unsure):
                one.unsure = left
                self._listed.discard(namespace)
        if late := [one for one in late if one.unsure]:
            self._late[namespace] = late

    def knows(self, namespace: str) -> bool:
        """Whether all tasks of the namespace are noted, and their Pods seen."""
        return namespace in self._listed

    def listed(self, namespace: str, found: Iterable[tuple[Key, str, str]]) -> None:
        """All tasks of a namespace, with their UIDs and groups. A pass may have read newer ones. Each member
        gets a pass, which shows its nodes, or that it is gone."""
        tasks = self._tasks.setdefault(namespace, {})
        for key, uid, group in found:
            if key not in tasks and self.note(key, uid, group).group:
                self._enqueue(key, urgent=True)
        self._listed.add(namespace)

    def forget(self, key: Key) -> None:
        """The task is gone; its Pods may live on."""
        if (member := self._tasks.get(key.namespace, {}).pop(key, None)) is not None:
            self._leave(member, gone=True)

    def _leave(self, member: Member, *, gone: bool) -> None:
        if not member.group:
            return
        if gone and self._index.pods_of(member.key.namespace, member.uid):
            self._former[member.uid] = member.group
        if gone and member.unsure:
            self._late.setdefault(member.key.namespace, []).append(member)
        self._wake(self._others(member))

    # ---------------------------------------------------------------- nodes and places that they hold

    def view(self, key: Key, unsure: Collection[str], now: float) -> GroupView | None:
        """The other tasks of the group; None of a task without. `unsure`: UIDs of nodes where a Pod of the
        task may have been created."""
        member = self._tasks.get(key.namespace, {}).get(key)
        if member is None or not member.group:
            return None
        self._end_offers(member, now)
        others = [one.as_seen_by(member, now) for one in self._others(member)]
        others += [*self._deleted(member), *self._not_answered(member)]
        found = view_of(key.name, others, frozenset({*member.unsure, *unsure}))
        moments = (at for at in (found.wake, *member.unsure.values()) if at)
        return replace(found, wake=min(moments, default=0.0))

    def claim(self, key: Key, plan: Plan, unsure: Collection[str], now: float) -> Plan:
        """The plan without the starts that the group does not allow any more: another task was quicker. The
        others are reserved."""
        member = self._tasks.get(key.namespace, {}).get(key)
        if member is None or plan.holding is None:
            return plan
        mine, starts = plan.holding, (*plan.launch.starts, *plan.launch.cordons)
        let_go = member.holding.nodes.keys() - mine.nodes.keys()
        if let_go:
            self._go_last(member)
        self._pass_on(member, let_go, freed=_has_room(member, mine), now=now)
        begun: list[str] = []
        if starts and (view := self.view(key, unsure, now)) is not None:
            begun = admitted(view, mine, [start.node_uid for start in starts])
        late = frozenset(start.node_uid for start in starts).difference(begun)
        waiting = frozenset(report.node.uid for report in plan.nodes.kept_out) | late
        short = plan.launch.grouped or bool(late)
        unused = member.offered.difference(begun, waiting)
        turn = member.turn and not short  # there may be room for others yet
        member.read, member.waiting, member.short = True, waiting, short
        member.holding = replace(
            mine,
            nodes={**mine.nodes, **dict.fromkeys(begun, True)},
            slots=mine.slots.union(begun),
            busy=mine.busy.union(begun),
        )
        if late:  # it looks again at once
            member.offered -= unused
        else:
            member.offered, member.turn, member.until = frozenset(), False, 0.0
        self._queue(member, begun=bool(begun))
        self._pass_on(member, unused, freed=turn, now=now)
        return _without(plan, late) if late else plan

    def settled(
        self, key: Key, plan: Plan, made: Callable[[Start], bool], unsure: Collection[str], now: float
    ) -> None:
        """The plan's starts were made, or not."""
        member = self._tasks.get(key.namespace, {}).get(key)
        if member is None or plan.holding is None:
            return
        until = now + PATIENCE + 1.0
        starts = (*plan.launch.starts, *plan.launch.cordons)
        asked = {start.node_uid for start in starts}  # once more, where an earlier one had no answer either
        member.unsure |= {uid: until for uid in unsure if uid in asked or uid not in member.unsure}
        vain = {s.node_uid for s in starts if s.node_uid not in unsure and not made(s)}
        if not vain:
            return
        mine, held = plan.holding, member.holding
        was = {uid: lives for uid, lives in mine.nodes.items() if uid in vain}
        member.holding = replace(
            held,
            nodes={uid: lives for uid, lives in held.nodes.items() if uid not in vain} | was,
            slots=held.slots - (vain - mine.slots),
            busy=held.busy - (vain - mine.busy),
        )
        self._pass_on(member, vain - mine.nodes.keys(), freed=True, now=now)

    def next_end(self, key: Key) -> float:
        """When the first offer to another task of the group ends; 0 = there is none."""
        member = self._tasks.get(key.namespace, {}).get(key)
        if member is None or not member.group:
            return 0.0
        return min((other.until for other in self._others(member) if other.until), default=0.0)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Called by the store. The end of a Pod of a task that is gone lets others of its group go on."""
        pod = old if old is not None else new
        if pod is None or (new is not None and not new.terminal and _mark(new) == _mark(pod)):
            return
        group = self._group_of(pod)
        tasks = self._tasks.get(pod.namespace, {}).values() if group else ()
        if all(member.uid != pod.owner_uid for member in tasks):
            self._wake(member for member in tasks if member.group == group)
        if not self._index.pods_of(pod.namespace, pod.owner_uid):
            self._former.pop(pod.owner_uid, None)

    # ---------------------------------------------------------------- inside

    def _others(self, member: Member) -> list[Member]:
        tasks = self._tasks.get(member.key.namespace, {}).values()
        return [one for one in tasks if one.group == member.group and one is not member]

    def _deleted(self, member: Member) -> Iterable[Other]:
        """The tasks of the group that are gone, and have Pods."""
        namespace = member.key.namespace
        known = {one.uid for one in self._tasks[namespace].values()}
        owners = [uid for place, uid in self._index.owners() if place == namespace and uid not in known]
        uids = {node.name: node.uid for node in self._nodes.values()} if owners else {}
        for owner in owners:
            of_nodes = self._index.pods_of(namespace, owner).values()
            # Pods that are older than spec.exclusive of their task have no mark.
            pods = [pod for of_node in of_nodes for pod in of_node.values()]
            pods = [pod for pod in pods if self._group_of(pod) == member.group]
            if (held := of_pods(pods, uids)).nodes:
                yield Other(pods[0].labels.get(LABEL_TASK, ""), held)

    def _not_answered(self, member: Member) -> Iterable[Other]:
        """The tasks of the group that are gone, and of which a Pod may come yet."""
        for one in self._late.get(member.key.namespace, ()):
            if one.group == member.group:
                held = frozenset(one.unsure)
                found = Holding(dict.fromkeys(held, True), held, held)
                yield Other(one.key.name, found, until=min(one.unsure.values()))

    def _group_of(self, pod: Pod) -> str:
        return self._former.get(pod.owner_uid) or _mark(pod)

    def _wake(self, members: Iterable[Member]) -> None:
        for member in members:
            if member.ticket:
                self._enqueue(member.key, urgent=True)

    def _queue(self, member: Member, *, begun: bool) -> None:
        """Keep its place among those that wait; one that has begun a run goes to the end."""
        if not (member.waiting or member.short):
            member.ticket = _EARLIEST
        elif begun or not member.ticket:
            self._go_last(member)

    def _go_last(self, member: Member) -> None:
        self._tickets += 1
        member.ticket = self._tickets

    def _pass_on(self, member: Member, nodes: Collection[str], *, freed: bool, now: float) -> None:
        """Offer each node that the member let go of, and then the room in the group, to the first task that
        waits for it."""
        if not (nodes or freed):
            return
        left, others = frozenset(nodes), [other for other in self._others(member) if other.ticket]
        for other in sorted(others, key=lambda one: one.ticket):
            found, turn = other.waiting & left, freed and other.short
            if not (found or turn):
                continue
            left, freed = left - found, freed and not turn
            other.offered, other.turn = other.offered | found, other.turn or turn
            other.until = now + OFFER_SECONDS
            self._enqueue(other.key, urgent=True)

    def _end_offers(self, member: Member, now: float) -> None:
        """Offers that are not taken up in time go to the next. Such a task waits again from its next pass."""
        for other in self._others(member):
            if 0.0 < other.until <= now:
                nodes, turn = other.offered, other.turn
                other.offered, other.turn, other.until = frozenset(), False, 0.0
                other.ticket = _EARLIEST
                self._pass_on(other, nodes, freed=turn, now=now)


def _mark(pod: Pod) -> str:
    return pod.annotations.get(POD_EXCLUSIVE, "")


def _has_room(member: Member, mine: Holding) -> bool:
    """Whether the group may begin more than before, now that the member holds `mine`."""
    was = member.holding
    fewer = len(mine.slots) < len(was.slots) or len(mine.busy) < len(was.busy)
    return fewer or not member.read or mine.width != was.width


def _without(plan: Plan, late: Collection[str]) -> Plan:
    """The plan without the starts on these nodes (UIDs), and another plan at once."""
    launch = plan.launch
    starts = tuple(start for start in launch.starts if start.node_uid not in late)
    names = {start.node_name for start in starts}
    own = sum(start.node_uid not in late for start in launch.starts[: launch.assignment.own])
    return with_launch(
        replace(plan, more=True),
        starts=starts,
        cordons=tuple(start for start in launch.cordons if start.node_uid not in late),
        intents={name: entry for name, entry in launch.intents.items() if name in names},
        assignment=replace(launch.assignment, own=own),
        queued=launch.queued + len(late),
    )
