"""Leader election by one Lease (coordination.k8s.io/v1), with a guard for writes.

Inputs: a client, the Lease's name, this process's identity (unique per process, not per Pod), a monotonic
clock. It must not compare clocks of two machines: a candidate measures how long *it* has seen the record
unchanged, a holder counts from the moment *before* it sent the renewal that was acknowledged. So a holder's
time always ends before a candidate's wait does (client-go's tools/leaderelection argues the same way).

    holder     send renewal ---> ack        guard: now + timeout < send + duration        step down
               |<------------------------- duration ------------------------->|
    candidate          sees the record change |<------------ duration ------------>| takes it
"""

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from caretaker.kube.errors import ApiError, NotLeader, or_none
from caretaker.kube.transport import Request

log = logging.getLogger(__name__)

Callback = Callable[[], Awaitable[None] | None]

# Timeout of the release at a clean stop: longer than it takes, below a Pod's grace period.
_RELEASE_SECONDS = 2.0


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class WireLease(msgspec.Struct):
    """coordination.k8s.io/v1 Lease, as far as it is read."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class LeaseClient(Protocol):
    """The method of KubeClient that is used; see there."""

    async def urgent(self, request: Request, type: type[WireLease]) -> WireLease: ...  # noqa: A002


class LeaseTimes(msgspec.Struct, frozen=True):
    """Seconds.

    duration        a renewal is good for; others may take the Lease after it
    renew_deadline  without an acknowledged renewal, after which the holder steps down by itself
    retry           between renewals, and between reads of a candidate
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.retry < self.renew_deadline < self.duration:
            raise ValueError(
                f"retry {self.retry} < renew_deadline {self.renew_deadline} < duration {self.duration} "
                "must hold"
            )


class _Seen(NamedTuple):
    """The record as it was seen last."""

    version: str = ""  # its resourceVersion
    holder: str = ""
    transitions: int = 0
    expires: float = 0.0  # its duration after it was first seen, by this process's clock


class NoLease:
    """Leads always: for --no-leader-elect, and for one replica that needs no Lease."""

    held = True

    def guard(self, timeout: float) -> None:
        """Lets everything pass."""

    async def run(self, on_started: Callback, on_stopped: Callback) -> None:
        """Start, wait until cancelled, stop."""
        try:
            await _call(on_started)
            await asyncio.get_running_loop().create_future()
        finally:
            await _call(on_stopped)


class Lease:
    """One candidate, `identity`, for the Lease of this namespace and name. `clock` never goes back."""

    def __init__(
        self,
        client: LeaseClient,
        key: tuple[str, str],
        identity: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        namespace, self._name = key
        self.identity = identity
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._times = times or LeaseTimes()
        self._clock = clock
        self._leading = False
        self._renewed_at = 0.0  # when the last acknowledged renewal was sent
        self._seen = _Seen()
        self._last_error = ""

    @property
    def holder(self) -> str:
        """The holder that was seen last; "" = none."""
        return self._seen.holder

    @property
    def held(self) -> bool:
        """Whether this process leads now."""
        return self._leading and self._clock() < self._renewed_at + self._times.duration

    def guard(self, timeout: float) -> None:
        """Raise NotLeader unless the Lease is held and outlives a call of `timeout` seconds from now."""
        if not self._leading:
            raise NotLeader(f"{self._name} is held by {self.holder or 'nobody'}")
        left = self._renewed_at + self._times.duration - self._clock()
        if left <= timeout:
            raise NotLeader(
                f"{self._name} is held for {max(0.0, left):.1f} s more, the call may take {timeout:g}"
            )

    async def run(self, on_started: Callback, on_stopped: Callback) -> None:
        """Acquire and hold the Lease, again and again, until cancelled.

        on_started runs beside the renewals and is cancelled when leadership ends; on_stopped is awaited
        after it. When run() is cancelled the Lease is still renewed while on_stopped drains, then
        released, so that a standby takes over at its next read. An exception of on_started ends run().
        """
        while True:
            await self._acquire()
            await self._lead(on_started, on_stopped)

    async def _acquire(self) -> None:
        while True:
            if await self._attempt(self._try_acquire()):
                break
            await asyncio.sleep(self._times.retry * random.uniform(0.9, 1.1))
        self._leading = True
        log.info("leading: %s holds %s", self.identity, self._path)

    async def _try_acquire(self) -> bool:
        lease = await self._read()
        # A deleted Lease proves nothing about its holder, which may still act as the leader.
        if self.holder not in ("", self.identity) and self._clock() < self._seen.expires:
            return False
        if lease is None:
            return await self._create()
        changes_hands = self.holder != self.identity
        return await self._write(self._spec(self._seen.transitions + 1 if changes_hands else None))

    async def _lead(self, on_started: Callback, on_stopped: Callback) -> None:
        work = asyncio.create_task(_call(on_started))
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            # Not `await renewing`: being cancelled would cancel the renewals before the drain.
            await asyncio.wait({renewing})
            renewing.result()
        finally:
            lost = renewing.done()
            self._leading = not lost
            try:
                await _cancel(work)
                await _call(on_stopped)
            finally:
                await _cancel(renewing)
                self._leading = False
                if not lost:
                    await self._release()

    async def _renew(self) -> None:
        """Renew until that fails for renew_deadline, or another process holds the Lease."""
        while True:
            # More often as the deadline comes near, to survive an error just before it.
            retry = self._times.retry
            await asyncio.sleep(min(retry, max(self._until_deadline() / 2, retry / 4)))
            if self._until_deadline() <= 0:
                break
            renewed = await self._attempt(self._write(self._spec()))
            if not renewed and self.holder != self.identity:
                break
        why = f"is held by {self.holder or 'nobody'}"
        if self.holder == self.identity:  # as far as is known
            why = f"was not renewed within {self._times.renew_deadline:g} s"
        log.warning("no longer leading: %s %s", self._path, why)

    def _until_deadline(self) -> float:
        """Seconds until the holder steps down unless a renewal is acknowledged."""
        return max(0.0, self._renewed_at + self._times.renew_deadline - self._clock())

    async def _release(self) -> None:
        """Empty the holder, so that no candidate waits for the Lease to expire."""
        body = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._write(body)
        except (ApiError, TimeoutError) as error:
            log.warning("could not release %s, it runs out by itself: %s", self._path, error)

    async def _attempt(self, attempt: Awaitable[bool]) -> bool:
        """The attempt's result; False when the API server fails, which is logged once."""
        try:
            answer = await attempt
        except (ApiError, msgspec.ValidationError) as error:
            why = _with_advice(error)
            if why != self._last_error:
                self._last_error = why
                log.warning("Lease: %s", why)
            return False
        self._last_error = ""
        return answer

    async def _write(self, spec: dict[str, Any]) -> bool:
        """Patch the observed Lease; False when another process holds it.

        A write whose response was lost shows as a conflict with ourselves: the record is read again and
        written once more, and only the write that is acknowledged counts.
        """
        ours = self.holder == self.identity
        for _ in range(2):
            sent = self._clock()
            body = {"metadata": {"resourceVersion": self._seen.version}, "spec": spec}
            try:
                lease = await self._send("patch", self._path, body)
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise
            else:
                self._acknowledged(lease, sent)
                return True
            if await self._read() is None:
                self._seen = self._seen._replace(holder="")
            if not ours or self.holder != self.identity:
                break
        return False

    async def _create(self) -> bool:
        sent = self._clock()
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(transitions=0),
        }
        try:
            lease = await self._send("create", self._collection, body)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._read()
            return False
        self._acknowledged(lease, sent)
        return True

    async def _read(self) -> WireLease | None:
        """Read the record and observe a change; None when there is none."""
        lease = await or_none(self._send("get", self._path))
        if lease is not None and lease.metadata.resource_version != self._seen.version:
            self._observe(lease)
        return lease

    def _observe(self, lease: WireLease) -> None:
        spec = lease.spec
        expires = self._clock() + float(spec.lease_duration_seconds or 0)
        version, holder = lease.metadata.resource_version, spec.holder_identity or ""
        self._seen = _Seen(version, holder, spec.lease_transitions or 0, expires)

    def _acknowledged(self, lease: WireLease, sent: float) -> None:
        self._observe(lease)
        self._renewed_at = sent

    def _spec(self, transitions: int | None = None) -> dict[str, Any]:
        """The spec of a renewal; with `transitions`, of an acquisition."""
        now = _now()
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            # Rounded up: others wait at least as long as we lead.
            "leaseDurationSeconds": int(-(-self._times.duration // 1)),
            "renewTime": now,
        }
        if transitions is not None:
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    @property
    def _path(self) -> str:
        return f"{self._collection}/{self._name}"

    async def _send(self, verb: str, path: str, body: dict[str, Any] | None = None) -> WireLease:
        """One request, whose timeout is such that two fit into the renew deadline (as client-go has it)."""
        timeout, left = self._times.renew_deadline / 2, self._until_deadline()
        if self._leading and left > 0:
            timeout = min(timeout, left)
        encoded = None if body is None else msgspec.json.encode(body)
        return await self._client.urgent(Request(verb, path, body=encoded, timeout=timeout), WireLease)


def _with_advice(error: Exception) -> str:
    """The error, with advice if the namespace of the Lease does not exist."""
    if isinstance(error, ApiError) and error.not_found and error.message.startswith("namespaces "):
        return f"{error}; create that namespace, or name another one with --operator-namespace"
    return str(error)


async def _call(callback: Callback) -> None:
    result = callback()
    if inspect.isawaitable(result):
        await result


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task that still runs, and wait for it."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed while it was stopped", task.get_name(), exc_info=error)


def _now() -> str:
    """metav1.MicroTime, for people: no code compares it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
