"""A call that was made keeps the other resources of its share from it, whatever has become of its own."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.grants import Grant, Grants
from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import apply, credentials, gather, worker
from caretaker.s3refresh.controller import S3AggregatedRefreshKind
from caretaker.s3refresh.debounce import CALL_SECONDS
from caretaker.s3refresh.metrics import S3RefreshMetrics
from caretaker.s3refresh.resource import RawRefresh
from caretaker.s3refresh.shared import Dependencies
from caretaker.s3refresh.snapshot import PlanInput
from testing.clock import Clock
from testing.s3refreshes import ACCOUNT, GATEWAY, QUEUE, REGION, SHARE, Spec, refresh

ENDPOINT: Final = "https://gateways.example"
MINE, OTHER, THIRD = (Key("S3AggregatedRefresh", "ours", name) for name in ("mine", "other", "third"))
GRANTED: Final = Grants((Grant(("ours",), queue_arns=("*",), own_identity=True, endpoint_urls=(ENDPOINT,)),))
NAME: Final = SHARE.rpartition("/")[2]
ELSEWHERE: Final = {"storagegateway": ENDPOINT}


def spec_of(name: str, **aws: Any) -> Spec:
    """Its queue is its own; whatever is dirty is due at once."""
    return refresh(
        aws={"region": REGION, **aws},
        source={"sqs": {"queueURL": f"{QUEUE}-{name}"}},
        debounce={"quietPeriod": "0s"},
    )


class ApiServer:
    """Holds resources by name, and Secrets with keys."""

    host = "https://api.example.com"
    guard = None

    def __init__(self, **specs: Spec) -> None:
        self.specs = specs
        self.statuses = dict.fromkeys(specs, b"{}")
        self.secrets = {"keys", "new-keys"}

    def resource(self, name: str) -> RawRefresh:
        meta = WireMeta(name=name, namespace="ours", uid=name, resource_version="1")
        return RawRefresh(
            meta, *map(msgspec.Raw, (msgspec.json.encode(self.specs[name]), self.statuses[name]))
        )

    async def get(self, path: str, wanted: Any) -> Any:
        name = path.rpartition("/")[2]
        if "/secrets/" in path and name in self.secrets:
            keys = {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": name}
            data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
            return msgspec.convert({"data": data}, wanted)
        if name not in self.specs:
            raise ApiError(404, "NotFound")
        return self.resource(name)

    async def list(self, *_: Any, each: Callable[[RawRefresh], Any], **__: Any) -> tuple[list[Any], str]:
        return [each(self.resource(name)) for name in self.specs], ""


class Aws:
    """One file share, whatever the endpoint; its calls wait for `answer`. Queues say nothing."""

    def __init__(self) -> None:
        self.calls = 0
        self.called = asyncio.Event()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def sqs(self, *_: Any) -> "Aws":
        return self

    def storagegateway(self, _: ClientKey) -> "Aws":
        return self

    def retire(self, _: Any) -> None:
        """Keys are replaced."""

    async def get_queue_attributes(self, **_: Any) -> Any:
        await asyncio.Event().wait()

    receive_message = get_queue_attributes

    async def list_file_shares(self, **_: Any) -> Any:
        return {"FileShareInfoList": [{"FileShareARN": SHARE, "FileShareType": "NFS"}]}

    async def describe_nfs_file_shares(self, **_: Any) -> Any:
        found = {"FileShareARN": SHARE, "FileShareId": NAME, "GatewayARN": GATEWAY}
        place = {"LocationARN": "arn:aws:s3:::media", "FileShareStatus": "AVAILABLE"}
        return {"NFSFileShareInfoList": [found | place]}

    async def refresh_cache(self, **_: Any) -> Any:
        self.calls += 1
        self.called.set()
        return await asyncio.shield(self.answer)


class Place:
    """An operator, the API server and AWS, with a clock that a test moves."""

    def __init__(self, api: ApiServer, aws: Aws, clock: Clock) -> None:
        self.api, self.aws, self.clock = api, aws, clock
        self._news = asyncio.Event()
        self.restart()

    def restart(self) -> None:
        """Another process: all memory is lost."""
        api: Any = self.api
        aws: Any = self.aws
        metrics = S3RefreshMetrics(CollectorRegistry())
        self.kind = S3AggregatedRefreshKind(Dependencies(api, aws, GRANTED, metrics, self._add, owner="me"))

    def _add(self, *_: Any, **__: Any) -> None:
        self._news.set()

    async def a_pass(self, key: Key, *, written: bool = True) -> None:
        """One pass; its status may be refused."""
        snapshot = await self.kind.gather(key)
        if snapshot is None:
            self.kind.forget(key)
            return
        plan = self.kind.plan(snapshot)
        await self.kind.before(snapshot, plan)
        if written:
            self.api.statuses[key.name] = msgspec.json.encode(self.kind.status(snapshot, plan, None))
            await self.kind.after(snapshot, plan, None)

    async def passes_until(self, key: Key, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not done():
                self._news.clear()
                await self.a_pass(key)
                if not done():
                    await self._news.wait()

    async def knows_its_shares(self, key: Key) -> None:
        of = self.kind._shared.workers
        await self.passes_until(key, lambda: key in of and bool(of[key].discoverer.discovery.shares))

    async def calls(self, key: Key) -> None:
        """The resource calls the share."""
        self.aws.called.clear()
        of = self.kind._shared.workers
        await self.passes_until(key, lambda: key in of and bool(of[key].calls.running))
        async with asyncio.timeout(10):
            await self.aws.called.wait()

    async def under_way(self) -> None:
        """A call of MINE is being made, and OTHER knows the share, too."""
        await self.calls(MINE)
        self.clock.now += 5
        await self.knows_its_shares(OTHER)

    async def answered(self, error: Exception | None = None) -> None:
        """The call that is under way is answered."""
        if error is None:
            self.aws.answer.set_result({"NotificationId": "n-1"})
        else:
            self.aws.answer.set_exception(error)
        calls = self.kind._shared.workers[MINE].calls
        async with asyncio.timeout(10):
            while not calls.results:
                self._news.clear()
                await self._news.wait()

    async def inputs(self, key: Key) -> PlanInput:
        """Of a plan that is made now."""
        snapshot = await self.kind.gather(key)
        assert snapshot is not None
        return snapshot.plan_input

    async def held(self, key: Key) -> float:
        """Seconds for which the resource must not call the share."""
        inputs = await self.inputs(key)
        assert [share.id for share in inputs.discovery.shares] == [NAME]
        return inputs.held.get(NAME, 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (apply, credentials, gather, worker):
        monkeypatch.setattr(module, "time", clock)
    return clock


def suspended(api: ApiServer) -> None:
    api.specs["mine"]["suspend"] = True


def broken(api: ApiServer) -> None:
    api.specs["mine"]["debounce"] = {"quietPeriod": "1 fortnight"}


def undecodable(api: ApiServer) -> None:
    api.specs["mine"] = {}


def other_keys(api: ApiServer) -> None:
    api.specs["mine"]["aws"]["credentialsSecretRef"] = {"name": "new-keys"}


def no_keys(api: ApiServer) -> None:
    api.specs["mine"]["aws"]["credentialsSecretRef"] = {"name": "gone"}


def not_granted(api: ApiServer) -> None:
    api.specs["mine"]["aws"]["roleARN"] = f"arn:aws:iam::{ACCOUNT}:role/none"


def another_endpoint(api: ApiServer) -> None:
    api.specs["mine"]["aws"]["endpointURLs"] = ELSEWHERE


def no_endpoint(api: ApiServer) -> None:
    api.specs["mine"]["aws"].pop("endpointURLs", None)


def unchanged(_: ApiServer) -> None:
    """Nothing happens."""


CHANGES: Final = [
    unchanged,
    suspended,
    broken,
    undecodable,
    other_keys,
    no_keys,
    not_granted,
    another_endpoint,
]


@pytest.mark.parametrize("change", CHANGES)
async def test_an_accepted_call_counts_whatever_the_spec_of_its_resource_says_by_then(
    clock: Clock, change: Callable[[ApiServer], None]
) -> None:
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    change(place.api)
    await place.a_pass(MINE)
    await place.answered()
    clock.now += 1
    await place.a_pass(MINE)
    assert await place.held(OTHER) == 59.0
    await place.kind.stop()


async def test_it_counts_while_no_status_can_be_written(clock: Clock) -> None:
    """The API server refuses each status while the stored spec breaks a rule of a newer CRD."""
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    await place.answered()
    clock.now += 20
    await place.a_pass(MINE, written=False)
    assert await place.held(OTHER) == 40.0
    await place.kind.stop()


async def test_a_call_whose_resource_was_deleted_may_be_accepted_yet(clock: Clock) -> None:
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    del place.api.specs["mine"]
    await place.a_pass(MINE)
    await asyncio.wait(place.kind._writer._endings)
    assert await place.held(OTHER) == 60.0 + CALL_SECONDS
    await place.kind.stop()


@pytest.mark.parametrize(
    ("unknown", "held"),
    [pytest.param(True, 60.0 + CALL_SECONDS, id="lost"), pytest.param(False, 55.0, id="refused")],
)
async def test_a_call_counts_until_it_cannot_be_accepted_any_more(
    clock: Clock, unknown: bool, held: float
) -> None:
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    error_class = ErrorClass.UNKNOWN_OUTCOME if unknown else ErrorClass.THROTTLED
    await place.answered(
        AwsError(error_class, "Odd", "no", service="storagegateway", operation="RefreshCache")
    )
    assert await place.held(OTHER) == held
    await place.kind.stop()


async def test_a_pass_that_is_under_way_when_a_stop_begins_records_no_claim(clock: Clock) -> None:
    """The next process would wait for minutes for the outcome of a call that is never made."""
    place = Place(ApiServer(mine=spec_of("mine")), Aws(), clock)
    await place.knows_its_shares(MINE)
    snapshot = await place.kind.gather(MINE)
    assert snapshot is not None
    plan = place.kind.plan(snapshot)
    assert [share.id for share, _ in plan.calls] == [NAME]
    await place.kind.quiesce(10)
    with pytest.raises(Conflict):
        await place.kind.before(snapshot, plan)
    await place.a_pass(MINE)
    assert place.aws.calls == 0
    await place.kind.stop()
    place.restart()
    await place.calls(MINE)
    assert place.aws.calls == 1, "the next process makes it at once"
    await place.kind.stop()


def at_two_endpoints() -> dict[str, Spec]:
    """The third names none."""
    return {
        "mine": spec_of("mine", endpointURLs=ELSEWHERE),
        "other": spec_of("other", endpointURLs=ELSEWHERE),
        "third": spec_of("third"),
    }


async def test_turns_at_a_gateway_are_those_of_its_endpoint(clock: Clock) -> None:
    place = Place(ApiServer(**at_two_endpoints()), Aws(), clock)
    await place.under_way()
    await place.a_pass(OTHER)
    await place.knows_its_shares(THIRD)
    mine, other, third = [await place.inputs(key) for key in (MINE, OTHER, THIRD)]
    assert (list(mine.rivals.values()), list(other.free.values())) == ([1], [0])
    assert (third.rivals, third.free, third.held) == ({GATEWAY: 0}, {GATEWAY: 1}, {})
    await place.kind.stop()


@pytest.mark.parametrize("change", [unchanged, suspended, other_keys, no_keys, not_granted, another_endpoint])
@pytest.mark.parametrize("answered", [True, False])
async def test_a_refresh_takes_its_turn_whatever_the_spec_of_its_resource_says_by_then(
    clock: Clock, answered: bool, change: Callable[[ApiServer], None]
) -> None:
    """The gateway would refuse another refresh meanwhile."""
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    if answered:
        await place.answered()
    change(place.api)
    for _ in range(2):
        await place.a_pass(MINE)
        assert (await place.inputs(OTHER)).free == {GATEWAY: 0}
    clock.now += 9999  # it is assumed to have ended
    if answered:
        await place.a_pass(MINE)
        assert (await place.inputs(OTHER)).free == {GATEWAY: 1}
    await place.kind.stop()


class TwoShares(Aws):
    """Of two types, on one gateway. Those of the type that is called first may not be described any more."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    async def list_file_shares(self, **_: Any) -> Any:
        types = {SHARE: "SMB", f"{SHARE}-2": "NFS"}
        return {
            "FileShareInfoList": [{"FileShareARN": arn, "FileShareType": types[arn]} for arn in sorted(types)]
        }

    async def describe_nfs_file_shares(self, **_: Any) -> Any:
        return {"NFSFileShareInfoList": self._described(f"{SHARE}-2")}

    async def describe_smb_file_shares(self, **_: Any) -> Any:
        return {"SMBFileShareInfoList": self._described(SHARE)}

    def _described(self, arn: str) -> list[Any]:
        if arn == self.first:
            raise AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "not allowed")
        found = {"FileShareARN": arn, "FileShareId": arn.rpartition("/")[2], "GatewayARN": GATEWAY}
        return [found | {"LocationARN": "arn:aws:s3:::media", "FileShareStatus": "AVAILABLE"}]

    async def refresh_cache(self, **how: Any) -> Any:
        answer = await super().refresh_cache(**how)
        self.first = how["FileShareARN"]
        return answer


async def test_a_refresh_of_a_share_that_is_not_found_now_keeps_the_next_of_its_own_resource(
    clock: Clock,
) -> None:
    place = Place(ApiServer(mine=spec_of("mine")), TwoShares(), clock)
    await place.calls(MINE)
    await place.answered()
    await place.a_pass(MINE)
    other_keys(place.api)
    await place.a_pass(MINE)
    await place.knows_its_shares(MINE)
    assert place.aws.calls == 1, "the gateway would refuse it"
    inputs = await place.inputs(MINE)
    assert (len(inputs.targets), len(inputs.discovery.shares), inputs.free) == (2, 1, {GATEWAY: 0})
    await place.kind.stop()


@pytest.mark.parametrize("change", [unchanged, suspended, broken, undecodable, no_endpoint])
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_call_to_an_endpoint_counts_there_and_nowhere_else(
    clock: Clock, restarted: bool, change: Callable[[ApiServer], None]
) -> None:
    """An endpoint may name shares of another namespace: a spec that leaves it must not take these along."""
    place = Place(ApiServer(**at_two_endpoints()), Aws(), clock)
    await place.under_way()
    change(place.api)
    await place.answered()
    await place.a_pass(MINE)
    if change in (unchanged, no_endpoint):  # it finds the share anew
        await place.knows_its_shares(MINE)
        await place.a_pass(MINE)
        await place.knows_its_shares(THIRD)
        free = [list((await place.inputs(key)).free.values()) for key in (OTHER, THIRD)]
        assert free == [[0 if change is unchanged else 1], [1]], "nor does it take a turn elsewhere"
    if restarted:
        await place.kind.stop()
        place.restart()
        await place.knows_its_shares(OTHER)
    clock.now += 10
    # Without a spec nothing is recorded: the next process does not know that the call was answered.
    unrecorded = CALL_SECONDS if restarted and change in (broken, undecodable) else 0.0
    assert await place.held(OTHER) == 50.0 + unrecorded
    await place.calls(THIRD)
    assert place.aws.calls == 2, "it is called at once by another's own endpoint"
    await place.kind.stop()


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_that_was_not_answered_when_its_process_ended_counts_for_the_next(
    clock: Clock, change: Callable[[ApiServer], None]
) -> None:
    place = Place(ApiServer(mine=spec_of("mine"), other=spec_of("other")), Aws(), clock)
    await place.under_way()
    change(place.api)
    await place.kind.stop()
    place.restart()
    await place.knows_its_shares(OTHER)
    assert await place.held(OTHER) == 60.0 + CALL_SECONDS
    await place.kind.stop()
