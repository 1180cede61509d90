"""The calls of Enforce that change instances.

Inputs: a plan's writes, AWS. It makes no decisions: the plan lists the instances, and status lists them
before the first call. Each call is made once; the outcome of a call without an answer is read from EC2.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.times import parse_time
from caretaker.aws.ec2 import Ec2Writer
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.services import Rate, read_only
from caretaker.imds.change_attempts import BACKOFF_SECONDS, NEW, failed, landed, sent, unanswered
from caretaker.imds.checks import OWN_SECONDS
from caretaker.imds.choice import Write
from caretaker.imds.enforce import Enforced
from caretaker.imds.enforce_input import FRESH_SECONDS, EnforceInput, recorded
from caretaker.imds.gather import advice
from caretaker.imds.inventory import Inventory
from caretaker.imds.launching import ENFORCES
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.policy_state import DryRuns, PolicyState
from caretaker.imds.rate_limiter import AdaptiveRateLimiter, cap
from caretaker.imds.resource import ParsedPolicy, user_of
from caretaker.imds.stops import would_cut
from caretaker.kube.errors import NotLeader
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

PERMITTED: Final = "DryRunOperation"  # EC2's error code for a dry run that it allows
# Denials beyond IAM: EC2's own enforcement for the account, or a policy of the organization.
_UNSUPPORTED: Final = "UnsupportedOperation"
_ORGANIZATION: Final = "service control policy"
_ENFORCED: Final = "httpTokensEnforced"
# The instance is ending or stopping; neither the call nor the options are at fault.
_INCORRECT_STATE: Final = "IncorrectInstanceState"
# Concurrent calls of a batch: so many may still be in flight when EC2 refuses one.
AT_ONCE: Final = 8


class InstanceModifier:
    """The writer of all policies."""

    def __init__(
        self,
        ec2: Callable[[ClientKey], Ec2Writer],
        inventory: Inventory,
        rate: Rate,
        metrics: PolicyMetrics,
        *,
        instance_identity: bool = False,
    ) -> None:
        self._ec2 = ec2
        self._inventory = inventory
        self._rate = rate
        self._metrics = metrics
        self._instance_identity = instance_identity
        self._states: dict[Key, PolicyState] = {}
        self._leads_since = math.inf  # by time.monotonic(): the first pass
        self._limiters: dict[
            tuple[str, str], AdaptiveRateLimiter
        ] = {}  # by account and region, as EC2 counts

    def of(self, key: Key, uid: str) -> PolicyState:
        """The state of this policy; another UID is another policy."""
        found = self._states.get(key)
        if found is None or found.uid != uid:
            found = self._states[key] = PolicyState(uid)
        return found

    def forget(self, key: Key) -> None:
        """The policy is deleted, or in Audit: its next Enforce starts with an empty state."""
        self._states.pop(key, None)

    def clear(self) -> None:
        """Another process may have changed everything."""
        self._states.clear()
        self._leads_since = math.inf

    # ---------------------------------------------------------------- before a plan

    def enforce_input(
        self, mine: ParsedPolicy, state: PolicyState, targets: Mapping[str, ClientKey]
    ) -> EnforceInput:
        """The input of the plan; `targets` by region."""
        assert mine.spec is not None  # noqa: S101 - only a policy that can be read is enforced
        safety, now = mine.spec.safety, time.monotonic()
        rate = cap(safety.max_changes_per_minute)
        if state.cap is None:
            state.cap = AdaptiveRateLimiter(rate, now)
        state.cap.pace(rate, now)
        limiters = {region: self._limiter(target, now) for region, target in targets.items()}
        waits = [one.wait(now) for one in limiters.values()]
        resumed = parse_time((mine.meta.annotations or {}).get(names.RESUME_AT)) or 0.0
        state.soaking(mine.status.canary, now)
        found = recorded(mine.status.canary, mine.status.changed)
        inherited, inherited_at = state.inherit(found, time.monotonic())
        state.land(mine.status.canary, mine.status.changed)
        self._leads_since = min(self._leads_since, now)
        permission = state.permission
        held = state.settles_in(mine.status.canary, now - self._leads_since)
        return EnforceInput(
            me=mine.meta.name,
            generation=mine.meta.generation,
            now=now,
            wall=time.time(),
            fresh_since=_fresh_since(),
            loosening=safety.allow_loosening,
            tightening=safety.allow_tightening,
            canary_instances=safety.canary.instances,
            canary_soak=mine.soak,
            on_failure=safety.canary.on_failure,
            max_drift_percent=safety.max_drift_percent,
            stop_after=safety.stop_after_consecutive_failures,
            pending_timeout=mine.pending,
            resumed_at=resumed,
            canary=mine.status.canary,
            watched=mine.status.changed,
            soaks=state.soaks,
            inherited=inherited,
            believed_since=inherited_at + OWN_SECONDS,
            breaker=mine.status.breaker,
            attempts=state.attempts,
            others=frozenset[str]().union(
                *(one.waiting() for one in self._states.values() if one is not state)
            ),
            failures=len(state.failures),
            last_failure=state.failures[-1] if state.failures else "",
            denied=permission.denied,
            first=frozenset(permission.first),
            free={region: one.free(now) for region, one in limiters.items()},
            cap=state.cap.free(now) if not held else 0,
            wait=max(state.cap.wait(now), min(waits, default=0.0), held),
            slowed=any(one.slowed(now) for one in limiters.values()),
            stopped=self._stopped(mine, state),
            changed=state.changed,
            own_identity=self._instance_identity,
        )

    def _stopped(self, mine: ParsedPolicy, state: PolicyState) -> tuple[str, str] | None:
        if self._instance_identity and (field := _cuts(mine)):
            return would_cut(field)
        return state.permission.dry_runs.stopped

    async def ask(
        self,
        mine: ParsedPolicy,
        state: PolicyState,
        writes: Sequence[Write],
        targets: Mapping[str, ClientKey],
    ) -> bool:
        """Dry runs of these writes: once for each generation, and again after a refusal. A single denial may
        be due to tags: only if all are denied, the permission is missing. Returns whether a dry run was
        made."""
        permission, dry_runs, generation = state.permission, state.permission.dry_runs, mine.meta.generation
        if not writes:
            if dry_runs.stopped is not None:
                permission.dry_runs = DryRuns()  # there is no instance to ask for, and none to change
            return dry_runs.stopped is not None
        same = dry_runs.generation == generation
        if same and (dry_runs.stopped is None or time.monotonic() < dry_runs.again_at):
            return False
        if self._stopped(mine, state) is not dry_runs.stopped:
            return False  # nothing would be sent
        stopped = None
        for write in writes:
            error = await self._dry_run(mine, write, targets[write.region])
            stopped = refused(error) if error is not None else None
            if error is None:
                self._first(state, write.instance)
            if error is None or not error.access_denied:
                break
            self._waits(state, write, error)
        permission.asked(generation, stopped, time.monotonic())
        return True

    def _first(self, state: PolicyState, instance: str) -> None:
        """Change this instance next: an accepted change proves more than a dry run."""
        state.permission.first.add(instance)
        if (attempt := state.attempts.get(instance)) is not None and not attempt.fighting:
            state.keep(instance, msgspec.structs.replace(attempt, not_before=time.monotonic()))

    def _waits(self, state: PolicyState, write: Write, error: AwsError) -> None:
        """Move it behind the others. A dry run is no attempt, so the backoff does not grow."""
        attempt, now = state.attempts.get(write.instance, NEW), time.monotonic()
        tried = msgspec.structs.replace(attempt, options=write.options)
        failure = failed(tried, now, error.code, error.message)
        failures, later = max(attempt.failures, 1), max(attempt.not_before, now + BACKOFF_SECONDS)
        state.keep(write.instance, msgspec.structs.replace(failure, failures=failures, not_before=later))

    async def _dry_run(
        self, mine: ParsedPolicy, write: Write, target: ClientKey, *, sure: bool = False
    ) -> AwsError | None:
        """The refusal of a dry run; None = allowed. EC2's limit counts dry runs like changes. `sure`: None
        only for EC2's own permission."""
        self._limiter(target, time.monotonic()).take(time.monotonic())
        try:
            await self._writer(mine, target).modify_instance_metadata_options(
                InstanceId=write.instance, **write.options, DryRun=True
            )
        except AwsError as error:
            if error.throttled:
                self._limiter(target, time.monotonic()).refused(time.monotonic())
            conclusive = sure or error.access_denied or error.no_identity or error.transient
            if error.code != PERMITTED and conclusive:
                return error
        return None  # the change itself will report any other error

    # ---------------------------------------------------------------- after a plan

    def note(self, state: PolicyState, enforced: Enforced, instances: Collection[str]) -> None:
        """Take over the plan's attempts. `instances`: of all nodes."""
        if enforced.closed:
            state.failures, state.permission.denied = [], ("", "")
        for instance, attempt in enforced.attempts.items():
            if attempt.failures > state.attempts.get(instance, NEW).failures:
                state.failed(instance, attempt)
            else:
                state.keep(instance, attempt)
        state.only(instances)
        state.land(enforced.canary, enforced.changed)
        state.soaking(enforced.canary, time.monotonic())

    async def carry_out(
        self,
        mine: ParsedPolicy,
        state: PolicyState,
        writes: Iterable[Write],
        targets: Mapping[str, ClientKey],
    ) -> None:
        """Make the calls, some concurrently. A failed call does not stop the others, unless none may be
        made."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def change(write: Write) -> None:
            async with turns:
                if self._may_go_on(mine, state, write, targets[write.region]):
                    await self._change(mine, state, write, targets[write.region])

        for outcome in await asyncio.gather(*map(change, writes), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _may_go_on(self, mine: ParsedPolicy, state: PolicyState, write: Write, target: ClientKey) -> bool:
        """Whether the call may still be made. Since the plan there may have been consecutive failures, a
        refused permission, throttling, or calls of another policy; or the read is now too old."""
        assert mine.spec is not None  # noqa: S101 - only a policy that can be read is enforced
        stopped = state.stopped(mine.spec.safety.stop_after_consecutive_failures)
        fresh = self._inventory.instances(target).read_at(write.instance) >= _fresh_since()
        now = time.monotonic()
        return not stopped and fresh and self._limiter(target, now).free(now) > 0

    async def _change(
        self, mine: ParsedPolicy, state: PolicyState, write: Write, target: ClientKey, *, again: bool = False
    ) -> None:
        """`again`: after a denial, since EC2 then allowed the dry run."""
        now = time.monotonic()
        self._limiter(target, now).take(now)
        if state.cap is not None and not again:
            state.cap.take(now)
        attempt = state.attempts.get(write.instance, NEW)
        instances = self._inventory.instances(target)
        self._settle_applied(state, write.instance, target)
        state.permission.first.discard(write.instance)
        # A cancelled call has an unknown outcome.
        state.keep(write.instance, unanswered(attempt, now, write.options))
        self._inventory.doubt(write.instance, write.options)
        try:
            answer = await self._writer(mine, target).modify_instance_metadata_options(
                InstanceId=write.instance, **write.options
            )
        except NotLeader:
            state.keep(write.instance, attempt)  # nothing was sent
            instances.refused(write.instance)
            raise
        except AwsError as error:
            self._metrics.changed(error.code)
            logger.warning("%s was not changed: %s", write.instance, error)
            denied = error.access_denied and _ORGANIZATION not in error.message
            if not error.unknown_outcome:  # else it is kept as unanswered
                state.keep(write.instance, attempt)
                instances.refused(write.instance)
                if not (denied and again):  # two denials of one attempt are one failure
                    self._failed(mine, state, write, target, error)
            if denied and again:  # retries would never end: the breaker opens
                why = f"EC2 denied the change although it had allowed the dry run: {error}"
                state.permission.denied = (write.instance, why)
            elif denied and await self._allowed(mine, state, write, target):
                await self._change(mine, state, write, target, again=True)
            return
        self._metrics.changed("Changed")
        state.failures, state.unseen = [], True
        state.permission.accepted()
        state.keep(write.instance, sent(attempt, now, write.options))
        state.changed[write.instance] = time.time()
        state.landing.add(write.instance)
        self._inventory.changed(target, write.instance, answer.get("InstanceMetadataOptions") or {})

    def _settle_applied(self, sender: PolicyState, instance: str, target: ClientKey) -> None:
        """End the pending changes of other policies that EC2 has reported as applied. Their next pass would
        take the change of `sender` for their own, and send theirs again."""
        for other in self._states.values():
            attempt = other.attempts.get(instance, NEW)
            waits = other is not sender and attempt.waits
            if waits and self._inventory.instances(target).applied(instance, attempt.options):
                other.keep(instance, landed(attempt, time.monotonic()))

    def _failed(
        self, mine: ParsedPolicy, state: PolicyState, write: Write, target: ClientKey, error: AwsError
    ) -> None:
        """EC2 has definitely not made the change."""
        instance, now = write.instance, time.monotonic()
        tried = msgspec.structs.replace(state.attempts.get(instance, NEW), options=write.options)
        failure = failed(tried, now, error.code, error.message)
        if error.throttled:
            self._limiter(target, now).refused(now)
        elif error.not_found:
            state.keep(instance, failure)  # the plan sees that EC2 refused the change
            state.changed.pop(instance, None)
            self._inventory.instances(target).gone(instance, time.monotonic())
        elif error.code == _UNSUPPORTED or _ORGANIZATION in error.message:
            # EC2 gives the same message for every refused change: no instance can be launched.
            enforced = _ENFORCED in error.message
            why = f"{error}; {ENFORCES if enforced else 'the account or its organization forbids it'}"
            refusal = failed(tried, now, Reason.BLOCKED_BY_ACCOUNT_POLICY, why, wait=mine.resync)
            state.failed(instance, refusal)
        elif error.no_identity:
            state.keep(instance, failure)
            state.permission.asked(mine.meta.generation, refused(error), now)
        elif error.access_denied or error.code == _INCORRECT_STATE:
            state.keep(instance, failure)
        else:
            state.failed(instance, failure)

    async def _allowed(self, mine: ParsedPolicy, state: PolicyState, write: Write, target: ClientKey) -> bool:
        """Whether EC2 allows the dry run of a denied change. If not, the tags of its instance may be why."""
        permission = state.permission
        if permission.missing:
            return False
        error = await self._dry_run(mine, write, target, sure=True)
        if error is not None and permission.refuses(write.instance):
            permission.asked(mine.meta.generation, refused(error), time.monotonic())
        assert mine.spec is not None  # noqa: S101 - as in _may_go_on
        return error is None and not state.stopped(mine.spec.safety.stop_after_consecutive_failures)

    # ---------------------------------------------------------------- parts

    def _writer(self, mine: ParsedPolicy, target: ClientKey) -> Ec2Writer:
        """In Audit one that refuses all changes."""
        mine_alone = target.used_by(user_of(mine.meta.name))
        writer = self._ec2(msgspec.structs.replace(mine_alone, once=True))
        return writer if mine.enforces else read_only(writer)

    def _limiter(self, target: ClientKey, now: float) -> AdaptiveRateLimiter:
        """Of our part of EC2's limit, which all callers of an account and region have in common. An unknown
        account has one of its own."""
        role = target.identity.role_arn.split(":")
        account = role[4] if len(role) > 4 else self._inventory.account(target)
        key = (account, target.region)
        if key not in self._limiters:
            self._limiters = {
                one: limiter for one, limiter in self._limiters.items() if not limiter.idle(now)
            }
            self._limiters[key] = AdaptiveRateLimiter(self._rate, now)
        return self._limiters[key]


def _fresh_since() -> float:
    """Reads since then are fresh, by time.monotonic()."""
    return time.monotonic() - FRESH_SECONDS


def refused(error: AwsError) -> tuple[str, str]:
    """(reason, message) for conditions."""
    denied = Reason.ACCESS_DENIED if error.access_denied else Reason.NOT_ASKED
    return Reason.NO_IDENTITY if error.no_identity else denied, f"{error}{advice(error)}"


def _cuts(mine: ParsedPolicy) -> str:
    """The option that would cut pods off from IMDS on any node; "" = none."""
    options = mine.spec.options if mine.spec is not None else None
    if options is not None and options.http_put_response_hop_limit == 1:
        return "httpPutResponseHopLimit"
    return "httpEndpoint" if options is not None and options.http_endpoint == "disabled" else ""
