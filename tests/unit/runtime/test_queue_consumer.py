"""The problems of a queue, and a flood of malformed messages, which is a line a minute."""

import asyncio
from typing import Any

import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.runtime import queue_consumer
from caretaker.runtime.queue_consumer import LOG_SECONDS, LongPolls, MalformedLog, QueueConsumer
from caretaker.runtime.work_queue import Key
from fakes import virtualtime
from fakes.virtualtime import played, run


async def flood(log: MalformedLog, seconds: int) -> None:
    for second in range(seconds):
        for number in range(100):
            log.add(f"m-{second}-{number}", "no JSON")
        await asyncio.sleep(1)


@played
async def test_of_many_one_line_a_minute_has_the_number_and_none_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await flood(MalformedLog(), 150)
    await asyncio.sleep(2 * LOG_SECONDS)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "message m-0-0 cannot be read: no JSON"
    assert len(lines) == 4
    assert 1 + sum(int(line.split()[0]) for line in lines[1:]) == 150 * 100
    assert lines[-1].endswith("the last, m-149-99: no JSON")


@played
async def test_after_a_quiet_minute_the_next_is_written_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = MalformedLog()
    for number in range(3):
        log.add(f"m-{number}", "no JSON")
        assert len(caplog.records) == number + 1
        await asyncio.sleep(2 * LOG_SECONDS + 1)


@played
async def test_an_id_that_is_none_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    MalformedLog().add("a\nb", "no JSON")
    assert caplog.records[0].getMessage() == "message ? cannot be read: no JSON"


def test_the_last_fault_is_known_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_consumer, "time", virtualtime)

    async def scenario() -> list[str]:
        log = MalformedLog()
        found = [log.recent()]
        for fault in ("no JSON", "no event"):
            log.add("m", fault)
            found.append(log.recent())
        for seconds in (3599, 2):
            await asyncio.sleep(seconds)
            found.append(log.recent())
        return found

    assert run(scenario()) == ["", "no JSON", "no event", "no event", ""]


class Consumer(QueueConsumer):
    """One that nobody runs: tests call its parts."""

    @property
    def idle(self) -> bool:
        return True

    def leave(self, reader: Key) -> None:
        pass

    def on_change(self) -> None:
        pass

    async def run(self) -> None:
        pass


def refused(operation: str) -> AwsError:
    return AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sqs", operation=operation)


@played
async def test_a_queue_that_cannot_be_read_is_reported_before_a_refused_deletion() -> None:
    class Sqs:
        """Lets no message be deleted."""

        async def delete_message_batch(self, **_: Any) -> Any:
            raise refused("DeleteMessageBatch")

    class Reported(Consumer):
        def on_change(self) -> None:
            reported.append(self.problem.operation if self.problem is not None else "")

    reported: list[str] = []
    consumer = Reported(Sqs(), "q")  # type: ignore[arg-type]
    for _ in range(2):  # a second failure is no change
        await consumer.delete(["r"])
        await consumer.back_off(refused("ReceiveMessage"), 0)
    consumer.received_all()
    assert reported == ["DeleteMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "DeleteMessageBatch"]
    assert consumer.connected


@played
async def test_only_a_queue_with_long_polls_has_a_share_of_them() -> None:
    async def receive(_: int) -> None:
        pass

    consumer = Consumer(None, "q", "media")  # type: ignore[arg-type]
    consumer.long_polls = polls = LongPolls(4)
    await consumer.receive_all(1, 20, receive)
    assert polls.queues == {"media": {consumer}}
    consumer.received_all()
    await consumer.receive_all(8, 0, receive)
    assert not polls.queues, "short polls read a backlog"
    await consumer.receive_all(1, 20, receive)
    await consumer.back_off(refused("ReceiveMessage"), 0)
    assert not polls.queues


async def test_messages_are_deleted_in_batches_and_those_that_stay_are_not_counted() -> None:
    class Sqs:
        """Keeps one message of each batch."""

        def __init__(self) -> None:
            self.batches: list[list[str]] = []

        async def delete_message_batch(self, *, Entries: Any, **_: Any) -> Any:  # noqa: N803 - AWS's name
            self.batches.append([one["ReceiptHandle"] for one in Entries])
            return {"Failed": [{"Id": Entries[0]["Id"], "Code": "InternalError"}]}

    sqs = Sqs()
    consumer = Consumer(sqs, "q", lambda: None)  # type: ignore[arg-type]
    receipts = [f"r{number}" for number in range(25)]
    await consumer.delete(receipts)
    assert sqs.batches == [receipts[:10], receipts[10:20], receipts[20:]]
    assert (consumer.deleted, consumer.problem) == (22, None)
