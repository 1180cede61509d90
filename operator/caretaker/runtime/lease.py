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
from typing import Any, Protocol

import msgspec

from caretaker.kube.errors import ApiError, NotLeader

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
    """The methods of KubeClient that are used; see there."""

    async def get(self, path: str, type: type[WireLease], *, timeout: float, urgent: bool) -> WireLease:  # noqa: A002
        """Read by quorum."""
        ...

    async def create(
        self,
        path: str,
        body: dict[str, Any],
        type: type[WireLease],  # noqa: A002
        *,
        timeout: float,
        unguarded: bool,
    ) -> WireLease:
        """POST."""
        ...

    async def patch(
        self,
        path: str,
        body: dict[str, Any],
        type: type[WireLease],  # noqa: A002
        *,
        timeout: float,
        unguarded: bool,
    ) -> WireLease:
        """Merge-patch with a resourceVersion."""
        ...


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
    """One candidate for one Lease.

    duration        seconds a renewal is good for; others may take the Lease after it
    renew_deadline  seconds without an acknowledged renewal after which the holder steps down by itself
    retry           seconds between renewals, and between reads of a candidate
    holder          the last observed holder; "" = none
    """

    def __init__(
        self,
        client: LeaseClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry: float = 2.0,
    ) -> None:
        if not retry < renew_deadline < duration:
            raise ValueError(
                f"retry {retry} < renew_deadline {renew_deadline} < duration {duration} must hold"
            )
        self.identity = identity
        self.holder = ""
        self._client = client
        self._name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._clock = clock
        self._duration = duration
        self._renew_deadline = renew_deadline
        self._retry = retry
        self._leading = False
        self._renewed_at = 0.0  # when the last acknowledged renewal was sent
        # The observed record: its resourceVersion, the time of observation, its duration.
        self._version = ""
        self._observed_at = 0.0
        self._observed_duration = 0.0
        self._transitions = 0
        self._last_error = ""

    # --------------------------------------------------------------- public

    @property
    def held(self) -> bool:
        """Whether this process leads now."""
        return self._leading and self._clock() < self._renewed_at + self._duration

    def guard(self, timeout: float) -> None:
        """Raise NotLeader unless the Lease is held and outlives a call of `timeout` seconds from now."""
        if not self._leading:
            raise NotLeader(f"{self._name} is held by {self.holder or 'nobody'}")
        left = self._renewed_at + self._duration - self._clock()
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

    # ---------------------------------------------------------------- following

    async def _acquire(self) -> None:
        while True:
            if await self._attempt(self._try_acquire()):
                break
            await asyncio.sleep(self._retry * random.uniform(0.9, 1.1))
        self._leading = True
        log.info("leading: %s holds %s", self.identity, self._path)

    async def _try_acquire(self) -> bool:
        lease = await self._read()
        # A deleted Lease proves nothing about its holder, which may still act as the leader.
        if (
            self.holder not in ("", self.identity)
            and self._clock() < self._observed_at + self._observed_duration
        ):
            return False
        if lease is None:
            return await self._create()
        changes_hands = self.holder != self.identity
        return await self._write(self._spec(self._transitions + 1 if changes_hands else None))

    # ------------------------------------------------------------------ leading

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
            await asyncio.sleep(min(self._retry, max(self._until_deadline() / 2, self._retry / 4)))
            if self._until_deadline() <= 0:
                break
            renewed = await self._attempt(self._write(self._spec()))
            if not renewed and self.holder != self.identity:
                break
        why = f"is held by {self.holder or 'nobody'}"
        if self.holder == self.identity:  # as far as is known
            why = f"was not renewed within {self._renew_deadline:g} s"
        log.warning("no longer leading: %s %s", self._path, why)

    def _until_deadline(self) -> float:
        """Seconds until the holder steps down unless a renewal is acknowledged."""
        return max(0.0, self._renewed_at + self._renew_deadline - self._clock())

    async def _release(self) -> None:
        """Empty the holder, so that no candidate waits for the Lease to expire."""
        body = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._write(body)
        except (ApiError, TimeoutError) as error:
            log.warning("could not release %s, it runs out by itself: %s", self._path, error)

    # ----------------------------------------------------------------- requests

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
            body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
            try:
                lease = await self._client.patch(
                    self._path, body, WireLease, timeout=self._request_timeout(), unguarded=True
                )
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise
            else:
                self._acknowledged(lease, sent)
                return True
            if await self._read() is None:
                self.holder = ""
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
            lease = await self._client.create(
                self._collection, body, WireLease, timeout=self._request_timeout(), unguarded=True
            )
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._read()
            return False
        self._acknowledged(lease, sent)
        return True

    async def _read(self) -> WireLease | None:
        """Read the record and observe a change; None when there is none."""
        try:
            lease = await self._client.get(
                self._path, WireLease, timeout=self._request_timeout(), urgent=True
            )
        except ApiError as error:
            if not error.not_found:
                raise
            return None
        if lease.metadata.resource_version != self._version:
            self._observe(lease)
        return lease

    def _observe(self, lease: WireLease) -> None:
        self._version = lease.metadata.resource_version
        self._observed_at = self._clock()
        self._observed_duration = float(lease.spec.lease_duration_seconds or 0)
        self.holder = lease.spec.holder_identity or ""
        self._transitions = lease.spec.lease_transitions or 0

    def _acknowledged(self, lease: WireLease, sent: float) -> None:
        self._observe(lease)
        self._renewed_at = sent

    def _spec(self, transitions: int | None = None) -> dict[str, Any]:
        """The spec of a renewal; with `transitions`, of an acquisition."""
        now = _now()
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            # Rounded up: others wait at least as long as we lead.
            "leaseDurationSeconds": int(-(-self._duration // 1)),
            "renewTime": now,
        }
        if transitions is not None:
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    def _request_timeout(self) -> float:
        """Seconds for one request: two fit into the renew deadline (as client-go sets it up)."""
        half = self._renew_deadline / 2
        return min(half, self._until_deadline()) if self._leading and self._until_deadline() > 0 else half


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
