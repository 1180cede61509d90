"""What Enforce's decisions start from: the instances, and what the process and the status know. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from caretaker.api.imds import BreakerStatus, CanaryStatus, ChangedGroup, Permit
from caretaker.imds.hands import Hand
from caretaker.imds.judge import Seen, Verdict
from caretaker.imds.merge import Wanted

Group = tuple[str, str]  # kind and name; ("", "") = of no group

BATCH: Final = 100  # changes in one pass
# What is to be changed, and a canary that is to pass, is read again when it was read longer ago.
FRESH_SECONDS: Final = 5.0
# What was changed is read again when it was read longer ago: canaries that soak, and with the next changes
# the others.
WATCH_SECONDS: Final = 60.0


class Found(msgspec.Struct, frozen=True, gc=False):
    """One instance.

    ready, ready_since  the Node's Ready condition, and its lastTransitionTime by the clock of whoever set it
    group               in which its changes count
    provable            the probe could run there
    """

    node: str
    instance: str
    region: str
    ready: bool
    seen: Seen | None
    verdict: Verdict
    wanted: Mapping[str, Wanted]
    group: Group = ("", "")
    ready_since: float = 0.0
    provable: bool = True


class Desk(msgspec.Struct, frozen=True):
    """What Enforce works with, beside what was found.

    now       seconds of a clock that never goes back; wall: Unix seconds, of which `tick` are one of those
    fresh_since  what was read since then, by the clock of Seen.at, was read in the last FRESH_SECONDS
    options   what the policy wants, by field
    hands     instance -> Hand
    others    instances for which EC2 has a change of another policy that was not seen applied
    free      region -> how many changes EC2's bucket allows now; cap: how many the policy's own does
    wait      seconds until both allow one
    stopped   (reason, message) of what keeps it from changing anything: a permission, an account's policy
    watched   instances that were changed a short time ago
    soaks     group -> (since, now) of soaks that this process has seen begin
    inherited instances that another process may have sent their change, by the status that this one found
    believed_since  of these: what was read since then, by the clock of Seen.at, knows of it
    denied    (instance, message) of a change that EC2 denied though it had said that it may be made
    first     instances that EC2 said may be changed, when it denied others
    proved    instances whose probe found what it should since their soak began; None: none is made
    faulty    of a canary's instances: what the probe found instead
    unproved  (reason, message) of a finding that counts and is not as expected; ("", "") = there is none
    needed    group -> the hop limit that its pods need, as measured
    """

    me: str
    generation: int
    now: float
    wall: float
    tick: float = 1.0
    fresh_since: float = 0.0
    loosening: tuple[Permit, ...] = ()
    tightening: tuple[Permit, ...] = ()
    options: Mapping[str, object] = {}
    canary_instances: int = 1
    canary_soak: float = 120.0
    on_failure: Literal["Keep", "Restore"] = "Keep"
    max_drift_percent: int = 100
    stop_after: int = 5
    pending_timeout: float = 120.0
    resumed_at: float = 0.0  # Unix seconds; what stopped before it is to go on
    canary: CanaryStatus | None = None
    watched: tuple[ChangedGroup, ...] = ()
    soaks: Mapping[Group, tuple[str, float]] = {}
    inherited: Collection[str] = ()
    believed_since: float = 0.0
    breaker: BreakerStatus | None = None
    hands: Mapping[str, Hand] = {}
    others: Collection[str] = ()
    failures: int = 0  # in a row
    last_failure: str = ""
    denied: tuple[str, str] = ("", "")
    first: Collection[str] = ()
    free: Mapping[str, int] = {}
    cap: int = BATCH
    wait: float = 0.0
    slowed: bool = False
    stopped: tuple[str, str] | None = None
    changed: Mapping[str, float] = {}  # instance -> when it was changed, in Unix seconds
    proved: frozenset[str] | None = None
    faulty: Mapping[str, str] = {}
    unproved: tuple[str, str] = ("", "")
    needed: Mapping[Group, int] = {}

    def fresh(self, seen: Seen, seconds: float = FRESH_SECONDS) -> bool:
        """Whether it was read in the last `seconds`."""
        return seen.at >= self.fresh_since - (seconds - FRESH_SECONDS) * self.tick


def recorded(canary: CanaryStatus | None, watched: Iterable[ChangedGroup]) -> set[str]:
    """Instances that may have been sent a change, by status."""
    every = (*(canary.groups if canary is not None else ()), *watched)
    return {one.instance for group in every for one in group.instances}
