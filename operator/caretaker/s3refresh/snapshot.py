"""The data of a pass over one resource: the snapshot, its plan, and what both are made of. Pure data.

Messages, results and ends come from the worker; the discovery from the target.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from caretaker.api.s3refresh import Filter
from caretaker.aws.identity import Keys
from caretaker.s3refresh.annotation_requests import RefreshRequests
from caretaker.s3refresh.costs import CostView
from caretaker.s3refresh.debounce import Claim, Phase, TargetState
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.match import Matches, Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.resource import ParsedRefresh, WorkerConfig
from caretaker.s3refresh.timing import TargetTimes

Malformed = Literal["DeadLetter", "RefreshAll", "Discard"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of the source queue that nothing has been done about yet."""

    id: int  # of this process
    events: tuple[ObjectEvent, ...] = ()
    completions: tuple[Completion, ...] = ()
    malformed: bool = False


class Result(msgspec.Struct, frozen=True):
    """How a call of this process ended."""

    target: str
    claim_id: str
    notification_id: str = ""  # of an accepted call whose end is reported later
    code: str = ""  # why it failed, or is not known to have succeeded; empty = accepted
    message: str = ""
    unnamed: bool = False  # accepted, but the response lacks the notification id
    retry_after: float = 0.0  # seconds of the service's Retry-After
    refused: bool = False  # perhaps because of one of its folders, or while busy of their number


class End(msgspec.Struct, frozen=True):
    """How a refresh in flight ended, where the target was asked."""

    notification_id: str
    code: str = ""  # why it failed; empty = it succeeded
    message: str = ""


class Discovery(msgspec.Struct, frozen=True):
    """The result of discovery. Before it is complete, an event without a target may still have one."""

    complete: bool = False
    shares: tuple[Share, ...] = ()
    faults: tuple[str, ...] = ()  # why it is not complete, or a share is not refreshed
    undescribed: tuple[Share, ...] = ()  # listed, without a known bucket; see located()
    blocked: str = ""  # why no call can be made until a Secret is changed, or at all
    retry: bool = False  # something was not found that may soon be
    listed: bool = False  # all targets were listed: complete, if located() finds one to refresh

    @property
    def by_id(self) -> dict[str, Share]:
        """The shares."""
        return {share.id: share for share in self.shares}

    @property
    def looked(self) -> bool:
        """Whether there is a result, for the configuration that counts now."""
        return self.complete or bool(self.shares or self.faults or self.undescribed)

    @property
    def locatable(self) -> bool:
        """Whether all targets were listed, and those that can be refreshed may be on record."""
        return self.complete or (self.listed and any(share.ready for share in self.undescribed))

    def gone(self, name: str) -> bool:
        """Whether the target does not exist, for certain."""
        return self.complete and all(share.id != name for share in self.shares)

    def located(self, places: Mapping[str, str]) -> "Discovery":
        """With the shares whose bucket is not known now, at their recorded location: their events are matched
        to them, and those that were described are refreshed. `places`: share id -> recorded location. A share
        without a record is new, and is refreshed whole once its bucket is known. With a record but no
        location its events cannot be matched, so the result is not complete. Nor is it if no share has a
        bucket, unless one that can be refreshed has one on record."""
        described = self.by_id
        there = [share for share in self.undescribed if share.id not in described and share.id in places]
        found = [_at(share, places[share.id]) for share in there if places[share.id]]
        known = self.complete or (self.listed and any(share.ready for share in found))
        complete = known and len(found) == len(there)
        return replace(self, complete=complete, shares=(*self.shares, *found))


def _at(share: Share, place: str) -> Share:
    bucket, _, prefix = place.partition("/")
    return replace(share, bucket=bucket, prefix=prefix, recorded=True)


class PlanInput(msgspec.Struct, frozen=True):
    """Everything a plan reads, gathered before it."""

    targets: tuple[TargetState, ...]  # as the API server has them
    first: bool  # no pass has written this resource's targets yet
    discovery: Discovery
    filter: Filter
    options: DebounceOptions
    owner: str  # this process
    pass_id: str  # of this pass alone
    now: float
    malformed: Malformed = "DeadLetter"
    whole: bool = False  # refresh whole shares, never folders
    idempotent: bool = False  # whether a call that is made again, claim id and all, takes effect once
    suspended: bool = False
    resync_on_start: bool = True
    expired: bool = False  # messages may have passed their retention: everything is stale
    requests: RefreshRequests = RefreshRequests()
    messages: tuple[Message, ...] = ()
    matches: Matches = Matches()  # of the events of the messages in `concerned`
    concerned: Mapping[int, frozenset[str] | None] = {}  # message id -> what EventMatcher.add() returned
    results: tuple[Result, ...] = ()
    ends: tuple[End, ...] = ()
    running: frozenset[str] = frozenset()  # ids of claims whose calls this process is making
    received: float = 0.0  # seconds since the newest of the messages came
    # Seconds for which the ends of refreshes are received; inf: the completion queue was empty once since.
    listened: float = math.inf
    times: Mapping[str, TargetTimes] = {}
    held: Mapping[str, float] = {}  # target id -> seconds until another resource's call lets it be called
    free: Mapping[str, int] = {}  # group -> calls that may start, others' slots taken off; absent = 1
    rivals: Mapping[str, int] = {}  # group -> dirty targets of other resources
    limit: int = 1  # concurrent calls of one group
    jitter: float = 1.0


class Plan(msgspec.Struct, frozen=True):
    """The state to write, and the actions after the write."""

    targets: tuple[TargetState, ...] = ()
    phases: Mapping[str, Phase] = {}
    starts: Mapping[str, float] = {}  # target id -> when its next call may start
    calls: tuple[tuple[Share, Claim], ...] = ()
    done: tuple[int, ...] = ()  # messages to delete
    returned: tuple[int, ...] = ()  # messages to return to the queue
    requested: int | None = None  # targets that the new requests concern; None = they are not taken
    unclaimed: tuple[int, ...] = ()  # ends of refreshes that are not on record: another resource's, or old
    matches: Matches = Matches()  # of the events of all messages
    wake: float = 0.0


class Rejection(msgspec.Struct, frozen=True):
    """Why nothing is done for a resource: a reason and a message, of Ready."""

    reason: str
    message: str


class Reception(msgspec.Struct, frozen=True):
    """How a resource's queues are read now."""

    polling: bool = False  # messages are received, or would be if the queue could be read
    reading: bool = False  # a receive of the source queue has come back, and nothing is in the way
    behind: bool = False  # the source queue may hold messages that have not been received
    problem: str = ""  # why a queue cannot be received from
    code: str = ""  # the problem's class
    malformed: str = ""  # the fault of a message of the last hour


class SecretRead(msgspec.Struct, frozen=True):
    """The keys in a Secret, or why there are none, and when it was read, by time.monotonic()."""

    name: str
    keys: Keys | None
    rejection: Rejection | None
    at: float


class Setup(msgspec.Struct, frozen=True):
    """What a resource's tasks are to run with.

    config     of the tasks; None = they pause
    secret     of spec.aws.credentialsSecretRef, if it was read
    access     why the resource may do nothing, by its spec, its grants and the claims to its queues
    rejection  why nothing is done for it: `access`, or no keys. A flush reads no queue
    """

    config: WorkerConfig | None = None
    secret: SecretRead | None = None
    access: Rejection | None = None
    rejection: Rejection | None = None

    @property
    def keys(self) -> Keys | None:
        """Of the Secret."""
        return self.secret.keys if self.secret is not None else None


class Snapshot(msgspec.Struct, frozen=True):
    """One resource, now."""

    read: ParsedRefresh
    plan_input: PlanInput
    clock: float = 0.0  # when it was taken, by time.monotonic()
    setup: Setup = Setup()
    queue: QueueView = QueueView()
    reception: Reception = Reception()
    blocked: str = ""  # why no refresh can be called
    blocked_since: float = math.inf  # of a flush: since when, by time.monotonic()
    flush_remaining: float = math.inf  # seconds that a flush still waits while it is blocked
    cost: CostView = CostView()
    newest: float = 0.0  # when the newest of the messages came, by time.monotonic()
    more: bool = False  # further messages wait for the next pass
