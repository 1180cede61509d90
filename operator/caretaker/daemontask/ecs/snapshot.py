"""What a pass of an ECS target gathers and a plan reads. Pure data; `clock` is the one that never goes
back."""

from collections.abc import Mapping

import msgspec

from caretaker.api.daemontask import Status
from caretaker.api.ecs import EcsSpec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ecs.check import Verdict


class Trouble(msgspec.Struct, frozen=True):
    """What AWS refused or failed to do: the reason to show, its words, whether time alone may mend it."""

    reason: str
    message: str
    transient: bool
    absent: bool = False  # what was asked for is not there


class Known(msgspec.Struct, frozen=True):
    """One cluster. Times are of the clock, 0 = never; those with `_at` in seconds since the epoch."""

    verdict: Verdict | None = None  # of the last look that came to an end
    looked: float = 0.0  # when the last one began
    dirty: float = 0.0  # when the first event came that no look has covered
    busy: bool = False  # one is under way
    trouble: Trouble | None = None  # of the last look, if it failed
    failures: int = 0  # in a row
    retry: float = 0.0  # not before, though due; 0 = the last look came to an end
    confirm: float = 0.0  # when a look can confirm that so much is gone; 0 = nothing is to be confirmed
    event_at: float = 0.0
    update_at: float = 0.0
    calls: int = 0  # of the last look


class Listing(msgspec.Struct, frozen=True):
    """The clusters of the account, where spec.ecs.clusters is empty."""

    at: float = 0.0  # when the last list came, 0 = never
    busy: bool = False
    trouble: Trouble | None = None
    failures: int = 0
    retry: float = 0.0


class Queue(msgspec.Struct, frozen=True):
    """How the queue is read. `heard`: a receive has come back."""

    heard: bool = False
    trouble: Trouble | None = None
    malformed: str = ""  # of a message of the last hour


class Snapshot(msgspec.Struct, frozen=True):
    """Everything. Without a spec: `refusal` says why."""

    meta: WireMeta
    spec: EcsSpec | None
    status: Status
    suspend: bool
    now: float
    clock: float
    refusal: tuple[str, str] | None = None  # (reason, message): nothing is done
    clusters: Mapping[str, Known] = {}
    listing: Listing = Listing()
    queue: Queue = Queue()
    scale: float = 1.0  # of waits; 1 but in tests

    @property
    def idle(self) -> bool:
        """Whether nothing may be asked."""
        return self.spec is None or self.refusal is not None or self.suspend
