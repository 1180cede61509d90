"""What goes over the wire, in which threads, and what comes back."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import botocore
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import caretaker
from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey, Identity, Keys
from caretaker.aws.services import Rate
from caretaker.aws.session import Options
from caretaker.obs.metrics import AwsMetrics
from fakes.aws import Answer, Call, FakeAws, error
from testing.operator import Samples, parse_metrics

pytestmark = pytest.mark.usefixtures("environment")

SQS = ClientKey("sqs", "eu-west-1")
GATEWAY = ClientKey("storagegateway", "eu-west-1")
EC2 = ClientKey("ec2", "eu-west-1")
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
ENTRIES = [{"Id": "1", "ReceiptHandle": "h"}]
SHARE = "arn:aws:storagegateway:eu-west-1:123456789012:share/share-1"


class NotLeader(Exception):  # noqa: N818 - as kube.errors calls it
    """What a guard raises."""


def scrape(registry: CollectorRegistry) -> Samples:
    return parse_metrics(generate_latest(registry).decode())


class TestConnections:
    async def test_one_connection_serves_one_call_after_another(self, fake: FakeAws, aws: Aws) -> None:
        for _ in range(5):
            await aws.call(SQS, "get_queue_attributes", QueueUrl=URL, AttributeNames=["All"])
        assert (len(fake.calls), fake.connections) == (5, 1)

    async def test_many_calls_open_no_more_connections_than_threads(self, fake: FakeAws, aws: Aws) -> None:
        together = gather_once(4)

        def answer(_: Call) -> Answer:
            together()
            return Answer()

        fake.on("GetQueueUrl", answer)
        await asyncio.gather(*(aws.call(SQS, "get_queue_url", QueueName=f"q{n}") for n in range(100)))
        assert (len(fake.calls), fake.connections) == (100, 4)

    async def test_a_kept_connection_is_probed_before_a_nat_gateway_forgets_it(self, aws: Aws) -> None:
        await aws.call(SQS, "get_queue_url", QueueName="q")
        with aws._clients.acquire(SQS) as client:
            pools = client._endpoint.http_session._manager.pools
            (pool,) = (pools[key] for key in pools.keys())  # noqa: SIM118 - not a dict
            connection = pool.pool.get(block=False)
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 300
        connection.close()

    async def test_opened_connections_and_requests_are_counted(self, fake: FakeAws, aws: Aws) -> None:
        registry = CollectorRegistry()
        aws.hooks.observer = AwsMetrics(registry)
        answers = iter((error("InternalError", status=500), Answer(), error("QueueDoesNotExist")))
        fake.on("GetQueueUrl", lambda _: next(answers))
        await aws.call(SQS, "get_queue_url", QueueName="q")
        with pytest.raises(AwsError):
            await aws.call(SQS, "get_queue_url", QueueName="q")
        samples = scrape(registry)
        codes = ("InternalError", "OK", "QueueDoesNotExist")
        assert [
            samples[f'caretaker_aws_requests_total{{code="{code}",operation="GetQueueUrl",service="sqs"}}']
            for code in codes
        ] == [1, 1, 1]
        series = 'caretaker_aws_request_seconds_count{operation="GetQueueUrl",service="sqs"}'
        assert samples[series] == 3
        opened = samples['caretaker_aws_connections_opened_total{service="sqs"}']
        assert opened == fake.connections == 1

    async def test_an_endpoint_that_hangs_leaves_threads_to_others(self, fake: FakeAws) -> None:
        with FakeAws() as other:
            async with Aws(Options(threads=3, per_client=2)) as aws:
                fake.hang("GetQueueUrl")
                hanging = [
                    asyncio.create_task(aws.call(SQS, "get_queue_url", QueueName="q")) for _ in range(6)
                ]
                await fake.received(2)
                elsewhere = ClientKey("sqs", "eu-west-1", endpoint_url=other.url)
                await asyncio.wait_for(aws.call(elsewhere, "get_queue_url", QueueName="q"), 5)
                assert len(fake.calls) == 2
                fake.release()
                await asyncio.gather(*hanging)


class TestWhere:
    async def test_the_specs_endpoint_wins_over_the_environments(self, fake: FakeAws, aws: Aws) -> None:
        with FakeAws() as other:
            target = ClientKey("sqs", "eu-west-1", endpoint_url=other.url)
            await aws.call(target, "get_queue_url", QueueName="q")
            assert (len(other.calls), len(fake.calls)) == (1, 0)

    async def test_an_endpoint_may_be_given_for_one_service(
        self, fake: FakeAws, aws: Aws, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeAws() as other:
            monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", other.url)
            await aws.call(SQS, "get_queue_url", QueueName="q")
            await aws.call(GATEWAY, "list_file_shares")
            assert (other.actions(), fake.actions()) == (["GetQueueUrl"], ["ListFileShares"])

    async def test_the_host_of_a_queue_url_decides_nothing(self, fake: FakeAws, aws: Aws) -> None:
        """Grants are checked by account and name: where the request goes must not come from the URL."""
        url = "https://evil.example/123456789012/q"
        await aws.call(SQS, "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        assert [(c.action, c.path) for c in fake.calls] == [("GetQueueAttributes", "/")]

    async def test_a_region_is_part_of_the_signature(self, fake: FakeAws, aws: Aws) -> None:
        await aws.call(ClientKey("sqs", "us-gov-east-1"), "get_queue_url", QueueName="q")
        assert "/us-gov-east-1/sqs/aws4_request" in fake.calls[0].headers["Authorization"]

    async def test_requests_say_who_asks(self, fake: FakeAws, aws: Aws) -> None:
        """CloudTrail shows it; both services' clients, long polls too."""
        await aws.call(GATEWAY, "list_file_shares")
        await aws.sqs(SQS).receive_message(QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/q")
        agents = {call.headers["User-Agent"] for call in fake.calls}
        assert agents == {f"caretaker/{caretaker.__version__} Botocore/{botocore.__version__}"}

    async def test_without_a_region_nothing_is_sent(self, fake: FakeAws, aws: Aws) -> None:
        with pytest.raises(AwsError) as raised:
            await aws.call(ClientKey("sqs", ""), "get_queue_url", QueueName="q")
        assert (raised.value.invalid, raised.value.code) == (True, "InvalidRegion")
        assert fake.calls == []


class TestGuard:
    async def test_a_write_that_the_guard_refuses_is_not_sent(self, fake: FakeAws, aws: Aws) -> None:
        def guard(seconds: float) -> None:
            raise NotLeader(f"{seconds:g}")

        aws.hooks.guard = guard
        with pytest.raises(NotLeader, match="10"):
            await aws.call(SQS, "delete_message_batch", QueueUrl=URL, Entries=ENTRIES)
        with pytest.raises(NotLeader):
            await aws.call(GATEWAY, "refresh_cache", FileShareARN=SHARE)
        assert fake.calls == []

    async def test_reads_and_receives_are_not_guarded(self, fake: FakeAws, aws: Aws) -> None:
        asked: list[float] = []
        aws.hooks.guard = asked.append
        await aws.call(GATEWAY, "list_file_shares")
        await aws.call(SQS, "get_queue_attributes", QueueUrl=URL, AttributeNames=["All"])
        await aws.sqs(SQS).receive_message(QueueUrl=URL)
        assert (asked, len(fake.calls)) == ([], 3)

    async def test_it_is_asked_again_for_a_connection_that_was_just_opened(self, aws: Aws) -> None:
        """Looking up a name has no timeout of ours: the Lease may have ended meanwhile."""
        asked: list[float] = []
        aws.hooks.guard = asked.append
        for _ in range(2):
            await aws.call(SQS, "delete_message_batch", QueueUrl=URL, Entries=ENTRIES)
        assert asked == [10, 7, 10]

    @pytest.mark.parametrize(
        ("target", "operation"), [(SQS, "delete_message_batch"), (GATEWAY, "refresh_cache")]
    )
    async def test_a_lease_that_ends_while_connecting_stops_the_write(
        self, fake: FakeAws, aws: Aws, target: ClientKey, operation: str
    ) -> None:
        asked: list[float] = []

        def guard(seconds: float) -> None:
            asked.append(seconds)
            if len(asked) == 2:
                raise NotLeader

        aws.hooks.guard = guard
        params = {"QueueUrl": URL, "Entries": ENTRIES} if target is SQS else {"FileShareARN": SHARE}
        with pytest.raises(NotLeader):
            await aws.call(target, operation, **params)
        assert (len(asked), fake.calls) == (2, [])

    async def test_the_lease_must_outlive_the_timeouts(self) -> None:
        asked: list[float] = []
        async with Aws(Options(connect_seconds=1, read_seconds=2)) as aws:
            aws.hooks.guard = asked.append
            await aws.call(GATEWAY, "refresh_cache", FileShareARN=SHARE)
        assert asked == [3, 2]

    async def test_botocores_retries_are_guarded_too(self, fake: FakeAws, aws: Aws) -> None:
        fake.on("DeleteMessageBatch", error("InternalError", status=500))

        def guard(_: float) -> None:
            if fake.calls:
                raise NotLeader

        aws.hooks.guard = guard
        with pytest.raises(NotLeader):
            await aws.call(SQS, "delete_message_batch", QueueUrl=URL, Entries=ENTRIES)
        assert len(fake.calls) == 1


class TestFailures:
    @pytest.fixture
    async def hasty(self) -> Aws:
        return Aws(Options(connect_seconds=0.3, read_seconds=0.3))

    @pytest.mark.parametrize("status", [200, 500], ids=["no answer in time", "an internal error"])
    async def test_a_refresh_is_sent_once_and_its_outcome_is_unknown(
        self, fake: FakeAws, hasty: Aws, status: int
    ) -> None:
        if status == 200:
            fake.hang("RefreshCache")
        else:
            fake.on("RefreshCache", error("InternalServerError", status=500))
        with pytest.raises(AwsError) as raised:
            await hasty.call(GATEWAY, "refresh_cache", FileShareARN=SHARE)
        assert raised.value.unknown_outcome
        assert raised.value.transient
        await fake.received(1)  # it may have given up before it was noted there
        assert fake.actions() == ["RefreshCache"]

    async def test_a_lost_answer_leaves_a_write_unknown(self, fake: FakeAws, aws: Aws) -> None:
        fake.on("RefreshCache", Answer(cut=True))
        with pytest.raises(AwsError) as raised:
            await aws.call(GATEWAY, "refresh_cache", FileShareARN=SHARE)
        assert (raised.value.unknown_outcome, raised.value.code) == (True, "ConnectionLost")

    async def test_a_read_that_times_out_is_transient(self, fake: FakeAws, hasty: Aws) -> None:
        fake.hang("ListFileShares")
        with pytest.raises(AwsError) as raised:
            await hasty.call(GATEWAY, "list_file_shares")
        found = raised.value
        assert (found.unknown_outcome, found.transient, found.code) == (False, True, "Timeout")

    async def test_what_nobody_listens_for_was_not_executed(self, aws: Aws) -> None:
        nobody = ClientKey("storagegateway", "eu-west-1", endpoint_url="http://127.0.0.1:9")
        with pytest.raises(AwsError) as raised:
            await aws.call(nobody, "refresh_cache", FileShareARN=SHARE)
        found = raised.value
        assert (found.unknown_outcome, found.transient, found.code) == (False, True, "Unreachable")

    async def test_a_refusal_names_the_action(self, fake: FakeAws, aws: Aws) -> None:
        fake.on("DeleteMessageBatch", error("AccessDeniedException", "Access is denied.", 403))
        with pytest.raises(AwsError) as raised:
            await aws.call(SQS, "delete_message_batch", QueueUrl=URL, Entries=ENTRIES)
        assert raised.value.missing_permission == "sqs:DeleteMessage"
        assert str(raised.value).startswith("sqs:DeleteMessageBatch: AccessDeniedException: ")

    async def test_wrong_parameters_are_not_sent(self, fake: FakeAws, aws: Aws) -> None:
        with pytest.raises(AwsError) as raised:
            await aws.call(SQS, "delete_message_batch", QueueUrl=URL)
        assert raised.value.invalid
        assert fake.calls == []

    async def test_what_fails_before_there_is_a_client_was_not_executed(
        self, fake: FakeAws, aws: Aws
    ) -> None:
        with pytest.raises(AwsError) as raised:
            await aws.call(ClientKey("no-such-service", "eu-west-1"), "refresh_cache", FileShareARN=SHARE)
        assert not raised.value.unknown_outcome
        assert fake.calls == []

    async def test_a_gateways_own_code_is_read(self, fake: FakeAws, aws: Aws) -> None:
        fake.on(
            "RefreshCache",
            error("InvalidGatewayRequestException", "no", error={"errorCode": "GatewayNotFound"}),
        )
        with pytest.raises(AwsError) as raised:
            await aws.call(GATEWAY, "refresh_cache", FileShareARN=SHARE)
        assert (raised.value.cause, raised.value.not_found) == ("GatewayNotFound", True)

    async def test_what_is_throttled_empties_its_bucket_and_no_other(self, fake: FakeAws) -> None:
        async with Aws(rates={"storagegateway": Rate(0.001, 10)}) as aws:
            fake.on("ListFileShares", error("ThrottlingException"))
            with pytest.raises(AwsError) as raised:
                await aws.call(GATEWAY, "list_file_shares")
            assert raised.value.throttled
            again = asyncio.create_task(aws.call(GATEWAY, "list_file_shares"))
            with pytest.raises(AwsError):
                await aws.call(ClientKey("storagegateway", "us-east-1"), "list_file_shares")
            assert len(fake.calls) == 2
            again.cancel()

    async def test_reads_that_wait_for_their_turn_hold_up_no_write(self, fake: FakeAws) -> None:
        """Many resources look for their shares at once, and one refresh is due."""
        async with Aws(rates={"storagegateway": Rate(0.001, 1)}) as aws:
            reads = [asyncio.create_task(aws.call(GATEWAY, "list_file_shares")) for _ in range(3)]
            await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait_for(aws.call(GATEWAY, "refresh_cache", FileShareARN=SHARE), 60)
            assert fake.actions() == ["ListFileShares", "RefreshCache"]
            for read in reads:
                read.cancel()


class TestPolls:
    async def test_a_poll_outlasts_the_timeout_of_calls(self, fake: FakeAws) -> None:
        message = '{"Messages": [{"MessageId": "m", "ReceiptHandle": "h", "Body": "b"}]}'
        fake.hang("ReceiveMessage", Answer(message))
        fake.hang("ListFileShares")
        async with Aws(Options(read_seconds=0.3)) as aws:
            poll = asyncio.create_task(aws.sqs(SQS).receive_message(QueueUrl=URL, WaitTimeSeconds=20))
            with pytest.raises(AwsError, match="Timeout"):
                await aws.call(GATEWAY, "list_file_shares")
            assert not poll.done()
            fake.release()
            assert (await poll)["Messages"][0]["MessageId"] == "m"
            assert fake.actions().count("ReceiveMessage") == 1

    async def test_polls_are_counted_and_take_no_thread_of_the_calls(self, fake: FakeAws) -> None:
        registry = CollectorRegistry()
        fake.hang("ReceiveMessage")
        async with Aws(Options(threads=1, per_client=1)) as aws:
            aws.hooks.observer = AwsMetrics(registry)
            polls = [
                asyncio.create_task(aws.sqs(SQS).receive_message(QueueUrl=URL, WaitTimeSeconds=20))
                for _ in range(3)
            ]
            await fake.received(3)
            await asyncio.wait_for(aws.call(SQS, "get_queue_url", QueueName="q"), 5)
            assert scrape(registry)["caretaker_aws_long_polls"] == 3
            fake.release()
            await asyncio.gather(*polls)
            assert scrape(registry)["caretaker_aws_long_polls"] == 0
            series = 'caretaker_aws_request_seconds_count{operation="ReceiveMessage",service="sqs"}'
            assert series not in scrape(registry)

    async def test_polls_share_a_client_however_long_they_wait(self, fake: FakeAws, aws: Aws) -> None:
        """The wait of a long poll depends on the number of queues."""
        for seconds in (20, 19, 7, 0):
            await aws.sqs(SQS).receive_message(QueueUrl=URL, WaitTimeSeconds=seconds)
        assert (len(fake.calls), fake.connections) == (4, 1)

    async def test_a_cancelled_poll_returns_at_once(self, fake: FakeAws, aws: Aws) -> None:
        fake.hang("ReceiveMessage")
        poll = asyncio.create_task(aws.sqs(SQS).receive_message(QueueUrl=URL, WaitTimeSeconds=20))
        await fake.received(1)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(poll, 1)

    async def test_the_exit_is_not_delayed_by_a_poll(self, fake: FakeAws) -> None:
        fake.hang("ReceiveMessage")
        program = (
            "import asyncio\n"
            "from caretaker.aws.calls import Aws\n"
            "from caretaker.aws.identity import ClientKey\n"
            "async def main():\n"
            "    async with Aws() as aws:\n"
            "        sqs = aws.sqs(ClientKey('sqs', 'eu-west-1'))\n"
            f"        poll = asyncio.create_task(sqs.receive_message(QueueUrl='{URL}', WaitTimeSeconds=20))\n"
            "        await asyncio.to_thread(input)\n"
            "        poll.cancel()\n"
            "asyncio.run(main())\n"
        )
        with subprocess.Popen(  # noqa: ASYNC220 - a program of a second
            [sys.executable, "-c", program], stdin=subprocess.PIPE, env=python_path()
        ) as process:
            try:
                await fake.received(1)
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.close()
                assert await asyncio.to_thread(process.wait, 18) == 0  # a poll is 20 s
            finally:
                process.kill()


class TestOperations:
    async def test_a_services_protocol_calls_the_operation_of_its_name(self, fake: FakeAws, aws: Aws) -> None:
        fake.on("ListFileShares", Answer('{"FileShareInfoList": [], "NextMarker": "m"}'))
        found = await aws.storagegateway(GATEWAY).list_file_shares(Limit=5)
        assert found["NextMarker"] == "m"
        assert fake.calls[0].json == {"Limit": 5}

    async def test_a_target_of_another_service_is_a_mistake(self, aws: Aws) -> None:
        with pytest.raises(ValueError, match="for sqs, not for storagegateway"):
            aws.storagegateway(SQS)

    async def test_ec2_is_called_as_well(self, fake: FakeAws, aws: Aws) -> None:
        body = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
        fake.on("DescribeInstances", Answer(body, headers={"Content-Type": "text/xml"}))
        assert (await aws.call(EC2, "describe_instances"))["Reservations"] == []

    async def test_keys_sign_and_are_not_told(self, fake: FakeAws, aws: Aws) -> None:
        keys = Keys("AKIATEAM", "very-secret", "very-token")
        target = ClientKey("sqs", "eu-west-1", Identity(keys))
        fake.on("GetQueueUrl", error("AccessDenied", status=403))
        with pytest.raises(AwsError) as raised:
            await aws.call(target, "get_queue_url", QueueName="q")
        assert fake.calls[0].signer == "AKIATEAM"
        assert fake.calls[0].headers["X-Amz-Security-Token"] == "very-token"
        assert "very" not in f"{target!r} {raised.value!r} {raised.value}"


def gather_once(parties: int) -> Callable[[], None]:
    """A function that waits, the first time, until so many threads are in it at a time."""
    barrier, passed = threading.Barrier(parties), threading.Event()

    def wait() -> None:
        if not passed.is_set():
            barrier.wait(5)
            passed.set()

    return wait


def python_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(caretaker.__file__).parents[1])}
