"""The input of Enforce's decisions: the instances, the state of the process, and status. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from caretaker.api.imds import BreakerStatus, CanaryStatus, ChangedGroup, Expectation, Permit
from caretaker.api.times import parse_time
from caretaker.imds.change_attempts import ChangeAttempt
from caretaker.imds.checks import CheckResult, ObservedInstance
from caretaker.imds.merge import DesiredOption

Group = tuple[str, str]  # kind and name; ("", "") = of no group
# (group, field, value) -> instances on which another policy holds that value.
HeldValues = Mapping[tuple[Group, str, str], Collection[str]]

BATCH: Final = 100  # changes in one pass
# Instances are read again before a change, and before a canary passes, if the last read is older.
FRESH_SECONDS: Final = 5.0
# Changed instances are read again if the last read is older: soaking canaries, and with the next changes the
# watched ones.
WATCH_SECONDS: Final = 60.0


class CheckedInstance(msgspec.Struct, frozen=True, gc=False):
    """One instance.

    ready, ready_since  the Node's Ready condition, and its lastTransitionTime by the clock of its writer
    group               of its canary
    provable            a probe could verify its change
    cordoned            the Node is unschedulable
    """

    node: str
    instance: str
    region: str
    ready: bool
    observed: ObservedInstance | None
    result: CheckResult
    desired: Mapping[str, DesiredOption]
    group: Group = ("", "")
    ready_since: float = 0.0
    provable: bool = True
    cordoned: bool = False


class EnforceInput(msgspec.Struct, frozen=True):
    """The input of Enforce, besides the instances.

    now       seconds of a clock that never goes back; wall: Unix seconds
    fresh_since  reads since then, by the clock of ObservedInstance.at, are at most FRESH_SECONDS old
    options   the options of the policy, by field
    attempts  instance -> its last attempt
    others    instances with a pending change of another policy
    free      region -> number of changes that EC2's limit allows now; cap: that the policy's rate allows
    wait      seconds until both allow one
    stopped   (reason, message) if no change may be made: a permission, an account policy
    watched   recently changed instances
    soaks     group -> (since, now) of soaks: when this process first saw them
    inherited instances in the status that this process found: another process may have sent their change
    believed_since  reads of these since then, by the clock of ObservedInstance.at, show that change
    denied    (instance, message) of a change that EC2 denied after it had allowed the dry run
    first     instances whose dry run EC2 allowed when it denied others
    expect    the expected result of the probe
    proved    instances that passed the probe since their soak began; None: there is no probe
    faulty    instances of a canary -> unexpected result of the probe
    unprobed  instances of a soaking canary -> why they cannot be probed
    asked_ahead  instances of canaries -> time of the last probe request, if that is in the future
    unproved  (reason, message) of an unexpected result, or of a probe that cannot be used; ("", "") = none
    needed    group -> the hop limit that its pods need, as measured
    enforced  region -> why optional tokens are not sent; "" = they may be
    by_tag    a policy selects instances by the tag of their Auto Scaling group
    tokens_held  instance -> (reason, message): spec.tokenGate holds back that its tokens are required
    rejected  instance of a canary -> (when it was read, IMDSv1 calls that were rejected since its change),
              Unix seconds; None: there is no gate
    held      values of other policies in the last pass whose status was stored, by this process
    instances those of all Nodes
    own_identity  the operator's own credentials may come from the instance metadata of its node
    """

    me: str
    generation: int
    now: float
    wall: float
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
    resumed_at: float = 0.0  # Unix seconds; closes a breaker that opened before
    canary: CanaryStatus | None = None
    watched: tuple[ChangedGroup, ...] = ()
    soaks: Mapping[Group, tuple[str, float]] = {}
    inherited: Collection[str] = ()
    believed_since: float = 0.0
    breaker: BreakerStatus | None = None
    attempts: Mapping[str, ChangeAttempt] = {}
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
    expect: Expectation = "Any"
    proved: frozenset[str] | None = None
    faulty: Mapping[str, str] = {}
    unprobed: Mapping[str, str] = {}
    asked_ahead: Mapping[str, float] = {}
    unproved: tuple[str, str] = ("", "")
    needed: Mapping[Group, int] = {}
    enforced: Mapping[str, str] = {}
    by_tag: bool = False
    tokens_held: Mapping[str, tuple[str, str]] = {}
    rejected: Mapping[str, tuple[float, float]] | None = None
    held: HeldValues = {}
    instances: Collection[str] = ()
    own_identity: bool = False

    @property
    def closes(self) -> bool:
        """Whether the breaker is to be closed: a person has resumed the policy since, or changed its spec."""
        if self.breaker is None:
            return False
        opened = parse_time(self.breaker.opened_at) or 0.0
        return self.breaker.generation != self.generation or self.resumed_at > opened

    @property
    def same_spec(self) -> bool:
        """Whether status is of this spec: an edit of the spec may exclude instances on purpose."""
        return self.canary is not None and self.canary.generation == self.generation

    def fresh(self, observed: ObservedInstance, seconds: float | None = None) -> bool:
        """Whether it was read in the last `seconds`; None = FRESH_SECONDS."""
        more = seconds - FRESH_SECONDS if seconds is not None else 0.0
        return observed.at >= self.fresh_since - more

    def ungrouped_at(self, one: CheckedInstance) -> float:
        """See ObservedInstance; 0 also if nothing depends on the tag of its group."""
        depends = self.by_tag or (self.canary_instances and one.group == ("", ""))
        return one.observed.ungrouped_at if depends and one.observed is not None else 0.0


def recorded(canary: CanaryStatus | None, watched: Iterable[ChangedGroup]) -> set[str]:
    """Instances that were sent a change, by status."""
    every = (*(canary.groups if canary is not None else ()), *watched)
    return {one.instance for group in every for one in group.instances}
