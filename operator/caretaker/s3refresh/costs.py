"""An estimate of the cost of refreshes: objects of buckets, requests to S3, prices, and a budget's interval.

Pure: times are seconds since the epoch, and arguments. A file gateway lists the folders that it refreshes,
1,000 keys in a LIST, and sends a HEAD for each object (AWS re:Post, "Why is the RefreshCache operation taking
a long time on my file gateway?"). CloudWatch has the objects of a whole bucket once a day, at midnight UTC,
a day or two late, and counts versions and parts of uploads, too; the number below a prefix is unknown. So
each refresh counts as if it listed the whole bucket, and for a budget as if it named as many folders as can
wait.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import ROUND_UP, Decimal
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.conditions import ConditionState
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import MAX_TARGETS, BucketStatus, CostSpec, CostStatus
from caretaker.api.times import format_time, parse_time
from caretaker.s3refresh.debounce import CLOCK_SKEW_SECONDS
from caretaker.s3refresh.folders import MAX_FOLDERS
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions

DAY: Final = 24 * 3600
KEYS_PER_LIST: Final = 1000
PRICED: Final = 1000  # requests that a price is for
HEADS_PER_SECOND: Final = 5500  # of one prefix (Amazon S3 user guide, "Best practices design patterns")
DAY_MINUTES: Final = 24 * 60
LONGEST_MINUTES: Final = DAY_MINUTES  # as of spec.debounce.minInterval
MINUTE_SECONDS: Final = 60.0  # of the interval that a budget allows
# A count that CloudWatch has not renewed for so long says nothing any more.
COUNT_SECONDS: Final = 7 * DAY
RETRY_SECONDS: Final = (60.0, 6 * 3600.0)  # after calls that failed: the first wait, which doubles; the last
SHOWN: Final = 3
PRICE_PATTERN: Final = r"^[0-9]{1,6}([.][0-9]{1,9})?$"
_PRICE: Final = re.compile(PRICE_PATTERN)
_AMOUNT: Final = re.compile(r"[0-9]{1,40}[.][0-9]{4}", re.ASCII)
MOST_OBJECTS: Final = 2**53
MOST_FAILURES: Final = 1000
MAX_PROBLEM: Final = 1024  # characters
NOT_ANSWERED: Final = "CloudWatch has not answered yet"
NO_DATA: Final = (
    "CloudWatch has no NumberOfObjects of it of the last days: a new bucket has none for a day or two, and a "
    "bucket of another region than its gateway has none in the gateway's"
)
TOO_OLD: Final = "its last count is older than a week"
NOT_ASKED: Final = (
    "CloudWatch is asked only for buckets that Storage Gateway names itself, without accessPointBuckets and "
    "endpointURLs.storagegateway"
)

Place = tuple[str, str]  # region, bucket


class Count(msgspec.Struct, frozen=True):
    """The last answer about a bucket: its objects, None = not known; when S3 counted, and when CloudWatch was
    asked. `failures`: calls in a row without an answer, one that is under way included."""

    asked_at: float = 0.0
    objects: int | None = None
    counted_at: float = 0.0
    failures: int = 0
    problem: str = ""

    def due_at(self) -> float:
        """When CloudWatch may be asked again: a day after an answer, sooner after a failure."""
        if not self.asked_at:
            return 0.0
        first, longest = RETRY_SECONDS
        wait = min(first * 2.0 ** min(self.failures - 1, 20), longest) if self.failures else DAY
        return self.asked_at + wait

    def counts_at(self, now: float) -> bool:
        """Whether it was not asked for ahead of now: a clock may have been wrong."""
        return self.asked_at <= now + CLOCK_SKEW_SECONDS


class CostView(msgspec.Struct, frozen=True):
    """The costs of a pass. `due`: buckets that CloudWatch is asked for once `status` stands; `wake`: when the
    next one is, 0 = never."""

    status: CostStatus | None = None
    due: Mapping[Place, Count] = {}
    wake: float = 0.0


# ---------------------------------------------------------------- money


def price_of(field: str, text: str) -> Decimal:
    """Raises ValueError with the field."""
    if _PRICE.fullmatch(text) is None:
        raise ValueError(f"spec.cost.{field}: {text!r} is no amount such as 0.005")
    return Decimal(text)


def cost_of(objects: int, spec: CostSpec, named: int = 1) -> Decimal:
    """Of one refresh of everything in a bucket by so many folders, each of which is a LIST at least.
    ValueError with the field."""
    lists = max(-(-objects // KEYS_PER_LIST), 1) + named - 1
    price = price_of("listPrice", spec.list_price)
    return (lists * price + objects * price_of("headPrice", spec.head_price)) / PRICED


def known_cost(buckets: Iterable[BucketStatus], spec: CostSpec, named: int = 1) -> Decimal | None:
    """Of one refresh of every target whose bucket is counted; None = none is."""
    known = [
        cost_of(_within(one.objects, MOST_OBJECTS), spec, named) * _within(one.targets, MAX_TARGETS)
        for one in buckets
        if one.objects is not None
    ]
    return sum(known, Decimal()) if known else None


def _within(number: int, most: int) -> int:
    """The number, bounded: another client may have written it into the status."""
    return min(max(number, 0), most)


def amount_of(text: str | None) -> float | None:
    """An amount of a status; None where there is none."""
    return float(text) if text and _AMOUNT.fullmatch(text) else None


def budget_of(spec: CostSpec) -> Decimal | None:
    """For a day. ValueError with the field."""
    text = spec.max_estimated_cost_per_day
    return None if text is None else price_of("maxEstimatedCostPerDay", text)


def allowed_minutes(spec: CostSpec | None, buckets: Iterable[BucketStatus]) -> float:
    """Whole minutes between two refreshes of a target with which a day costs at most the budget; 0 = no
    budget, or no cost is known; infinite = the budget is less than one refresh of each target."""
    if spec is None or (budget := budget_of(spec)) is None:
        return 0.0
    cost = known_cost(buckets, spec, MAX_FOLDERS)
    if not cost:
        return 0.0
    refreshes = int(budget // cost)
    return math.ceil(DAY_MINUTES / refreshes) if refreshes else math.inf


def widened(options: DebounceOptions, spec: CostSpec | None, status: CostStatus | None) -> DebounceOptions:
    """The options with the interval that the budget allows, at most a day. ValueError with the field, also
    without a count."""
    if spec is None:
        return options
    cost_of(0, spec)
    minutes = min(allowed_minutes(spec, status.buckets if status is not None else ()), LONGEST_MINUTES)
    return replace(options, budget_interval=minutes * MINUTE_SECONDS)


def money(amount: Decimal) -> str:
    """0.4050, rounded up."""
    return str(amount.quantize(Decimal("0.0001"), ROUND_UP))


def duration_text(minutes: float) -> str:
    """4h52m, as a spec has it."""
    hours, rest = divmod(int(minutes), 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest or not hours else "")


# ---------------------------------------------------------------- counts


def decode(status: BucketStatus, now: float) -> Count:
    """A count on record. One that was asked for ahead of now counts as never asked for."""
    objects = None if status.objects is None else _within(status.objects, MOST_OBJECTS)
    failures = _within(status.failures, MOST_FAILURES)
    asked_at, counted_at = parse_time(status.asked_at) or 0.0, parse_time(status.counted_at) or 0.0
    found = Count(asked_at, objects, counted_at, failures, status.problem)
    return found if found.counts_at(now) else replace(found, asked_at=0.0)


def encode(place: Place, targets: int, count: Count, now: float) -> BucketStatus:
    """The count as status has it; an old one is none."""
    region, bucket = place
    objects, problem = count.objects, count.problem
    if objects is not None and now - count.counted_at > COUNT_SECONDS:
        objects, problem = None, problem or TOO_OLD
    return BucketStatus(
        bucket,
        region,
        targets,
        objects,
        format_time(count.counted_at) if objects is not None else None,
        format_time(count.asked_at) if count.asked_at else None,
        count.failures,
        problem[:MAX_PROBLEM],
    )


def newer(old: Count, found: Count | None, now: float) -> Count:
    """The later of the two; but the end of a call counts until the next one is due, before a call without an
    end. One without objects keeps those of the other."""
    if found is None or not found.counts_at(now):
        return old
    if found.asked_at < old.asked_at and not (old.failures and found.due_at() > old.asked_at):
        return old
    if found.objects is None:
        return replace(found, objects=old.objects, counted_at=old.counted_at)
    return found


class CostInput(msgspec.Struct, frozen=True):
    """Besides the targets, everything that their costs follow from.

    named         buckets that only the spec names
    own_interval  seconds of spec.debounce.minInterval
    complete      whether every target was found
    """

    spec: CostSpec
    before: CostStatus | None
    now: float
    named: Collection[str] = ()
    own_interval: float = 60.0
    complete: bool = True


def view_of(inputs: CostInput, shares: Iterable[Share], found: Callable[[Place], Count | None]) -> CostView:
    """The costs of targets as they are found now. `found`: the counts that this process knows, for buckets
    that the service names. Others may have written the record, which names a bucket of `recorded` shares.

    A due bucket is recorded as one whose call failed: if its answer is lost, the next call is one after a
    failure."""
    now = inputs.now
    recorded = {(one.region, one.bucket): one for one in (inputs.before.buckets if inputs.before else ())}
    targets: dict[Place, list[Share]] = {}
    for share in shares:
        if share.bucket:
            targets.setdefault((share.region, share.bucket), []).append(share)
    buckets: list[BucketStatus] = []
    due: dict[Place, Count] = {}
    wakes: list[float] = []
    for place, some in targets.items():
        if place[1] in inputs.named or any(share.endpoint for share in some):
            buckets.append(encode(place, len(some), Count(problem=NOT_ASKED), now))
            continue
        old = decode(recorded[place], now) if place in recorded else Count(problem=NOT_ANSWERED)
        ready = any(share.ready and not share.recorded for share in some)
        count = newer(old, found(place), now) if ready else old
        if count.due_at() <= now and ready:
            count = due[place] = replace(count, asked_at=now, failures=count.failures + 1)
        wakes.append(count.due_at())
        buckets.append(encode(place, len(some), count, now))
    if not inputs.complete:
        buckets += [
            encode(place, one.targets, decode(one, now), now)
            for place, one in recorded.items()
            if place not in targets
        ]
    soonest = min((at for at in wakes if at > now), default=0.0)
    return CostView(status_of(inputs.spec, buckets, inputs.own_interval), due, soonest)


def status_of(spec: CostSpec, buckets: Iterable[BucketStatus], own_interval: float) -> CostStatus:
    """status.cost of these buckets."""
    every = tuple(sorted(buckets, key=lambda one: (one.region, one.bucket)))[:MAX_TARGETS]
    cost, allowed = known_cost(every, spec), allowed_minutes(spec, every)
    counted = [_within(one.objects, MOST_OBJECTS) for one in every if one.objects is not None]
    largest = max(counted, default=None)
    return CostStatus(
        every,
        None if cost is None else money(cost),
        None if largest is None else math.ceil(largest / HEADS_PER_SECOND),
        duration_text(min(allowed, LONGEST_MINUTES)) if allowed * MINUTE_SECONDS > own_interval else None,
    )


# ---------------------------------------------------------------- for people


def condition_of(spec: CostSpec, status: CostStatus) -> ConditionState:
    """CostEstimated."""
    unknown = [one for one in status.buckets if one.objects is None]
    if unknown:
        some = "; ".join(f"{one.bucket}: {one.problem}" for one in unknown[:SHOWN])
        more = f"; and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        kept = "" if spec.max_estimated_cost_per_day is None else f"; {_kept(status)}"
        return "False", Reason.COST_UNKNOWN, f"{some}{more}{kept}"
    if not status.buckets:
        return "Unknown", Reason.NOT_CHECKED, "there is no target yet"
    if status.min_interval is None:
        return "True", Reason.ESTIMATED, summary(status)
    budget = budget_of(spec)
    widened = f"{summary(status)}; maxEstimatedCostPerDay {budget} makes minInterval {status.min_interval}"
    if not math.isinf(allowed_minutes(spec, status.buckets)):
        return "True", Reason.INTERVAL_WIDENED, widened
    cannot = "the longest that changes may wait, and a day may cost more: one refresh of each target does"
    return "True", Reason.OVER_BUDGET, f"{widened}, {cannot}"


def _kept(status: CostStatus) -> str:
    if status.min_interval is None:
        return "minInterval stays as it is"
    return f"minInterval is {status.min_interval}, for the other buckets"


def summary(status: CostStatus) -> str:
    """One line: the cost and the time of a refresh of everything."""
    if status.refresh_cost is None or status.refresh_seconds is None:
        return "the cost of a refresh is not known"
    objects = sum((one.objects or 0) * one.targets for one in status.buckets)
    return (
        f"a refresh of everything costs an estimated {status.refresh_cost} for {objects} objects, and takes "
        f"{max(status.refresh_seconds, 1)} s or more; one of folders at most a LIST for each folder more"
    )
