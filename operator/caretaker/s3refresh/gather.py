"""Reads everything that a pass over one resource needs. The only reader; it changes nothing.

Messages and results are read before the resource, so that the resource proves whether they are on record.
"""

import math
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import Filter, Spec, TargetStatus
from caretaker.kube.errors import ApiError, or_none
from caretaker.registry import INSTALL_CRDS, S3_AGGREGATED_REFRESH
from caretaker.runtime.tasks import in_pieces
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import costs, queue_view, resource
from caretaker.s3refresh.admission import access_of
from caretaker.s3refresh.annotation_requests import RefreshRequests, read_requests
from caretaker.s3refresh.concurrency import GATEWAY_SECONDS, OTHERS_SECONDS, busy_of
from caretaker.s3refresh.conditions import regained
from caretaker.s3refresh.costs import CostInput, CostView
from caretaker.s3refresh.credentials import max_age
from caretaker.s3refresh.match import EventMatcher, Matches, by_bucket, joined
from caretaker.s3refresh.object_counts import Signer
from caretaker.s3refresh.options import at_once
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.receiver import PASS_EVENTS
from caretaker.s3refresh.resource import FINALIZER, ParsedRefresh, RawRefresh, worker_config_of
from caretaker.s3refresh.shared import Dependencies, Shared
from caretaker.s3refresh.snapshot import (
    Discovery,
    End,
    Message,
    PlanInput,
    Reception,
    Result,
    Setup,
    Snapshot,
)
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.worker import Worker, WorkerState

# How long the deletion of a resource with onDelete: Flush waits while no refresh can be called.
FLUSH_SECONDS: Final = 300.0
SLICE: Final = 100  # events that are matched in one step


class Arrivals(msgspec.Struct, frozen=True):
    """The inputs that arrived before the resource was read, and the requests in its annotations."""

    messages: tuple[Message, ...] = ()
    results: tuple[Result, ...] = ()
    ends: tuple[End, ...] = ()
    newest: float = 0.0  # when the newest message arrived, by time.monotonic()
    more: bool = False  # further messages wait for the next pass
    listened: float = 0.0  # see PlanInput
    discovery: Discovery = Discovery()  # the shares that `matches` was matched against
    matches: Matches = Matches()
    concerned: Mapping[int, frozenset[str] | None] = {}  # see PlanInput
    requests: RefreshRequests = RefreshRequests()

    @classmethod
    def of(cls, worker: Worker | None) -> "Arrivals":
        if worker is None:
            return cls()
        messages, newest, more = worker.receiver.messages()
        results, ends = tuple(worker.calls.results), worker.ends.ends
        return cls(messages, results, ends, newest, more, worker.listened(more=more))

    async def with_matches(self, spec: Spec | None, discovery: Discovery) -> "Arrivals":
        """Adds the matched events. It yields to the event loop while that takes long, as it does for many
        shares of one bucket; the plan cannot be interrupted."""
        if spec is None:
            return replace(self, discovery=discovery)
        new = partial(
            EventMatcher, spec.filter, by_bucket(discovery.shares), whole=target_type_of(spec).whole
        )
        matcher, concerned = new(), dict[int, frozenset[str] | None]()
        async for _ in in_pieces(_matching(new, matcher, self.messages, concerned)):
            pass
        return replace(self, discovery=discovery, matches=matcher.matches(), concerned=concerned)

    async def joined(self, records: Iterable[TargetStatus], now: float) -> "Arrivals":
        """Joins the scopes that were found with those on record. It yields as with_matches() does: many
        records may be full, and reading and reducing each takes a while. The others are not read."""
        found = dict(self.matches.found)
        async for record in in_pieces(one for one in records if one.id in found):
            found[record.id] = joined(resource.decode_target(record, now), found[record.id])
        return replace(self, matches=replace(self.matches, found=found))


def _matching(
    new: Callable[[], EventMatcher],
    matcher: EventMatcher,
    messages: Iterable[Message],
    concerned: dict[int, frozenset[str] | None],
) -> Iterator[None]:
    """Match the events of messages in steps of a few milliseconds. What a message with completions is good
    for, the plan decides. Of a large one few folders are kept at a time."""
    for message in messages:
        if message.completions or message.malformed:
            continue
        large = len(message.events) > PASS_EVENTS
        mine = new() if large else matcher
        found: list[frozenset[str] | None] = []
        for at in range(0, len(message.events), SLICE):
            found.append(mine.add(message.events[at : at + SLICE]))
            if large:
                yield from mine.merging()
            yield
        if large:
            matcher.join(mine.matches())
        known = [some for some in found if some is not None]
        concerned[message.id] = frozenset().union(*known) if len(known) == len(found) else None
    yield from matcher.merging()


class Reader:
    """See the module."""

    def __init__(self, of: Dependencies, shared: Shared) -> None:
        self._of = of
        self._shared = shared

    async def gather(self, key: Key) -> Snapshot | None:
        """Messages and results first, then the resource: the record that is read is no older than their
        arrival."""
        worker = self._shared.workers.get(key)
        came = Arrivals.of(worker)
        raw = await self.resource(key)
        if raw is None:
            return None
        read = resource.read(raw, registry().spec)
        if worker is not None and worker.uid != read.meta.uid:
            worker, came = None, Arrivals()
        setup = await self._setup(key, worker, read)
        if worker is not None and worker.config != setup.config:  # perhaps with another completion queue
            came = replace(came, listened=0.0)
        places = {one.id: one.location for one in read.status.targets}
        discovery = _state(worker, setup, read).discovery.located(places)
        came = await came.with_matches(read.spec, discovery)
        came = await came.joined(read.status.targets, time.time())
        came = replace(came, requests=await self._requests(key, read))
        cost = self._cost(read, setup, discovery)
        if read.spec is not None:
            read = replace(read, options=resource.options_of(read.spec, cost.status))
        found = self._snapshot(key, read, _state(worker, setup, read), setup, came)
        return replace(found, cost=cost)

    async def _requests(self, key: Key, read: ParsedRefresh) -> RefreshRequests:
        """The new requests; none where an older CRD would drop the record of them, and each pass would take
        them again. The API server is asked by a dry run, until it has once kept it."""
        found, before = read_requests(read.meta, read.status.requests, time.time()), read.status.requests
        if not found.any or self._shared.keeps_requests:
            return found
        path, marks = S3_AGGREGATED_REFRESH.path(key.namespace, key.name), found.marks(before)
        body = {"metadata": {"uid": read.meta.uid}, "status": {"requests": marks}}
        try:
            raw = await self._of.client.patch(f"{path}/status", body, RawRefresh, params={"dryRun": "All"})
        except ApiError as error:
            if error.status == 400:  # a webhook that allows no dry run
                return found
            raise
        if resource.read(raw, registry().spec).status.requests == marks:
            self._shared.keeps_requests = True
            return found
        lost = f"status.requests is not stored, so no request is taken: {INSTALL_CRDS}"
        return RefreshRequests(errors=(*found.errors, lost))

    def _cost(self, read: ParsedRefresh, setup: Setup, discovery: Discovery) -> CostView:
        """The costs of the targets; as recorded while the resource does nothing."""
        spec, meta, before = read.spec, read.meta, read.status.cost
        if spec is not None and spec.cost is None:
            return CostView()
        if spec is None or spec.cost is None:
            return CostView(before)
        own = read.options.min_interval
        if setup.config is None or self._shared.stopping:
            kept = before.buckets if before is not None else ()
            return CostView(costs.status_of(spec.cost, kept, own))
        inputs = CostInput(
            spec.cost,
            before,
            time.time(),
            target_type_of(spec).named_buckets,
            own,
            discovery.complete,
        )
        signer = Signer.of(spec.aws, meta.namespace)
        return costs.view_of(
            inputs, discovery.shares, partial(self._shared.counts.found, meta.namespace, signer)
        )

    async def resource(self, key: Key) -> RawRefresh | None:
        """None when it is gone, or going with nothing left to flush."""
        path = S3_AGGREGATED_REFRESH.path(key.namespace, key.name)
        raw: RawRefresh | None = await or_none(self._of.client.get(path, RawRefresh))
        if raw is None or raw.metadata.deletion_timestamp is None:
            return raw
        return raw if FINALIZER in (raw.metadata.finalizers or ()) else None

    async def _setup(self, key: Key, worker: Worker | None, read: ParsedRefresh) -> Setup:
        """What the resource's tasks are to run with, or why they do not run."""
        access = access_of(key, read, self._of.grants, self._shared.claims).rejection
        rejection, secret, spec = access, None, read.spec
        if read.flushing and rejection is not None and rejection.reason == Reason.QUEUE_CONFLICT:
            rejection = None  # a flush reads no queue
        if rejection is None and spec is not None and spec.aws.secret_name:
            doubted = worker is not None and worker.receiver.problem is not None
            age = max_age(doubted=doubted, flushing=read.flushing)
            secret = await self._shared.key_ring.read(key, spec.aws.secret_name, age)
            rejection = secret.rejection
        setup = Setup(None, secret, access, rejection)
        if spec is None or rejection is not None or not read.active:
            return setup
        config = worker_config_of(spec, setup.keys, resource.user_of(read.meta))
        return replace(setup, config=config)

    def _snapshot(
        self, key: Key, read: ParsedRefresh, state: WorkerState, setup: Setup, came: Arrivals
    ) -> Snapshot:
        now, clock, limiter = time.time(), time.monotonic(), self._shared.limiter
        spec, target_type, rejection = read.spec, target_type_of(read.spec), setup.rejection
        targets = resource.targets_of(read, now)
        shares = came.discovery.by_id
        assume_after = read.options.assume_after
        busy = busy_of(targets, {**state.memory.shares, **shares}, assume_after, now)
        groups = {share.group for share in shares.values()} if target_type.limit else set()
        blocked = rejection.message if rejection is not None else state.discovery.blocked
        blocked_since = min(state.memory.blocked_since, clock) if read.flushing and blocked else math.inf
        return Snapshot(
            read=read,
            clock=clock,
            setup=setup,
            queue=state.queue,
            reception=state.reception,
            blocked=blocked,
            blocked_since=blocked_since,
            flush_remaining=blocked_since + FLUSH_SECONDS - clock,
            newest=came.newest,
            more=came.more,
            plan_input=PlanInput(
                targets=targets,
                first=read.first,
                discovery=came.discovery,
                filter=spec.filter if spec is not None else Filter(),
                options=at_once(read.options) if read.flushing else read.options,
                owner=self._of.owner,
                pass_id=uuid.uuid4().hex,
                now=now,
                malformed=spec.source.sqs.malformed if spec is not None else "DeadLetter",
                whole=target_type.whole,
                suspended=rejection is not None or not read.active or self._shared.stopping,
                resync_on_start=spec.resync.on_start if spec is not None else False,
                expired=regained(read.status, rejection) or _expired(read, state, now),
                requests=came.requests,
                messages=came.messages,
                matches=came.matches,
                concerned=came.concerned,
                results=came.results,
                ends=came.ends,
                idempotent=target_type.idempotent,
                running=state.running,
                received=max(clock - came.newest, 0.0),
                listened=math.inf if read.flushing else came.listened,  # a flush receives no ends
                times=state.memory.tracker.times(targets, clock),
                held=limiter.held(shares.values(), GATEWAY_SECONDS, clock),
                free=limiter.free(
                    key,
                    {group: target_type.limit - busy.get(group, 0) for group in groups},
                    clock,
                    assume_after=max(assume_after, OTHERS_SECONDS),
                ),
                rivals=limiter.rivals(key, groups),
                limit=target_type.limit,
                jitter=random.random(),
            ),
        )


def _state(worker: Worker | None, setup: Setup, read: ParsedRefresh) -> WorkerState:
    """The state of the worker, as far as it stays once apply.py has set it up."""
    if worker is None:
        return WorkerState()
    state = worker.state()
    if worker.config != setup.config:  # its tasks begin anew, or pause
        state = replace(state, discovery=Discovery(), queue=QueueView(), reception=Reception())
    if read.flushing:  # which receives nothing
        state = replace(state, reception=Reception())
    return state


def _expired(read: ParsedRefresh, state: WorkerState, now: float) -> bool:
    """Whether events may be gone for good: the queue was not read for long, or messages that others had
    received are dead."""
    if not state.reception.reading:
        return False
    before = read.status.queue
    died = state.memory.inherited and queue_view.died(state.queue, before)
    return queue_view.unread(state.queue, before, now) or died
