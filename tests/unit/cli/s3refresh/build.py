"""S3AggregatedRefreshes to look at: a record, and what AWS says beside it."""

from typing import Any

import msgspec

from caretaker.api.conditions import Condition, ConditionStatus
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import QueueStatus, Spec, Status
from caretaker.cli.plan import Proposal
from caretaker.cli.s3refresh.aws_state import AwsState, QueueState
from caretaker.cli.s3refresh.plan import RefreshForecast, samples_of
from caretaker.cli.s3refresh.status import RefreshState
from caretaker.s3refresh import resource
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, Phase, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.forecast import outlooks
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.targets import registry
from testing import s3refreshes

NOW = 1_800_000_000.0  # 08:00:00Z
FEW = Scope(folders=frozenset({"/", "in", "in/2026"}))
MANY = Scope(folders=frozenset({"/", *(f"d{n:02}" for n in range(60))}))
CALL = Request(("in/2026", "in", "/"), recursive=False)

CLEAN = TargetState("clean", last=LastCall(NOW - 120, NOW - 120, NOW - 115, folders=3, result="Succeeded"))
WAITING = TargetState("waiting", dirty=DirtyScope(NOW - 10, FEW))
IN_FLIGHT = TargetState(
    "flying",
    dirty=DirtyScope(NOW - 5, EVERYTHING),
    in_flight=InFlight("n", NOW - 40, CALL),
    last=LastCall(NOW - 41, NOW - 40),
)
CALLING = TargetState("calling", claim=Claim("c", "me", NOW - 2, CALL, NOW - 40), last=LastCall(NOW - 2))
FAILING = TargetState(
    "failing",
    dirty=DirtyScope(NOW - 900, MANY),
    failure=Failure(2, "Throttled", "slow\x1b[2J down", NOW + 45),
)
DUE = TargetState("due", dirty=DirtyScope(NOW - 605, FEW))
EVERY: list[tuple[TargetState, Phase]] = [
    (CLEAN, "Clean"),
    (WAITING, "Debouncing"),
    (IN_FLIGHT, "InFlight"),
    (CALLING, "Claimed"),
    (FAILING, "Backoff"),
    (DUE, "Due"),
]


def conditions(*parts: tuple[str, ConditionStatus, str]) -> tuple[Condition, ...]:
    return tuple(Condition(*part, message="why", observed_generation=1) for part in parts)


def raw(
    targets: list[tuple[TargetState, Phase]] | None = None, *, generation: int = 1, **fields: Any
) -> RawRefresh:
    """As the API server has it; `spec` and fields of Status."""
    spec = fields.pop("spec", {})
    status = Status(
        **{
            "observed_generation": 1,
            "targets": tuple(resource.encode_target(target, phase) for target, phase in targets or ()),
            **fields,
        }
    )
    return RawRefresh(
        WireMeta(name="r", namespace="n", generation=generation),
        msgspec.Raw(msgspec.json.encode(s3refreshes.refresh(**spec))),
        msgspec.Raw(msgspec.json.encode(status)),
    )


def look(targets: list[tuple[TargetState, Phase]] | None = None, **how: Any) -> RefreshState:
    return RefreshState.at(raw(targets, **how), NOW)


QUEUE = QueueStatus(3, 1, 2, checked_at="2027-01-15T07:59:20Z")


def share(name: str, **fields: Any) -> Share:
    made = Share(
        name,
        f"arn:{name}",
        "bucket",
        group="arn:aws:storagegateway:eu-west-1:123456789012:gateway/sgw-1",
        region="eu-west-1",
    )
    return msgspec.structs.replace(made, **fields)


def prospect(
    *shares: Share,
    targets: list[tuple[TargetState, Phase]] | None = None,
    exists: bool = True,
    queue: QueueView | None = None,
    complete: bool = True,
    faults: tuple[str, ...] = (),
    samples: tuple[tuple[str, str], ...] = (),
    notes: tuple[str, ...] = (),
    before: RawRefresh | None = None,
    **how: Any,
) -> RefreshForecast:
    """A plan; `how` as of raw()."""
    now = raw(targets, **how)
    judged = read(now, registry().spec)
    assert isinstance(judged.spec, Spec)
    view = queue or QueueView(checked=True, visible=12, dead_letters=0, retention=345_600)
    url = judged.spec.source.sqs.queue_url
    found = AwsState([QueueState("spec.source.sqs.queueURL", url, view)], Discovery(complete, shares, faults))
    return RefreshForecast(
        proposal=Proposal(now, (before or now) if exists else None, notes=list(notes)),
        read=judged,
        aws_state=found,
        outlooks=outlooks(judged, NOW, found.shares),
        samples=samples_of(judged.spec, found.shares, samples),
        now=NOW,
    )
