"""What `caretaker plan` says of an S3AggregatedRefresh, from what AWS and the API server have told."""

from typing import Any

import msgspec
import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.cli.common import UsageError
from caretaker.cli.plan import Planned, object_in, refused
from caretaker.cli.s3refresh import plan
from caretaker.cli.s3refresh.aws_state import faults_of
from caretaker.cli.s3refresh.plan import RefreshForecast
from caretaker.s3refresh import conditions
from caretaker.s3refresh.folders import EVERYTHING
from caretaker.s3refresh.queue_view import SOURCE, QueueView
from unit.cli.s3refresh.build import CLEAN, FAILING, NOW, WAITING, prospect, raw, share

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/events"
DENIED = QueueView(problem="spec.source.sqs.queueURL: sqs:GetQueueAttributes: AccessDenied: no; allow it")


def refused_queue(error_class: ErrorClass) -> dict[str, Any]:
    """A queue whose attributes AWS refuses, as the operator's code describes it."""
    error = AwsError(error_class, "Code", "no", service="sqs", operation="GetQueueAttributes")
    return {"queue": QueueView(problem=conditions.describe(error, SOURCE))}


def text(of: RefreshForecast, *, wide: bool = False) -> str:
    return "\n".join(plan.as_text(of, wide=wide))


def test_a_new_resource_shows_its_queue_and_what_was_found() -> None:
    told = text(
        prospect(share("share-A", prefix="team/"), share("share-B", ready=False), exists=False)
    ).split("\n\n")
    assert told[0].splitlines() == [
        "S3AggregatedRefresh n/r: new",
        f"  queue {URL}: 12 visible, 0 in flight, dead letters: 0, kept for 4d",
        "  2 targets found, 1 usable",
    ]
    assert [line.split() for line in told[1].splitlines()] == [
        ["TARGET", "BUCKET", "PREFIX", "GATEWAY", "REGION", "USABLE"],
        ["share-A", "bucket", "team/", "sgw-1", "eu-west-1", "yes"],
        ["share-B", "bucket", "-", "sgw-1", "eu-west-1", "not", "AVAILABLE"],
    ]
    first, second = told[2].splitlines()[1:]
    assert first.startswith("share-A  everything  everything  at the latest at 08:10:00Z, in 10m")
    assert "everything (resync.onStart), after 30s without an event" in first
    assert "it is not AVAILABLE; what waits is kept" in second


def test_a_bucket_that_s3_has_named_is_shown_with_its_access_point() -> None:
    point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/finance"
    of = prospect(*(share(f"share-{n}", access_point=point) for n in range(2)), share("share-B"))
    lines = text(of).splitlines()
    assert [line for line in lines if "access point" in line] == [f"  access point {point}: bucket bucket"]
    assert [one["accessPoint"] for one in plan.as_json(of, [])["targets"]] == [point, point, None]


def test_what_is_dirty_is_told_with_the_folders_of_the_next_call() -> None:
    of = prospect(
        share("waiting"),
        share("failing"),
        share("clean"),
        targets=[(WAITING, "Debouncing"), (FAILING, "Backoff"), (CLEAN, "Clean")],
    )
    rows = {line.split()[0]: line for line in text(of).split("\n\n")[2].splitlines()}
    assert "3 folders   3: in/2026, in, /" in rows["waiting"]
    assert "61 folders  50: d00, d01, d02, ..." in rows["failing"]
    assert "in 45s" in rows["failing"]
    assert rows["clean"].split()[1:4] == ["-", "-", "-"]
    told = {one["id"]: one for one in plan.as_json(of, [])["targets"]}
    assert len(told["failing"]["next"]["folders"]) == 50
    assert len(told["failing"]["dirty"]["folders"]) == 61
    assert told["clean"]["dirty"] is None


def test_a_dirty_target_that_is_not_found_any_more_is_told() -> None:
    of = prospect(targets=[(WAITING, "Debouncing")])
    assert "waiting  -       -       -        -       not found" in text(of)
    assert "it is not found any more; what waits is kept" in text(of)
    (told,) = plan.as_json(of, [])["targets"]
    assert (told["found"], told["usable"], told["arn"]) == (False, False, None)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        pytest.param(None, "exists, its spec does not change", id="as it stands"),
        pytest.param(raw(spec={"suspend": True}), "exists, its spec changes", id="another spec"),
    ],
)
def test_the_header_tells_what_kind_of_change_it_is(before: Any, words: str) -> None:
    assert text(prospect(share("s"), before=before)).splitlines()[0].endswith(words)


class TestFaults:
    def test_all_is_well(self) -> None:
        assert list(faults_of(prospect(share("s")).aws_state)) == []

    @pytest.mark.parametrize(
        ("how", "field", "words"),
        [
            pytest.param(
                {"queue": DENIED},
                "spec.source.sqs.queueURL",
                "sqs:GetQueueAttributes: AccessDenied: no; allow it",
                id="the queue may not be looked at",
            ),
            pytest.param(
                refused_queue(ErrorClass.ACCESS_DENIED),
                SOURCE,
                "sqs:GetQueueAttributes: Code: no; allow sqs:GetQueueAttributes to the identity you ask with",
                id="the permission is one of the user",
            ),
            pytest.param(
                refused_queue(ErrorClass.NO_IDENTITY),
                SOURCE,
                "sqs:GetQueueAttributes: Code: no; give yourself AWS credentials, as by AWS_PROFILE=...; the "
                "operator has its own",
                id="the credentials are those of the user",
            ),
            pytest.param(
                {"queue": QueueView(checked=True, fault="q is a FIFO queue: use a Standard queue")},
                "spec.source.sqs.queueURL",
                "q is a FIFO queue: use a Standard queue",
                id="the queue will not do",
            ),
            pytest.param(
                {"faults": ("spec.target.storageGateway in eu-west-1: no",), "complete": False},
                "spec.target.storageGateway",
                "in eu-west-1: no",
                id="a region that does not answer",
            ),
            pytest.param(
                {"faults": ("spec.aws.roleARN: sts:AssumeRole: no",), "complete": False},
                "spec.aws.roleARN",
                "sts:AssumeRole: no",
                id="a fault that names its own field",
            ),
        ],
    )
    def test_each_fault_names_field_and_mend(self, how: dict[str, Any], field: str, words: str) -> None:
        ((where, said),) = faults_of(prospect(share("s"), **how).aws_state)
        assert (where, said) == (field, words)

    def test_nothing_to_refresh_is_a_fault_only_when_everything_was_asked(self) -> None:
        ((where, said),) = faults_of(prospect().aws_state)
        assert (where, "there is nothing to refresh" in said) == ("spec.target", True)
        assert list(faults_of(prospect(complete=False).aws_state)) == []

    def test_a_failed_call_is_told_with_whose_credentials_it_was_made(self) -> None:
        told = text(prospect(share("s"), queue=DENIED))
        assert f"  queue {URL}: cannot be looked at" in told
        assert "note: AWS was asked as you" in told
        assert "AWS was asked" not in text(prospect(share("s")))
        told = text(prospect(complete=False))
        assert "0 targets found, 0 usable; there may be more: not everything could be asked" in told

    def test_a_queue_that_will_not_do_is_told_beside_its_figures(self) -> None:
        told = text(prospect(share("s"), queue=QueueView(checked=True, fault="no")))
        assert f"queue {URL}: 0 visible, 0 in flight, dead letters: unknown, kept for 24h, and will" in told


def test_a_refused_resource_has_nothing_more() -> None:
    assert refused("S3AggregatedRefresh n/r", {"name": "r"}, ["r.yaml:1: no"], ["so it is"]) == Planned(
        text=["S3AggregatedRefresh n/r: refused", "  note: so it is"],
        json={"name": "r", "faults": ["r.yaml:1: no"], "notes": ["so it is"]},
        faults=["r.yaml:1: no"],
    )


class TestSamples:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            pytest.param(
                ("bucket", "in/2026/a b+.csv"),
                ["s3://bucket/in/2026/a b+.csv:", "  share-A  3: in/2026, in, /"],
                id="an object's folder and all above it",
            ),
            pytest.param(
                ("bucket", "top.txt"), ["s3://bucket/top.txt:", "  share-A  1: /"], id="at the root"
            ),
            pytest.param(
                ("bucket", "team/x/y"),
                ["s3://bucket/team/x/y:", "  share-A  3: team/x, team, /", "  share-B  2: x, /"],
                id="in two shares, each below its own root",
            ),
            pytest.param(
                ("other", "a"),
                ["s3://other/a: nothing, since it is in no target"],
                id="of a bucket that nobody serves",
            ),
        ],
    )
    def test_what_an_event_makes_stale(self, given: tuple[str, str], shown: list[str]) -> None:
        of = prospect(share("share-A"), share("share-B", prefix="team/"), samples=(given,))
        assert text(of).split("\n\n")[-1].splitlines() == shown

    def test_what_the_filter_leaves_out_is_told_by_its_fields(self) -> None:
        spec = {"filter": {"buckets": ["bucket"], "suffixes": [".csv"], "excludePrefixes": ["tmp/"]}}
        of = prospect(share("s"), samples=(("bucket", "tmp/a.txt"), ("bucket", "a.csv")), spec=spec)
        lines = text(of).split("\n\n")[-1].splitlines()
        assert lines == [
            "s3://bucket/tmp/a.txt: left out by spec.filter.excludePrefixes, spec.filter.suffixes",
            "s3://bucket/a.csv:",
            "  s  1: /",
        ]
        assert [one["leftOutBy"] for one in plan.as_json(of, [])["samples"]] == [
            ["excludePrefixes", "suffixes"],
            [],
        ]

    def test_a_filter_without_creations_is_about_the_kinds_it_has(self) -> None:
        spec = {"filter": {"events": ["ObjectRemoved"]}}
        assert "s  1: /" in text(prospect(share("s"), samples=(("bucket", "a"),), spec=spec))

    def test_whole_shares_are_refreshed_whole(self) -> None:
        target = {"storageGateway": {"shares": {"discover": {}}, "scope": "Share"}}
        of = prospect(share("s"), samples=(("bucket", "a/b"),), spec={"target": target})
        assert dict(of.samples[0].scopes) == {"s": EVERYTHING}
        assert text(of).endswith("s3://bucket/a/b:\n  s  everything")

    def test_what_could_not_be_asked_may_be_stale_too(self) -> None:
        of = prospect(complete=False, samples=(("bucket", "a"),))
        assert text(of).endswith("in no target that was found; not everything could be asked")

    @pytest.mark.parametrize("given", ["bucket/a", "s3://bucket", "s3://bucket/", "s3:///a", ""])
    def test_what_names_no_object_is_wrong_usage(self, given: str) -> None:
        with pytest.raises(UsageError, match="write an object as s3://BUCKET/KEY"):
            object_in(given)


def test_json_can_be_encoded_and_is_whole() -> None:
    of = prospect(share("waiting"), targets=[(WAITING, "Debouncing")], samples=(("bucket", "a/b"),))
    told = msgspec.json.decode(msgspec.json.encode(plan.as_json(of, ["f:1: x"])))
    assert told["queues"] == [
        {
            "field": "spec.source.sqs.queueURL",
            "url": URL,
            "visible": 12,
            "inFlight": 0,
            "deadLetters": 0,
            "retentionSeconds": 345600,
            "problem": "",
            "fault": "",
        }
    ]
    assert told["targets"][0]["dirty"]["since"] == "2027-01-15T07:59:50Z"
    assert told["samples"] == [
        {
            "object": "s3://bucket/a/b",
            "leftOutBy": [],
            "targets": [{"id": "waiting", "all": False, "folders": ["/", "a"], "trees": []}],
        }
    ]
    assert (told["faults"], told["complete"], told["specChanges"], NOW) == (["f:1: x"], True, False, of.now)
