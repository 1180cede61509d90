"""Whose credentials sign: roles, their renewal, and never what the node happens to be."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caretaker.aws.calls import Aws
from caretaker.aws.connections import Hooks
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey, Identity, Keys, User
from caretaker.aws.services import Rate
from caretaker.aws.session import MOST_CLIENTS, REPLACED_SECONDS, UNUSED_SECONDS, ClientPool, Options
from fakes.aws import Answer, Call, FakeAws, assumed, error, query_error
from integration.aws.conftest import OWN_KEY

pytestmark = pytest.mark.usefixtures("environment")

ROLE = "arn:aws:iam::123456789012:role/team-a"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A time that moves when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def sqs(role: str = ROLE, external_id: str = "", keys: Keys | None = None) -> ClientKey:
    return ClientKey("sqs", "eu-west-1", Identity(keys, role, external_id, "eu-west-1"))


def sessions(clock: Callable[[], datetime]) -> Callable[[Call], Answer]:
    """STS: the first session's key is ASIA1, each good for an hour."""
    count = iter(range(1, 100))
    return lambda _: assumed(f"ASIA{next(count)}", (clock() + timedelta(hours=1)).isoformat())


class TestAssumeRole:
    @pytest.fixture
    def clock(self, fake: FakeAws) -> Clock:
        clock = Clock()
        fake.on("AssumeRole", sessions(clock))
        return clock

    async def test_a_role_is_assumed_once_for_all_who_wait(self, fake: FakeAws, clock: Clock) -> None:
        async with Aws(now=clock) as aws:
            await asyncio.gather(*(aws.call(sqs(), "get_queue_url", QueueName=f"q{n}") for n in range(20)))
        assert fake.actions().count("AssumeRole") == 1
        first, *others = fake.calls
        assert (first.action, first.signer, first.form["RoleArn"]) == ("AssumeRole", OWN_KEY, ROLE)
        assert {c.signer for c in others} == {"ASIA1"}
        assert {c.headers["X-Amz-Security-Token"] for c in others} == {"token-ASIA1"}

    async def test_it_is_renewed_before_the_session_ends_and_not_sooner(
        self, fake: FakeAws, clock: Clock
    ) -> None:
        signers = []
        async with Aws(now=clock) as aws:
            for minutes in (0, 40, 46, 80, 92):
                clock.now = START + timedelta(minutes=minutes)
                await aws.call(sqs(), "get_queue_url", QueueName="q")
                signers.append(fake.calls[-1].signer)
        assert signers == ["ASIA1", "ASIA1", "ASIA2", "ASIA2", "ASIA3"]
        assert fake.actions().count("AssumeRole") == 3

    async def test_another_external_id_is_another_identity(self, fake: FakeAws, clock: Clock) -> None:
        """Else whoever names the role uses the session of somebody who knows its external ID."""
        async with Aws(now=clock) as aws:
            for external_id in ("one", "two", "one", ""):
                await aws.call(sqs(external_id=external_id), "get_queue_url", QueueName="q")
        asked = [c.form.get("ExternalId") for c in fake.calls if c.action == "AssumeRole"]
        assert asked == ["one", "two", None]
        assert [c.signer for c in fake.calls if c.action != "AssumeRole"] == [
            *("ASIA1", "ASIA2", "ASIA1", "ASIA3")
        ]

    async def test_each_user_of_a_role_has_a_session_that_tells_who_it_is(
        self, fake: FakeAws, clock: Clock
    ) -> None:
        async with Aws(Options(cluster="prod"), now=clock) as aws:
            for name in ("one", "two", "one"):
                target = sqs().used_by(User("media", "s3ar", name))
                await aws.call(target, "get_queue_url", QueueName="q")
            await aws.call(sqs(), "get_queue_url", QueueName="q")
        asked = [c.form["RoleSessionName"] for c in fake.calls if c.action == "AssumeRole"]
        assert asked == ["prod,media,s3ar,one", "prod,media,s3ar,two", "prod"]
        assert [c.signer for c in fake.calls if c.action != "AssumeRole"] == [
            *("ASIA1", "ASIA2", "ASIA1", "ASIA3")
        ]

    async def test_users_of_a_role_share_its_turns_and_threads(self, fake: FakeAws, clock: Clock) -> None:
        """AWS sees one caller, and an endpoint that hangs must not occupy every thread."""
        users = [sqs().used_by(User("media", "s3ar", f"r{n}")) for n in range(4)]
        options = Options(threads=3, per_client=2)
        async with Aws(options, now=clock) as aws:
            fake.hang("GetQueueUrl")
            hanging = [asyncio.create_task(aws.call(one, "get_queue_url", QueueName="q")) for one in users]
            await fake.received(2, "GetQueueUrl")
            with FakeAws() as other:
                elsewhere = ClientKey("sqs", "eu-west-1", endpoint_url=other.url)
                await asyncio.wait_for(aws.call(elsewhere, "get_queue_url", QueueName="q"), 5)
            assert fake.actions().count("GetQueueUrl") == 2
            fake.release()
            await asyncio.gather(*hanging)
        async with Aws(options, rates={"sqs": Rate(0.001, 1)}, now=clock) as aws:
            await aws.call(users[0], "get_queue_url", QueueName="q")
            waiting = asyncio.create_task(aws.call(users[1], "get_queue_url", QueueName="q"))
            await fake.received(6, "AssumeRole")  # four for the users above, and one for each of these two
            elsewhere = msgspec.structs.replace(users[1], region="us-east-1")
            await aws.call(elsewhere, "get_queue_url", QueueName="q")
            assert fake.actions().count("GetQueueUrl") == 6
            assert not waiting.done()
            waiting.cancel()

    async def test_a_role_is_shared_by_the_services_that_use_it(self, fake: FakeAws, clock: Clock) -> None:
        identity = sqs().identity
        async with Aws(now=clock) as aws:
            await aws.call(ClientKey("sqs", "eu-west-1", identity), "get_queue_url", QueueName="q")
            await aws.call(ClientKey("storagegateway", "us-east-1", identity), "list_file_shares")
        assert fake.actions() == ["AssumeRole", "GetQueueUrl", "ListFileShares"]

    async def test_it_is_assumed_with_the_secrets_keys(self, fake: FakeAws, clock: Clock) -> None:
        async with Aws(now=clock) as aws:
            await aws.call(sqs(keys=Keys("AKIATEAM", "s")), "get_queue_url", QueueName="q")
        assert [c.signer for c in fake.calls] == ["AKIATEAM", "ASIA1"]

    async def test_it_is_assumed_where_the_spec_says(self, fake: FakeAws, clock: Clock) -> None:
        with FakeAws() as elsewhere:
            elsewhere.on("AssumeRole", sessions(clock))
            identity = Identity(None, ROLE, "", "eu-west-1", elsewhere.url)
            async with Aws(now=clock) as aws:
                await aws.call(ClientKey("sqs", "eu-west-1", identity), "get_queue_url", QueueName="q")
            assert (elsewhere.actions(), fake.actions()) == (["AssumeRole"], ["GetQueueUrl"])

    async def test_assuming_a_role_is_no_write(self, fake: FakeAws, clock: Clock) -> None:
        asked: list[float] = []
        async with Aws(now=clock) as aws:
            aws.hooks.guard = asked.append
            await aws.call(sqs(), "get_queue_url", QueueName="q")
        assert (asked, fake.actions()) == ([], ["AssumeRole", "GetQueueUrl"])

    async def test_a_refusal_is_told_to_all_who_wait_and_asked_for_once(
        self, fake: FakeAws, clock: Clock
    ) -> None:
        message = f"User: arn:aws:sts::1:x is not authorized to perform: sts:AssumeRole on resource: {ROLE}"
        fake.on("AssumeRole", query_error("AccessDenied", message))
        async with Aws(now=clock) as aws:
            calls = (aws.call(sqs(), "get_queue_url", QueueName="q") for _ in range(10))
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(e, AwsError) and e.access_denied for e in found)
            assert isinstance(found[0], AwsError)
            assert found[0].missing_permission == "sts:AssumeRole"
            # The refusal of one role is nothing to another.
            fake.on("AssumeRole", sessions(clock))
            await aws.call(sqs(ROLE + "-b"), "get_queue_url", QueueName="q")
        assert fake.actions() == ["AssumeRole", "AssumeRole", "GetQueueUrl"]

    async def test_a_session_that_is_still_good_is_used_while_sts_fails(
        self, fake: FakeAws, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Aws(now=clock) as aws:
            await aws.call(sqs(), "get_queue_url", QueueName="q")
            fake.on("AssumeRole", query_error("AccessDenied", "no"))
            clock.now += timedelta(minutes=46)
            for _ in range(3):
                await aws.call(sqs(), "get_queue_url", QueueName="q")
            assert fake.calls[-1].signer == "ASIA1"
            assert fake.actions().count("AssumeRole") == 2
            clock.now += timedelta(minutes=14)
            with pytest.raises(AwsError) as raised:
                await aws.call(sqs(), "get_queue_url", QueueName="q")
        assert raised.value.missing_permission == "sts:AssumeRole"
        assert "Traceback" not in caplog.text

    async def test_a_role_that_hangs_takes_one_thread(self, fake: FakeAws, clock: Clock) -> None:
        fake.hang("AssumeRole")
        async with Aws(Options(threads=2, per_client=2), now=clock) as aws:
            waiting = [asyncio.create_task(aws.call(sqs(), "get_queue_url", QueueName="q")) for _ in range(5)]
            await fake.received(1)
            own = ClientKey("sqs", "eu-west-1")
            await asyncio.wait_for(aws.call(own, "get_queue_url", QueueName="q"), 5)
            for task in waiting:
                task.cancel()


class TestInstanceMetadata:
    """What the node may do is not what a resource may do."""

    @pytest.fixture(autouse=True)
    def no_keys(self, environment: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG002 - order
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    async def call(self, aws: Aws) -> AwsError:
        with pytest.raises(AwsError) as raised:
            await aws.call(ClientKey("sqs", "eu-west-1"), "get_queue_url", QueueName="q")
        return raised.value

    async def test_it_is_never_asked(self, imds: FakeAws, fake: FakeAws, aws: Aws) -> None:
        found = await self.call(aws)
        assert (found.no_identity, found.code) == (True, "NoCredentials")
        assert (imds.calls, fake.calls) == ([], [])

    async def test_nor_for_a_region(self, imds: FakeAws, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_DEFAULTS_MODE", "auto")
        await self.call(aws)
        assert imds.calls == []

    async def test_nor_when_a_profile_says_so(self, imds: FakeAws, aws: Aws, tmp_path: Path) -> None:
        profile = f"[default]\nrole_arn = {ROLE}\ncredential_source = Ec2InstanceMetadata\n"
        (tmp_path / "config").write_text(profile)
        assert (await self.call(aws)).no_identity
        assert imds.calls == []

    async def test_it_is_asked_when_switched_on(self, imds: FakeAws) -> None:
        """So the tests above would see it."""
        async with Aws(Options(instance_identity=True)) as aws:
            await self.call(aws)
        assert imds.calls[0].action == "PUT /latest/api/token"


class TestKeeping:
    """Clients last while they are used."""

    def test_a_client_is_made_once_and_dropped_after_an_hour_unused(self) -> None:
        now = [0.0]
        clients = ClientPool(Options(), Hooks(), clock=lambda: now[0])
        with clients.acquire(ClientKey("sqs", "eu-west-1")) as first:
            pass
        now[0] += UNUSED_SECONDS
        with clients.acquire(ClientKey("sqs", "eu-west-1")) as second:
            assert second is first
        now[0] += UNUSED_SECONDS + 1
        with (
            clients.acquire(ClientKey("sqs", "us-east-1")),
            clients.acquire(ClientKey("sqs", "eu-west-1")) as third,
        ):
            assert third is not first

    def test_of_too_many_clients_of_a_namespace_one_that_is_unused_for_a_minute_is_replaced(self) -> None:
        """Regions and external IDs are free text."""
        now = [0.0]
        clients = ClientPool(Options(), Hooks(), clock=lambda: now[0])

        def key(number: int, namespace: str = "evil") -> ClientKey:
            keys = Keys(f"AKIA{number}", "s")
            return ClientKey("sqs", f"ep-fake-{number}", Identity(keys), namespace=namespace)

        def get(one: ClientKey) -> Any:
            now[0] += 0.1
            with clients.acquire(one) as client:
                return client

        others = (key(1000, "good"), key(1001, ""))
        kept = [get(one) for one in others]
        with clients.acquire(key(0)) as used:
            made = [get(key(number)) for number in range(1, MOST_CLIENTS)]
            with pytest.raises(AwsError, match=r"^TooManyClients: the namespace uses 96 clients; "):
                get(key(MOST_CLIENTS))
            now[0] += REPLACED_SECONDS
            assert get(key(1)) is made[0]
            get(key(MOST_CLIENTS))  # takes the place of the second
            assert (len(clients._clients), len(clients._sessions)) == (MOST_CLIENTS + 2,) * 2
            assert get(key(0)) is used
            assert get(key(1)) is made[0]
            assert get(key(2)) is not made[1]  # takes the place of the third
            assert get(key(MOST_CLIENTS - 1)) is made[-1]
        assert [get(one) for one in others] == kept
        assert len([get(key(number, "")) for number in range(2000, 2000 + MOST_CLIENTS)]) == MOST_CLIENTS

    def test_users_of_a_role_share_its_clients(self) -> None:
        """A client takes a third of a MiB, and there may be a thousand resources."""
        clients = ClientPool(Options(), Hooks())
        one, other = (sqs().used_by(User("media", "s3ar", name)) for name in ("one", "two"))
        with clients.acquire(one) as first, clients.acquire(other) as second:
            assert first is second

    def test_a_session_that_nobody_used_for_an_hour_is_forgotten(self, fake: FakeAws) -> None:
        fake.on("AssumeRole", sessions(Clock()))
        now = [0.0]
        clients = ClientPool(Options(), Hooks(), now=Clock(), clock=lambda: now[0])
        one, other = (sqs().used_by(User("media", "s3ar", name)).identity for name in ("one", "two"))
        clients.renew(one)
        clients.renew(other)
        now[0] += UNUSED_SECONDS
        clients.renew(one)
        now[0] += 1.0
        with clients.acquire(ClientKey("sqs", "us-east-1")):  # making a client evicts unused ones
            assert (clients.fresh(one), clients.fresh(other)) == (True, False)

    def test_a_client_on_loan_is_kept_however_long(self) -> None:
        now = [0.0]
        clients = ClientPool(Options(), Hooks(), clock=lambda: now[0])
        with clients.acquire(ClientKey("sqs", "eu-west-1")) as client:
            now[0] += 2 * UNUSED_SECONDS
            with clients.acquire(ClientKey("sqs", "us-east-1")):
                pass
            with clients.acquire(ClientKey("sqs", "eu-west-1")) as again:
                assert again is client

    def test_long_polls_have_clients_of_their_own_that_wait_longer(self) -> None:
        clients = ClientPool(Options(), Hooks())
        with clients.acquire(ClientKey("sqs", "eu-west-1")) as calls:
            with clients.acquire(ClientKey("sqs", "eu-west-1"), poll=True) as polls:
                assert polls is not calls
                assert polls.meta.config.read_timeout > 20
            assert calls.meta.config.read_timeout + calls.meta.config.connect_timeout <= 10

    async def test_a_closed_one_takes_nothing_more(self, fake: FakeAws) -> None:
        aws = Aws()
        await aws.close()
        with pytest.raises(RuntimeError, match="closed"):
            await aws.call(ClientKey("sqs", "eu-west-1"), "get_queue_url", QueueName="q")
        assert fake.calls == []


async def test_expired_keys_are_no_refusal_of_a_policy(fake: FakeAws, aws: Aws) -> None:
    fake.on("GetQueueUrl", error("ExpiredTokenException", "The security token is expired", 403))
    with pytest.raises(AwsError) as raised:
        await aws.call(ClientKey("sqs", "eu-west-1"), "get_queue_url", QueueName="q")
    assert (raised.value.no_identity, raised.value.missing_permission) == (True, None)


async def test_clients_of_replaced_keys_are_closed_after_their_calls(fake: FakeAws, aws: Aws) -> None:
    """A client takes 250 KiB, and there is one for each region and service."""
    old, new = Keys("AKIAOLD", "s"), Keys("AKIANEW", "s")
    targets = [ClientKey("sqs", f"eu-west-{n}", Identity(keys)) for keys in (old, new) for n in (1, 2, 3)]
    for target in targets:
        await aws.call(target, "get_queue_url", QueueName="q")
    fake.hang("GetQueueAttributes")
    call = aws.call(targets[0], "get_queue_attributes", QueueUrl="https://q/1/q", AttributeNames=["All"])
    going_on = asyncio.ensure_future(call)
    await fake.received(1, "GetQueueAttributes")
    entry = aws._clients._clients[targets[0].shared, False]
    aws.retire(old)
    assert {target.identity.keys for target, _ in aws._clients._clients} == {new}
    assert (entry.retired, entry.in_use) == (True, 1)
    fake.release()
    assert (await going_on)["Attributes"] == {}
    assert entry.in_use == 0
    before = fake.connections
    await aws.call(targets[3], "get_queue_url", QueueName="q")
    assert fake.connections == before
