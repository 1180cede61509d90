"""Whether a queue can carry S3 events without losing any."""

import json
from typing import Any

import msgspec
import pytest

from caretaker.api.s3refresh import QueueStatus, SQSSource
from caretaker.api.times import format_time
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh.inspection import inspect
from caretaker.s3refresh.queue_view import (
    QueueView,
    dead_letter_queue,
    died,
    fault_of,
    no_dead_letter_queue,
    status_of,
    uncovered,
    unread,
    view_of,
)

URL = "https://sqs.eu-west-1.amazonaws.com/111122223333/events"
MEND = "add one with maxReceiveCount 5 or more, or set spec.source.sqs.malformed to Discard"
NO_DLQ = f"{URL} has no dead-letter queue (RedrivePolicy), and malformed is DeadLetter: {MEND}"
REDRIVE = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": "arn:dlq", "maxReceiveCount": 5})}


@pytest.mark.parametrize(
    ("url", "found", "malformed", "words"),
    [
        pytest.param(URL, REDRIVE, "DeadLetter", "", id="as it should be"),
        pytest.param(URL, {}, "Discard", "", id="no dead-letter queue, and none is needed"),
        pytest.param(
            f"{URL}.fifo",
            REDRIVE,
            "DeadLetter",
            f"{URL}.fifo is a FIFO queue, which S3 cannot send to: use a Standard queue",
            id="FIFO by name",
        ),
        pytest.param(
            URL,
            {**REDRIVE, "FifoQueue": "true"},
            "DeadLetter",
            f"{URL} is a FIFO queue, which S3 cannot send to: use a Standard queue",
            id="FIFO",
        ),
        pytest.param(
            URL,
            {**REDRIVE, "MaximumMessageSize": "65535"},
            "DeadLetter",
            f"{URL}: MaximumMessageSize is 65535, and larger events are lost without a word: set it to 65536 "
            "at least",
            id="too small",
        ),
        pytest.param(URL, {**REDRIVE, "MaximumMessageSize": "65536"}, "DeadLetter", "", id="large enough"),
        pytest.param(
            URL,
            {**REDRIVE, "MessageRetentionPeriod": "86399"},
            "DeadLetter",
            f"{URL}: MessageRetentionPeriod is 86399 s, and events of a longer outage are lost: set it to "
            "86400 at least",
            id="too short",
        ),
        pytest.param(URL, {**REDRIVE, "MessageRetentionPeriod": "86400"}, "DeadLetter", "", id="long enough"),
        pytest.param(URL, {}, "DeadLetter", NO_DLQ, id="no dead-letter queue"),
        pytest.param(
            URL,
            {"RedrivePolicy": json.dumps({"maxReceiveCount": "2"})},
            "DeadLetter",
            f"{URL}: maxReceiveCount is 2, so that an outage fills the dead-letter queue: {MEND}",
            id="dead letters too soon",
        ),
        pytest.param(
            URL,
            {"RedrivePolicy": "[]"},
            "DeadLetter",
            NO_DLQ,
            id="a policy of another form",
        ),
        pytest.param(
            URL,
            {"RedrivePolicy": '{"maxReceiveCount": 1e999}'},
            "DeadLetter",
            NO_DLQ,
            id="a count that is no number",
        ),
        pytest.param(
            URL,
            {"RedrivePolicy": "[" * 100_000},
            "DeadLetter",
            NO_DLQ,
            id="a policy that nests deep",
        ),
    ],
)
def test_fault_of(url: str, found: dict[str, str], malformed: str, words: str) -> None:
    source = SQSSource(queue_url=url, malformed=malformed)  # type: ignore[arg-type]
    assert fault_of(found, source) == (f"spec.source.sqs.queueURL: {words}" if words else "")
    assert view_of(found, source).fault == fault_of(found, source)


def test_a_dead_letter_queue_that_does_not_exist() -> None:
    assert no_dead_letter_queue(SQSSource(queue_url=URL), "dead") == (
        f"spec.source.sqs.queueURL: the dead-letter queue dead of {URL} does not exist, so that what cannot "
        "be read comes again until it expires: create it, or name another one in its RedrivePolicy"
    )


NOW = 1_800_000_000.0
DAY = 86_400


def stood(seconds_ago: float, dead: int = 0) -> QueueStatus:
    return QueueStatus(dlq_visible=dead, checked_at=format_time(NOW - seconds_ago))


@pytest.mark.parametrize(
    ("view", "before", "lost"),
    [
        pytest.param(QueueView(), stood(9 * DAY), False, id="not looked at yet"),
        pytest.param(QueueView(checked=True), QueueStatus(), False, id="never read: resync.onStart decides"),
        pytest.param(
            QueueView(checked=True, retention=4 * DAY), stood(2 * DAY), False, id="read half of that ago"
        ),
        pytest.param(
            QueueView(checked=True, retention=4 * DAY), stood(2 * DAY + 1), True, id="unread for too long"
        ),
        pytest.param(QueueView(checked=True), stood(-DAY), False, id="a clock was set back"),
    ],
)
def test_unread(view: QueueView, before: QueueStatus, lost: bool) -> None:
    assert unread(view, before, NOW) is lost


@pytest.mark.parametrize(
    ("view", "before", "lost"),
    [
        pytest.param(QueueView(checked=True, dead_letters=3), stood(60, dead=2), True, id="more are dead"),
        pytest.param(QueueView(checked=True, dead_letters=2), stood(60, dead=2), False, id="as many as ever"),
        pytest.param(QueueView(checked=True), stood(60, dead=2), False, id="dead letters cannot be seen"),
        pytest.param(QueueView(checked=True, dead_letters=3), QueueStatus(), False, id="never read before"),
    ],
)
def test_died(view: QueueView, before: QueueStatus, lost: bool) -> None:
    assert died(view, before) is lost


def test_status_of_is_news_only() -> None:
    view = QueueView(checked=True, visible=5, in_flight=2, dead_letters=1, retention=4 * DAY)
    told = QueueStatus(5, 2, 1, 1, format_time(NOW))
    assert status_of(view, QueueStatus(), NOW, read=True) == told
    assert status_of(view, told, NOW + 3_599, read=True) is told
    assert status_of(view, told, NOW + 3_600, read=True).checked_at == format_time(NOW + 3_600)
    assert status_of(view, told, NOW - 60, read=True).checked_at == format_time(NOW - 60)
    assert status_of(view, QueueStatus(), NOW, read=False) == QueueStatus(), "it cannot be read"
    assert status_of(QueueView(), told, NOW + 9_999, read=True) is told, "it was not looked at"
    short = msgspec.structs.replace(view, retention=3_600)
    assert status_of(short, told, NOW + 449, read=True) is told
    assert status_of(short, told, NOW + 450, read=True).checked_at == format_time(NOW + 450)
    unseen = QueueView(checked=True, visible=5, in_flight=2, retention=4 * DAY)
    assert status_of(unseen, told, NOW, read=True) is told, "dead letters that cannot be seen are not none"


@pytest.mark.parametrize(
    ("visible", "covered", "now", "refreshed", "left"),
    [
        pytest.param(2, 2, 3, False, 1, id="one more came while the queue was read"),
        pytest.param(2, 2, 3, True, 0, id="everything is refreshed for it"),
        pytest.param(2, 2, 1, False, 0, id="one was taken away"),
        pytest.param(3, 2, 3, False, 1, id="still there"),
        pytest.param(3, 2, 2, False, 1, id="an older one has expired"),
        pytest.param(9, 7, 3, False, 2, id="many older ones have expired"),
        pytest.param(9, 7, 1, False, 1, id="some have expired that no refresh has followed"),
        pytest.param(2, 9, 3, False, 1, id="the figure on record is too high"),
        pytest.param(3, 2, 0, False, 0, id="purged"),
        pytest.param(3, 2, None, False, 1, id="it cannot be seen now"),
    ],
)
def test_dead_letters_are_told_of_until_they_are_gone_or_everything_is_refreshed(
    visible: int, covered: int, now: int | None, refreshed: bool, left: int
) -> None:
    before = QueueStatus(dlq_visible=visible, dlq_covered=covered, checked_at=format_time(NOW - 60))
    seen = QueueView(checked=True, dead_letters=now, retention=4 * DAY)
    assert uncovered(status_of(seen, before, NOW, read=True, covered=refreshed)) == left


def test_dead_letters_that_are_older_than_the_resource_are_not_its_own() -> None:
    seen = QueueView(checked=True, dead_letters=7, retention=4 * DAY)
    assert uncovered(status_of(seen, QueueStatus(), NOW, read=True)) == 0


def test_dead_letters_that_were_taken_away_do_not_cover_later_ones() -> None:
    """Purged, then the same number of dead letters again."""
    status = QueueStatus(dlq_visible=2, dlq_covered=2, checked_at=format_time(NOW - 60))
    for dead, left in ((0, 0), (2, 2)):
        status = status_of(QueueView(checked=True, dead_letters=dead), status, NOW, read=True)
        assert uncovered(status) == left


DEAD, OTHER = (f"arn:aws:sqs:eu-west-1:111122223333:{name}" for name in ("dead", "other"))


@pytest.mark.parametrize(
    ("recorded", "now", "left", "named"),
    [
        pytest.param(DEAD, DEAD, 0, DEAD, id="the same queue"),
        pytest.param(DEAD, OTHER, 2, OTHER, id="another one"),
        pytest.param("", OTHER, 0, OTHER, id="a record of an older version"),
        pytest.param(DEAD, "", 0, DEAD, id="it cannot be seen now"),
    ],
)
def test_what_was_covered_of_a_dead_letter_queue_covers_nothing_of_another(
    recorded: str, now: str, left: int, named: str
) -> None:
    """The spec names another queue, or its redrive policy another dead-letter queue, with as many letters."""
    before = QueueStatus(0, 0, 2, 2, format_time(NOW - 60), recorded)
    seen = QueueView(checked=True, visible=1, dead_letters=2 if now else None, dlq_arn=now)
    after = status_of(seen, before, NOW, read=True)
    assert (uncovered(after), after.dlq_arn) == (left, named)
    assert died(seen, before) is (left > 0), "not while it was read, so everything is refreshed"
    covered = status_of(seen, before, NOW, read=True, covered=True)
    assert (uncovered(covered), covered.dlq_arn) == (0, named)
    assert status_of(seen, after, NOW + 60, read=True) is after


def test_an_empty_dead_letter_queue_is_recorded_though_the_last_was_empty_too() -> None:
    before = QueueStatus(checked_at=format_time(NOW - 60), dlq_arn=DEAD)
    seen = QueueView(checked=True, dead_letters=0, dlq_arn=OTHER)
    after = status_of(seen, before, NOW, read=True)
    assert after.dlq_arn == OTHER


def test_a_crd_without_the_field_makes_no_write_of_its_own() -> None:
    before = QueueStatus(checked_at=format_time(NOW - 60))
    assert status_of(QueueView(checked=True, dead_letters=0, dlq_arn=DEAD), before, NOW, read=True) is before


def test_a_look_becomes_a_view() -> None:
    found = {
        "ApproximateNumberOfMessages": "7",
        "ApproximateNumberOfMessagesNotVisible": "3",
        "MessageRetentionPeriod": "345600",
        **REDRIVE,
    }
    view = view_of(found, SQSSource(queue_url=URL))
    assert view == QueueView(checked=True, visible=7, in_flight=3, dead_letters=None, retention=345_600)
    untold = view_of(REDRIVE, SQSSource(queue_url=URL))
    assert untold == QueueView(checked=True, visible=0, in_flight=0, dead_letters=None, retention=86_400)


@pytest.mark.parametrize(
    ("arn", "found"),
    [
        (DEAD, True),
        ("arn:aws-cn:sqs:cn-north-1:1:d-q", True),
        ("nonsense", False),
        ("arn:aws:sqs:eu-west-1::dead", False),
        ("arn:aws:sqs:eu-west-1:111122223333:", False),
        ("arn:aws:sqs:eu-west-1:111122223333:dead:letters", False),
        ("arn:aws:sqs:eu-west-1:111122223333:" + "d" * 1024, False),
        ("arn:aws:sqs:eu-west-1:111122223333:\ud800", False),
    ],
)
def test_dead_letter_queue(arn: str, found: bool) -> None:
    policy = json.dumps({"deadLetterTargetArn": arn})
    assert dead_letter_queue({"RedrivePolicy": policy}) == (arn if found else "")
    assert dead_letter_queue({"RedrivePolicy": "{"}) == ""
    assert dead_letter_queue({"RedrivePolicy": "[" * 100_000}) == ""
    assert dead_letter_queue({}) == dead_letter_queue({"RedrivePolicy": "{}"}) == ""


class Sqs:
    """A queue with a dead-letter queue, which is empty."""

    async def get_queue_attributes(self, **_: Any) -> Any:
        redrive = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 5})
        return {"Attributes": {"RedrivePolicy": redrive, "ApproximateNumberOfMessages": "0"}}

    async def get_queue_url(self, **_: Any) -> Any:
        return {"QueueUrl": URL}


@pytest.mark.parametrize(
    ("sent", "faulty"),
    [
        ("arn:aws:sqs:eu-west-1:111122223333:dead", True),
        ("arn:aws:sqs:eu-west-1:111122223333:other", False),
        ("arn:aws:sns:eu-west-1:111122223333:dead", False),
        (URL, False),
    ],
)
async def test_refreshes_do_not_go_to_the_dead_letter_queue_of_their_source(sent: str, faulty: bool) -> None:
    sqs: Any = Sqs()
    view = await inspect(sqs, SQSSource(queue_url=URL), QueueView(), (sent,))
    assert ("dead is the dead-letter queue of" in view.fault) is faulty
    assert (view.dead_letters, view.dlq_arn) == (0, DEAD)


async def test_a_dead_letter_queue_that_cannot_be_looked_at_is_not_recorded() -> None:
    """Else the figures that stand, which are another queue's, would go with nothing in their place."""

    class Refusing(Sqs):
        async def get_queue_url(self, **_: Any) -> Any:
            raise AwsError(
                ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sqs", operation="GetQueueUrl"
            )

    sqs: Any = Refusing()
    view = await inspect(sqs, SQSSource(queue_url=URL), QueueView())
    assert (view.dead_letters, view.dlq_arn, view.problem) == (None, "", "")
    before = QueueStatus(0, 0, 2, 0, format_time(NOW - 60), OTHER)
    assert status_of(view, before, NOW, read=True) is before
