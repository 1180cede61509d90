"""An S3AggregatedRefresh as the API server holds it: where it is, how it is read, how it debounces.

Pure, but it validates the shape of the object. It makes no calls.
"""

from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api import durations, names
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec, Status
from caretaker.aws.identity import User
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.s3refresh import status_codec
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.target_types import target_type_of

KIND: Final = S3_AGGREGATED_REFRESH.kind
FINALIZER: Final = f"{names.GROUP}/finalizer"


class RawRefresh(msgspec.Struct):
    """One whose spec has not been judged yet."""

    metadata: WireMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def user_of(meta: WireMeta) -> User:
    """The resource as the user of an assumed role."""
    return User(meta.namespace, S3_AGGREGATED_REFRESH.short, meta.name)


class Read(msgspec.Struct, frozen=True):
    """The resource; without a spec when that cannot be read, and why."""

    meta: WireMeta
    status: Status
    spec: Spec | None
    options: DebounceOptions = DebounceOptions()
    invalid: str = ""
    lost: bool = False  # the record cannot be read: everything counts as stale

    @property
    def first(self) -> bool:
        """Whether its targets were never looked up: an empty record may also be one that all have left."""
        # The queue is read, and its figures are written, only once targets were looked up.
        if self.status.targets or self.lost or self.status.queue.checked_at is not None:
            return False
        looked = c.find(self.status.conditions, c.TARGETS_RESOLVED)
        return looked is None or looked.reason not in (Reason.RESOLVED, Reason.NO_TARGETS)

    @property
    def active(self) -> bool:
        """Whether refreshes are made: not while it is suspended, unless it is on its way out."""
        return self.spec is not None and (self.flushing or not self.spec.suspend)

    @property
    def flushing(self) -> bool:
        """Whether it is being deleted and only waits for dirty targets."""
        return self.meta.deletion_timestamp is not None and FINALIZER in (self.meta.finalizers or ())


def targets_of(raw: RawRefresh, now: float) -> tuple[TargetState, ...]:
    """The targets in its status; none if the status cannot be decoded."""
    status = _status(raw)
    return tuple(status_codec.decode(one, now) for one in status.targets) if status is not None else ()


def _status(raw: RawRefresh) -> Status | None:
    try:
        return msgspec.json.decode(raw.status, type=Status)
    except msgspec.ValidationError:
        return None  # written by another client


def read(raw: RawRefresh, wanted: type[Spec], scale: float = 1.0) -> Read:
    """Judge it. `wanted` is a Spec with every target that there is. A spec older than a stricter CRD is
    shown, never a crash."""
    found = _status(raw)
    status, lost = found or Status(), found is None
    try:
        spec = msgspec.json.decode(raw.spec, type=wanted)
        options = options_of(spec, scale)
    except ValueError as error:  # msgspec.ValidationError is one
        invalid = str(error).replace("`$", "`spec")
        return Read(raw.metadata, status, None, invalid=invalid, lost=lost)
    return Read(raw.metadata, status, spec, options, lost=lost)


def options_of(spec: Spec, scale: float = 1.0) -> DebounceOptions:
    """Seconds. Raises ValueError with the field. `scale` is for tests: waits that no spec asks for, and the
    floor of 60 s."""
    debounce, retry = spec.debounce, spec.retry
    options = DebounceOptions(
        quiet_period=seconds("debounce.quietPeriod", debounce.quiet_period),
        max_delay=seconds("debounce.maxDelay", debounce.max_delay),
        min_interval=seconds("debounce.minInterval", debounce.min_interval) * scale,
        retry_initial=seconds("retry.initial", retry.initial) * scale,
        retry_max=seconds("retry.max", retry.max) * scale,
        claim_lost=DebounceOptions().claim_lost * scale,
        resync=seconds("resync.interval", spec.resync.interval),
    )
    return target_type_of(spec).debounce_options(options, scale)


def seconds(field: str, text: str) -> float:
    """A duration of the spec. ValueError with the field's path."""
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise ValueError(f"spec.{field}: {error}") from None
