"""The state of an ECS target that a pass gathers and a plan reads. Pure data; `clock` is time.monotonic()."""

from collections.abc import Mapping

import msgspec

from caretaker.api.daemontask import Status
from caretaker.api.ecs import EcsSpec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ecs.check import ServiceState


class CallFailure(msgspec.Struct, frozen=True):
    """A failed call: the reason to show, AWS's words, and whether the error is transient."""

    reason: str
    message: str
    transient: bool
    absent: bool = False  # the object does not exist


class ClusterState(msgspec.Struct, frozen=True):
    """The state of one cluster. Times are by `clock`, 0 = never; `*_at` are Unix seconds."""

    service: ServiceState | None = None  # of the last check that succeeded
    checked: float = 0.0  # when the last check began
    dirty: float = 0.0  # when the first event came that no check covers
    busy: bool = False  # a check is under way
    failure: CallFailure | None = None  # of the last check, if it failed
    failures: int = 0  # in a row
    retry: float = 0.0  # the next check, after a failed one; 0 = the last one succeeded
    confirm: float = 0.0  # when a check can confirm a decrease; 0 = there is none to confirm
    event_at: float = 0.0
    update_at: float = 0.0
    calls: int = 0  # of the last check


def unchecked(spec: EcsSpec) -> dict[str, ClusterState]:
    """The clusters that the spec names, before their first check."""
    return {name: ClusterState() for name in spec.clusters}


class Listing(msgspec.Struct, frozen=True):
    """The clusters of the account, where spec.ecs.clusters is empty."""

    at: float = 0.0  # when the last list came, 0 = never
    begun: float = 0.0  # when it was requested
    named: float = 0.0  # the last event of a cluster that the last list lacked, 0 = there was none
    busy: bool = False
    failure: CallFailure | None = None
    failures: int = 0
    retry: float = 0.0


class Queue(msgspec.Struct, frozen=True):
    """The state of the queue. `received`: a receive has succeeded."""

    received: bool = False
    failure: CallFailure | None = None
    malformed: str = ""  # the fault of a message of the last hour


class Snapshot(msgspec.Struct, frozen=True):
    """The input of a plan. Without a spec, `refusal` has the reason."""

    meta: WireMeta
    spec: EcsSpec | None
    status: Status
    suspend: bool
    now: float
    clock: float
    refusal: tuple[str, str] | None = None  # (reason, message): nothing is done
    clusters: Mapping[str, ClusterState] = {}
    listing: Listing = Listing()
    queue: Queue = Queue()

    @property
    def idle(self) -> bool:
        """Whether AWS must not be called."""
        return self.spec is None or self.refusal is not None or self.suspend
