"""The in-memory state of each policy in Enforce. No I/O.

It is lost with the process, so correctness must not depend on it.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import CanaryStatus, ChangedGroup
from caretaker.api.times import parse_time
from caretaker.imds.change_attempts import NEW, ChangeAttempt
from caretaker.imds.checks import OWN_SECONDS
from caretaker.imds.choice import ASKED
from caretaker.imds.enforce_input import FRESH_SECONDS, Group, HeldValues, recorded
from caretaker.imds.rate_limiter import AdaptiveRateLimiter

# Between two dry runs after a refusal.
AGAIN_SECONDS: Final = (15.0, 30.0, 60.0, 300.0)


class DryRuns(msgspec.Struct, frozen=True):
    """Results of dry runs. `stopped`: (reason, message) of a refusal that stops all changes; `refusal`:
    of the last one, and `refusals`: their number, since EC2 last accepted a change."""

    generation: int = -1
    stopped: tuple[str, str] | None = None
    refusal: tuple[str, str] | None = None
    again_at: float = 0.0
    refusals: int = 0


class Permission:
    """Whether EC2 lets the policy change instances, by its dry runs and its answers to changes."""

    def __init__(self) -> None:
        self.dry_runs = DryRuns()
        self.first: set[str] = set()  # instances whose dry run EC2 allowed when it denied others
        self.denied = ("", "")  # (instance, message) of a change that was denied after an allowed dry run
        self._refusing: set[str] = set()  # instances that were denied since EC2 last accepted a change

    @property
    def missing(self) -> bool:
        """Whether no change may be made."""
        return self.dry_runs.stopped is not None or bool(self.denied[0])

    @property
    def refused(self) -> tuple[str, str] | None:
        """(reason, message) of a refusal, until EC2 accepts a change: an allowed dry run is not enough."""
        if self.denied[0]:
            return Reason.ACCESS_DENIED, f"instance {self.denied[0]}: {self.denied[1]}"
        return self.dry_runs.refusal

    def asked(self, generation: int, stopped: tuple[str, str] | None, now: float) -> None:
        """After refusals the next dry run is delayed, until EC2 accepts a change."""
        before = self.dry_runs
        refusals = before.refusals if before.generation == generation else 0
        wait = AGAIN_SECONDS[min(refusals, len(AGAIN_SECONDS) - 1)]
        refusal = stopped or (before.refusal if refusals else None)
        refusals += stopped is not None
        self.dry_runs = DryRuns(generation, stopped, refusal, now + wait, refusals)

    def accepted(self) -> None:
        """EC2 has accepted a change."""
        self._refusing.clear()
        if self.dry_runs.stopped is None:
            self.dry_runs = msgspec.structs.replace(self.dry_runs, refusal=None, refusals=0)

    def refuses(self, instance: str) -> bool:
        """EC2 has denied the change of this instance and its dry run; whether it has so often enough."""
        self._refusing.add(instance)
        if len(self._refusing) < ASKED:
            return False
        self._refusing.clear()
        return True


class PolicyState:
    """The in-memory state of one policy."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.attempts: dict[str, ChangeAttempt] = {}
        # instance -> when it was changed, and once that is known when it was first seen applied; Unix seconds
        self.changed: dict[str, float] = {}
        self.landing: set[str] = set()  # those that were not seen applied yet
        self.unseen = False  # there are changes that other policies have not read
        self.failures: list[str] = []  # in a row, each with its instance
        self.permission = Permission()
        self.cap: AdaptiveRateLimiter | None = None
        self.soaks: dict[Group, tuple[str, float]] = {}  # group -> (since, monotonic time)
        # (instances of the status that this process found first, when: time.monotonic()); None: not read yet
        self.inherited: tuple[set[str], float] | None = None
        self.settles = False  # status had a canary or passed changes
        self.held: HeldValues = {}  # in the last pass whose status was stored

    def stopped(self, stop_after: int) -> bool:
        """Whether so many failures in a row, or a refused permission, stop all changes."""
        return len(self.failures) >= stop_after or self.permission.missing

    def inherit(self, instances: set[str], now: float) -> tuple[set[str], float]:
        """`inherited`: take the instances of the first status, and drop those that leave it."""
        if self.inherited is None:
            self.landing |= instances
        before, at = self.inherited or (instances, now)
        self.inherited = before & instances, at
        return self.inherited

    def land(self, canary: CanaryStatus | None, watched: Iterable[ChangedGroup]) -> None:
        """Instances that are seen applied, by status; the soak of a canary has a time of its own."""
        self.landing -= recorded(canary, ())
        for one in (one for group in watched for one in group.instances):
            if one.applied and one.instance in self.landing:
                self.landing.discard(one.instance)
                self.changed[one.instance] = parse_time(one.at) or 0.0

    def settles_in(self, canary: CanaryStatus | None, leads_for: float) -> float:
        """Seconds until each reading that counts shows the changes of the previous leader. A policy for which
        it has changed instances would else take an old value for one of which a change has passed, or may
        pass: also if no passed change counts any more."""
        self.settles = self.settles or canary is not None
        return max(OWN_SECONDS + FRESH_SECONDS - leads_for, 0.0) if self.settles else 0.0

    def soaking(self, canary: CanaryStatus | None, now: float) -> None:
        """Soaks that begin now, and those that continue. One that began in another process counts from here:
        the wall clocks of two machines may differ."""
        soaking = [one for one in (canary.groups if canary else ()) if one.phase == "Soaking"]
        soaks, self.soaks = self.soaks, {}
        for one in soaking:
            group = (one.kind, one.name)
            before = soaks.get(group)
            self.soaks[group] = before if before and before[0] == one.since else (one.since, now)

    def unsure(self) -> set[str]:
        """Instances to read again."""
        return {instance for instance, attempt in self.attempts.items() if attempt.unsure}

    def waiting(self) -> set[str]:
        """Instances whose attempt waits for EC2."""
        return {instance for instance, attempt in self.attempts.items() if attempt.waits}

    def keep(self, instance: str, attempt: ChangeAttempt) -> None:
        """Remember it; an empty attempt is removed."""
        if attempt == NEW:
            self.attempts.pop(instance, None)
        else:
            self.attempts[instance] = attempt

    def failed(self, instance: str, attempt: ChangeAttempt) -> None:
        """One more consecutive failure."""
        self.keep(instance, attempt)
        self.failures.append(f"{instance}: {attempt.trouble[1]}")

    def only(self, instances: Collection[str]) -> None:
        """Forget instances without a Node."""
        for instance in self.attempts.keys() - instances:
            del self.attempts[instance]
        for instance in self.changed.keys() - instances:
            del self.changed[instance]
        self.permission.first &= set(instances)
        self.landing &= set(instances)
