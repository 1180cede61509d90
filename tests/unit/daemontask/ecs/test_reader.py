"""What a reader tells those who listen: of the queue's state, too, when it changes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity, User
from caretaker.daemontask.ecs.reader import MOST_LONG_POLLS, Reader, Readers
from caretaker.runtime.work_queue import Key
from unit.daemontask.ecs.build import URL, body


class Queue:
    """First of nothing; then of one message, which comes again until it is deleted; then nothing for ever."""

    def __init__(self, text: str, refusals: int = 0) -> None:
        self.text = text
        self.refusals = refusals
        self.asked = False
        self.deleted = False
        self.quiet = asyncio.Event()  # what was received has been dealt with

    async def receive_message(self, **_: Any) -> dict[str, Any]:
        if self.deleted:
            self.quiet.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if not self.asked:
            self.asked = True
            return {}
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": self.text}]}

    async def delete_message_batch(self, **_: Any) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            raise AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="sqs", operation="x")
        self.deleted = True
        return {"Successful": [{"Id": "0"}]}


def states(queue: Queue, seen: Callable[[Reader], str]) -> list[str]:
    """What could be seen of the reader, each time it told that something had changed."""

    async def run() -> list[str]:
        found: list[str] = []
        reader: Reader = Reader(queue, URL, lambda _result, _number: None)  # type: ignore[arg-type]
        reader.join(Key("DaemonTask", "n", "task"), lambda _: None, lambda: found.append(seen(reader)))
        reading = asyncio.create_task(reader.run())
        await asyncio.wait_for(queue.quiet.wait(), 10)
        reading.cancel()
        return found

    return asyncio.run(run())


def test_a_deletion_that_is_refused_is_told_once_and_its_end_too() -> None:
    found = states(Queue(body(), refusals=3), lambda reader: reader.problem.code if reader.problem else "")
    assert found == ["", "AccessDenied", ""]


def test_a_message_that_cannot_be_read_is_told() -> None:
    found = states(Queue("{"), lambda reader: reader.fault.partition(":")[0])
    assert found == ["", "no JSON"]


def test_a_flood_of_malformed_messages_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    states(Queue("{", refusals=20), lambda _: "")
    (line,) = (one for one in caplog.messages if "cannot be read" in one)
    assert line.startswith("message m cannot be read: no JSON")


def test_a_queue_that_is_read_is_told_once() -> None:
    assert states(Queue(body()), lambda reader: str(reader.connected)) == ["True"]


def test_tasks_that_read_a_queue_under_one_role_share_its_reader() -> None:
    """Two readers would each take the other's messages. The queue is read in the session of the first."""
    role = "arn:aws:iam::123456789012:role/ecs"
    asked: list[ClientKey] = []

    class Aws:
        def sqs(self, target: ClientKey) -> Queue:
            asked.append(target)
            return Queue("{")

    def target(name: str, external_id: str = "") -> ClientKey:
        return ClientKey("sqs", "eu-west-1", Identity(None, role, external_id, user=User("n", "dtask", name)))

    async def run() -> list[bool]:
        readers = Readers(Aws(), lambda _result, _number: None)  # type: ignore[arg-type]
        first, *others = [
            readers.join(Key("DaemonTask", "n", name), one, URL, lambda _: None, lambda: None)
            for name, one in {"a": target("a"), "b": target("b"), "c": target("c", "x")}.items()
        ]
        await readers.close()
        return [other is first for other in others]

    assert asyncio.run(run()) == [True, False]
    assert [one.identity.user for one in asked] == [User("n", "dtask", "a"), User("n", "dtask", "c")]


def test_idle_queues_take_turns_and_leave_threads_to_others() -> None:
    """A long poll takes a thread, and a namespace may have hundreds of tasks, each with a queue."""

    class Idle:
        """One short poll of each queue ends, long polls do not."""

        def __init__(self) -> None:
            self.polls: list[int] = []
            self.enough = asyncio.Event()

        def sqs(self, _: ClientKey) -> Any:
            return self

        async def receive_message(self, *, WaitTimeSeconds: int, **_: Any) -> dict[str, Any]:  # noqa: N803
            if WaitTimeSeconds:
                self.polls.append(WaitTimeSeconds)
                if len(self.polls) == MOST_LONG_POLLS:
                    self.enough.set()
                await asyncio.Event().wait()
            return {}

    async def run() -> list[int]:
        aws = Idle()
        readers = Readers(aws, lambda _result, _number: None)  # type: ignore[arg-type]
        key = ClientKey("sqs", "eu-west-1")
        for number in range(2 * MOST_LONG_POLLS):
            one = Key("DaemonTask", "n", str(number))
            readers.join(one, key, f"{URL}{number}", lambda _: None, lambda: None)
        await asyncio.wait_for(aws.enough.wait(), 10)
        for _ in range(100):
            await asyncio.sleep(0)
        await readers.close()
        return aws.polls

    assert asyncio.run(run()) == [10] * MOST_LONG_POLLS
