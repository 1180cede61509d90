"""What refreshes cost, and the interval that a budget allows."""

import math
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import BucketStatus, CostSpec, CostStatus
from caretaker.api.times import format_time
from caretaker.s3refresh import costs
from caretaker.s3refresh.costs import DAY, CostInput, CostView, Count, Place
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from testing.examples import SEED, examples

NOW = 1_800_000_000.0
MEDIA: Place = ("eu-west-1", "media")
SPEC = CostSpec()
MILLION = Count(NOW, 1_000_000, NOW - DAY)


def share(name: str = "share-1", bucket: str = "media", **fields: Any) -> Share:
    return Share(name, f"arn:{name}", bucket, region="eu-west-1", **fields)


def viewed(
    *shares: Share,
    spec: CostSpec = SPEC,
    before: CostStatus | None = None,
    counts: Mapping[Place, Count] | None = None,
    now: float = NOW,
    **how: Any,
) -> CostView:
    inputs = CostInput(spec, before, now, **how)
    return costs.view_of(inputs, shares or (share(),), (counts or {}).get)


def the_bucket(view: CostView) -> BucketStatus:
    assert view.status is not None
    (found,) = view.status.buckets
    return found


def budget(amount: str) -> CostSpec:
    return CostSpec(max_estimated_cost_per_day=amount)


@pytest.mark.parametrize(
    ("objects", "spec", "cost"),
    [
        (0, SPEC, "0.000005"),  # an empty bucket is listed, too
        (1, SPEC, "0.0000054"),  # a LIST and a HEAD
        (1000, SPEC, "0.000405"),
        (1001, SPEC, "0.0004104"),  # two LISTs
        (1_000_000, SPEC, "0.405"),  # the figure of docs/spec/s3aggregatedrefresh.md
        (1_000_000, CostSpec(list_price="0.01", head_price="0"), "0.01"),
    ],
)
def test_a_refresh_is_a_list_for_1000_objects_and_a_head_for_each(
    objects: int, spec: CostSpec, cost: str
) -> None:
    assert costs.cost_of(objects, spec) == Decimal(cost)


def test_each_folder_of_a_call_is_a_list_at_least() -> None:
    assert costs.cost_of(50, SPEC, 50) == 50 * Decimal("0.0000054")
    assert costs.cost_of(0, SPEC, 50) == 50 * Decimal("0.000005")
    assert costs.cost_of(1_000_000, SPEC, 500) == Decimal("0.407495")


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("listPrice", CostSpec(list_price="free")),
        ("headPrice", CostSpec(head_price="-1")),
        ("maxEstimatedCostPerDay", budget("1e3")),
    ],
)
def test_an_amount_of_an_older_crd_is_named(field: str, spec: CostSpec) -> None:
    with pytest.raises(ValueError, match=f"spec.cost.{field}"):
        costs.widened(DebounceOptions(), spec, None)


@pytest.mark.parametrize(
    ("amount", "targets", "interval"),
    [
        ("0.41", 1, 86400.0),  # one refresh a day, of up to 500 folders: 0.407495
        ("0.81", 1, 86400.0),  # and not two
        ("0.82", 1, 43200.0),
        ("0.82", 2, 86400.0),  # two shares of the bucket are refreshed each
        ("600", 1, 60.0),
        ("2", 1, 21600.0),  # four a day
        ("2.9", 1, 12360.0),  # seven a day: 3h25m43s, in whole minutes
        ("0.1", 1, 86400.0),  # changes wait for a day at most
        ("0", 1, 86400.0),
    ],
)
def test_the_interval_that_a_budget_allows(amount: str, targets: int, interval: float) -> None:
    status = CostStatus((BucketStatus("media", "eu-west-1", targets, 1_000_000),))
    found = costs.widened(DebounceOptions(), budget(amount), status)
    assert found == DebounceOptions(budget_interval=interval)


def test_without_a_budget_or_a_count_nothing_changes() -> None:
    status = CostStatus((BucketStatus("media", "eu-west-1", 1, 1000),))
    options = DebounceOptions(min_interval=7200.0)
    assert costs.widened(options, SPEC, status) == options  # no budget
    assert costs.widened(options, None, status) == options
    assert costs.widened(options, budget("0.1"), None) == options  # not counted yet
    unknown = CostStatus((BucketStatus("media", "eu-west-1", 1, None),))
    assert costs.widened(options, budget("0.1"), unknown) == options


def test_a_day_of_refreshes_costs_at_most_the_budget_and_hardly_less() -> None:
    """Whatever objects, prices and budgets there are."""
    for seed in range(SEED, SEED + examples(20_000)):
        random_ = random.Random(seed)
        buckets = [
            BucketStatus(
                f"b{n}",
                "eu-west-1",
                random_.randint(1, 4),
                random_.choice([None, 0, random_.randint(1, 10 ** random_.randint(1, 9))]),
            )
            for n in range(random_.randint(1, 5))
        ]
        spec = CostSpec(
            f"{random_.uniform(0, 0.02):.4f}",
            f"{random_.uniform(0, 0.002):.6f}",
            f"{10 ** random_.uniform(-3, 3):.3f}",
        )
        cost, minutes = costs.known_cost(buckets, spec, 500), costs.allowed_minutes(spec, buckets)
        if not cost:
            assert minutes == 0
            continue
        allowed = costs.budget_of(spec)
        assert allowed is not None
        options = costs.widened(DebounceOptions(), spec, CostStatus(tuple(buckets)))
        assert options.budget_interval == min(minutes * 60, DAY)
        if math.isinf(minutes):
            assert cost > allowed, "one refresh of each target is too much"
            continue
        assert isinstance(minutes, int)
        assert math.ceil(24 * 60 / minutes) * cost <= allowed, "the refreshes that begin within any 24 h"
        if minutes > 1:
            assert math.ceil(24 * 60 / (minutes - 1)) * cost > allowed
        more = costs.allowed_minutes(replace(spec, max_estimated_cost_per_day="999999"), buckets)
        assert more <= minutes


def test_a_bucket_is_asked_for_once_a_day() -> None:
    first = viewed()
    assert list(first.due) == [MEDIA]
    asked = the_bucket(first)
    assert (asked.objects, asked.failures, asked.problem) == (None, 1, costs.NOT_ANSWERED)
    answered = viewed(before=first.status, counts={MEDIA: MILLION})
    assert (the_bucket(answered).objects, answered.due) == (1_000_000, {})
    assert the_bucket(answered).counted_at == format_time(NOW - DAY)
    assert answered.wake == MILLION.asked_at + DAY
    # Another process knows the record alone.
    assert viewed(before=answered.status, now=NOW + DAY - 1).due == {}
    again = viewed(before=answered.status, now=NOW + DAY)
    assert list(again.due) == [MEDIA]
    assert the_bucket(again).objects == 1_000_000, "the last count stands meanwhile"


def test_an_answer_that_is_lost_is_a_failure_and_not_the_next_call() -> None:
    view, calls, now = viewed(), 1, NOW
    for _ in range(24 * 60):
        now += 60
        view = viewed(before=view.status, now=now)
        calls += len(view.due)
    assert calls == 12, "after 1, 2, 4 ... minutes, at most 6 hours"


def test_an_answer_of_the_day_counts_before_a_later_call_without_one() -> None:
    """Another resource's answer came in while this pass recorded its own call."""
    asked = viewed()
    earlier = Count(NOW - 5, 7, NOW - DAY)
    view = viewed(before=asked.status, counts={MEDIA: earlier}, now=NOW + 1)
    assert (the_bucket(view).objects, view.due) == (7, {})
    yesterday = Count(NOW - DAY, 7, NOW - DAY)
    assert the_bucket(viewed(before=asked.status, counts={MEDIA: yesterday}, now=NOW + 1)).objects is None


def test_numbers_of_a_forged_status_are_bounded() -> None:
    odd = BucketStatus("media", "eu-west-1", 10**400, 10**4000, format_time(NOW), format_time(NOW), 10**400)
    status = CostStatus((odd, replace(odd, bucket="b", objects=-5, failures=-(10**400))), "x" * 99)
    found = costs.widened(DebounceOptions(), budget("0.000000001"), status)
    assert found.budget_interval == DAY
    view = viewed(share(), share("share-2", "b"), before=status, now=NOW + 1, spec=budget("1"))
    assert view.status is not None
    assert [one.objects for one in view.status.buckets] == [0, 2**53]
    assert len(view.status.refresh_cost or "") < 64
    assert (costs.amount_of("x" * 99), costs.amount_of(None), costs.amount_of("0.4050")) == (
        None,
        None,
        0.405,
    )


def test_a_record_has_room_for_every_bucket_that_is_written() -> None:
    many = [share(f"share-{n}", f"b{n}") for n in range(100)]
    first = viewed(*many)
    assert first.status is not None
    assert len(first.status.buckets) == 64
    others = [share(f"share-{n}", f"c{n}") for n in range(64)]
    mixed = viewed(*others, before=first.status, complete=False)
    assert mixed.status is not None
    assert len(mixed.status.buckets) == 64


@pytest.mark.parametrize(
    ("failures", "problem", "wake"), [(1, "spec.cost: AccessDenied", 60), (0, costs.NO_DATA, DAY)]
)
def test_a_failure_and_an_answer_without_data_keep_the_last_count(
    failures: int, problem: str, wake: float
) -> None:
    counted = viewed(counts={MEDIA: MILLION})
    asked = viewed(before=counted.status, now=NOW + DAY)
    answer = Count(NOW + DAY, failures=failures, problem=problem)
    view = viewed(before=asked.status, counts={MEDIA: answer}, now=NOW + DAY + 1, spec=budget("2"))
    found = the_bucket(view)
    assert (found.objects, found.failures, found.problem) == (1_000_000, failures, problem)
    assert view.status is not None
    assert view.status.min_interval == "6h"
    assert view.wake == NOW + DAY + wake
    week = viewed(
        before=view.status, counts={MEDIA: replace(answer, asked_at=NOW + 7 * DAY)}, now=NOW + 7 * DAY
    )
    assert the_bucket(week).objects is None


def test_a_failure_of_another_resource_counts_before_a_call_that_was_not_made() -> None:
    """Its answer came in while this pass recorded its own call."""
    asked = viewed(now=NOW + 1)
    denied = Count(NOW, failures=1, problem="spec.cost: AccessDenied")
    view = viewed(before=asked.status, counts={MEDIA: denied}, now=NOW + 2)
    assert (the_bucket(view).problem, view.due, view.wake) == (denied.problem, {}, NOW + 60)


def test_a_count_that_is_a_week_old_says_nothing_any_more() -> None:
    counted = viewed(counts={MEDIA: MILLION})
    failed = Count(NOW + 7 * DAY, failures=9, problem="spec.cost: AccessDenied")
    view = viewed(before=counted.status, counts={MEDIA: failed}, now=NOW + 7 * DAY)
    assert (the_bucket(view).objects, the_bucket(view).problem) == (None, "spec.cost: AccessDenied")
    assert view.status is not None
    assert view.status.refresh_cost is None


def test_a_bucket_without_data_is_not_known_until_the_next_day() -> None:
    view = viewed(counts={MEDIA: Count(NOW, problem=costs.NO_DATA)}, spec=budget("1"))
    assert (the_bucket(view).objects, view.due) == (None, {})
    assert view.status is not None
    assert view.status.min_interval is None
    assert costs.condition_of(budget("1"), view.status)[:2] == ("False", Reason.COST_UNKNOWN)
    assert costs.condition_of(budget("1"), view.status)[2].endswith("; minInterval stays as it is")


def test_a_time_ahead_puts_no_call_off() -> None:
    ahead = CostStatus((BucketStatus("media", "eu-west-1", 1, 5, None, format_time(NOW + 30 * DAY)),))
    assert list(viewed(before=ahead).due) == [MEDIA]


def test_a_count_that_was_made_while_the_clock_was_ahead_puts_no_call_off() -> None:
    view = viewed(counts={MEDIA: Count(NOW + 30 * DAY, 5, NOW)})
    assert list(view.due) == [MEDIA]
    assert the_bucket(view).asked_at == format_time(NOW)


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (share(endpoint="https://vpce"), {}),
        (share(), {"named": frozenset({"media"})}),
    ],
    ids=["an endpoint of the spec", "accessPointBuckets"],
)
def test_a_bucket_that_only_the_spec_names_is_never_asked_for(found: Share, how: dict[str, Any]) -> None:
    """A tenant would see counts that the role may read, but the tenant may not."""
    view = viewed(found, counts={MEDIA: MILLION}, **how)
    assert (view.due, the_bucket(view).objects, the_bucket(view).problem) == ({}, None, costs.NOT_ASKED)


def test_a_share_that_is_not_available_is_counted_but_not_asked_for() -> None:
    assert viewed(share(ready=False)).due == {}
    assert list(viewed(share(ready=False), share("share-2")).due) == [MEDIA]
    counted = viewed(counts={MEDIA: MILLION})
    assert the_bucket(viewed(share(ready=False), before=counted.status)).objects == 1_000_000


@pytest.mark.parametrize("found", [share(ready=False), share(recorded=True)], ids=["not ready", "recorded"])
def test_a_bucket_of_the_record_is_not_asked_for_and_shows_no_count_of_another_resource(found: Share) -> None:
    """Its bucket may be one from a forged status."""
    view = viewed(found, counts={MEDIA: MILLION})
    assert (the_bucket(view).objects, view.wake) == (None, 0)
    assert viewed(found).due == {}


def test_a_call_that_is_overdue_is_no_time_to_look_again() -> None:
    """No share of the bucket is available."""
    old = CostStatus((BucketStatus("media", "eu-west-1", 1, 5, format_time(NOW), format_time(NOW)),))
    other: Place = ("eu-west-1", "other")
    now = NOW + 2 * DAY
    view = viewed(
        share(ready=False), share("share-2", "other"), before=old, counts={other: Count(now, 5, now)}, now=now
    )
    assert view.wake == now + DAY


def test_every_share_of_a_bucket_costs_and_one_call_is_enough() -> None:
    view = viewed(share(), share("share-2"), share("share-3", "other"), counts={MEDIA: MILLION})
    assert list(view.due) == [("eu-west-1", "other")]
    assert view.status is not None
    assert {one.bucket: one.targets for one in view.status.buckets} == {"media": 2, "other": 1}
    assert view.status.refresh_cost == "0.8100"
    assert view.status.refresh_seconds == 182  # 5,500 HEADs a second
    both = viewed(
        share(), share("share-2", "other"), counts={MEDIA: MILLION, ("eu-west-1", "other"): MILLION}
    )
    assert both.status is not None
    assert both.status.refresh_seconds == 182, "of the largest bucket"


def test_buckets_stay_while_not_every_share_is_known() -> None:
    both = viewed(share(), share("share-2", "other"))
    assert both.status is not None
    fewer = viewed(share(), before=both.status, complete=False)
    assert fewer.status is not None
    assert [one.bucket for one in fewer.status.buckets] == ["media", "other"]
    assert [one.bucket for one in (viewed(share(), before=both.status).status or both.status).buckets] == [
        "media"
    ]


def test_a_count_of_a_share_that_is_not_found_expires_too() -> None:
    counted = viewed(counts={MEDIA: MILLION}, spec=budget("2"))
    later = viewed(share("share-2", "other"), before=counted.status, now=NOW + 8 * DAY, complete=False)
    assert later.status is not None
    assert {one.bucket: one.objects for one in later.status.buckets} == {"media": None, "other": None}


@pytest.mark.parametrize(
    ("amount", "reason", "words"),
    [
        (None, Reason.ESTIMATED, "a refresh of everything costs an estimated 0.4050 for 1000000 objects"),
        ("600", Reason.ESTIMATED, "one of folders at most a LIST for each folder more"),
        ("2", Reason.INTERVAL_WIDENED, "maxEstimatedCostPerDay 2 makes minInterval 6h"),
        ("0.41", Reason.INTERVAL_WIDENED, "makes minInterval 24h"),
        (
            "0.40",
            Reason.OVER_BUDGET,
            "makes minInterval 24h, the longest that changes may wait, and a day may cost more",
        ),
    ],
)
def test_the_condition(amount: str | None, reason: str, words: str) -> None:
    spec = CostSpec(max_estimated_cost_per_day=amount)
    view = viewed(spec=spec, counts={MEDIA: MILLION})
    assert view.status is not None
    status, found, message = costs.condition_of(spec, view.status)
    assert (status, found) == ("True", reason)
    assert words in message


def test_a_resource_without_targets_has_no_cost_yet() -> None:
    assert costs.condition_of(SPEC, CostStatus())[:2] == ("Unknown", Reason.NOT_CHECKED)


@pytest.mark.parametrize(("minutes", "text"), [(1, "1m"), (60, "1h"), (292, "4h52m"), (1440, "24h")])
def test_durations_are_written_as_in_a_spec(minutes: float, text: str) -> None:
    assert costs.duration_text(minutes) == text
