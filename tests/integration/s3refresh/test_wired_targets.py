"""Events that become Jobs and calls by HTTP: real API server with its Job controller, real operator, and a
service on loopback, which the shared operator may call by the name `localhost` alone."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from caretaker.api import names
from caretaker.s3refresh.targets.call_slots import EACH
from fakes.apiserver import FakeApiServer, Handler
from testbed import steer
from testbed.admin import Admin, Json, path
from testing.apiproxy import ApiProxy
from testing.aws import Source
from testing.cluster import Nodes
from testing.faults import Action, Exchange, Match
from testing.operator import OperatorProcess
from testing.refreshing import TIME_SCALE, TIMEOUT, Refresh, Refreshing, add_headers, condition, stands

TESTS: Final = str(Path(__file__).parents[2])
KEYS: Final = ("in/2026/a", "in/2026/b")
FOLDERS: Final = {"/", "in", "in/2026"}


@pytest.fixture
async def service() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as started:
        yield started


@pytest.fixture
async def worker(nodes: Nodes) -> str:
    """The one node on which this test's Jobs run."""
    (name,) = await nodes.add(1)
    return name


def job(nodes: Nodes, *, run_seconds: float = 0.1, **fields: Any) -> Json:
    """spec.target of Jobs that run on this test's nodes."""
    template = {
        "metadata": {"annotations": steer.behaviour(run_seconds=run_seconds)},
        "spec": {
            "nodeSelector": nodes.selector,
            "containers": [{"name": "main", "image": "example.com/refresh:1"}],
        },
    }
    return {"job": {"template": template, **fields}}


def http(service: FakeApiServer, host: str = "localhost", **fields: Any) -> Json:
    """spec.target of calls to this test's service, which listens on 127.0.0.1."""
    port = service.url.rpartition(":")[2]
    return {"http": {"url": f"http://{host}:{port}/purge", **fields}}


def answering(*codes: int, then: int = 204) -> Handler:
    """Each request takes the next of these status codes."""
    left = list(codes)

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(status=left.pop(0) if left else then)

    return reply


async def refresher(place: Refreshing, source: Source, target: Json, **spec: Any) -> Refresh:
    """A resource that has this target for this bucket."""
    return await place.create(source.queue, filter={"buckets": [source.bucket]}, target=target, **spec)


def targets_of(found: Json) -> list[Json]:
    """The records of all targets."""
    return list((found.get("status") or {}).get("targets") or ())


def only(found: Json) -> Json:
    """The record of the one target."""
    (target,) = targets_of(found) or [{}]
    return dict(target)


def succeeded(found: Json) -> bool:
    """Whether the last refresh has succeeded and nothing is left to do."""
    return (only(found).get("last") or {}).get("result") == "Succeeded" and stands(found, "CaughtUp")


def failing(code: str) -> Callable[[Json], bool]:
    """Whether the target's last call failed with this code."""
    return lambda found: (only(found).get("failure") or {}).get("code") == code


async def jobs_of(admin: Admin, resource: Refresh) -> list[Json]:
    """The resource's Jobs, oldest first."""
    labels = f"caretaker.dev/s3aggregatedrefresh={resource.name}"
    found = await admin.list(path("jobs", resource.namespace), labels=labels)
    return sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))


def told(one: Json) -> Json:
    """What a Job's container is told."""
    (variable,) = one["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable["name"] == "CARETAKER_PAYLOAD"
    return dict(json.loads(variable["value"]))


def check(payload: Json, source: Source) -> None:
    """It says what the events of KEYS have made stale."""
    assert (payload["bucket"], payload["prefix"]) == (source.bucket, "")
    assert set(payload["folders"]) == FOLDERS
    assert (payload["all"], payload["recursive"], payload["truncated"]) == (False, False, False)
    assert datetime.fromisoformat(payload["firstEventAt"]) <= datetime.fromisoformat(payload["lastEventAt"])


# ---------------------------------------------------------------- Jobs


async def test_events_become_one_job_and_its_end_is_heard_of(
    shared: Refreshing, admin: Admin, nodes: Nodes, worker: str
) -> None:
    source = shared.aws.source()
    resource = await refresher(shared, source, job(nodes))
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(succeeded)
    (made,) = await jobs_of(admin, resource)
    check(told(made), source)
    assert told(made)["claimID"] == made["metadata"]["labels"]["caretaker.dev/claim"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
    assert made["status"]["succeeded"] == 1
    assert [target["id"] for target in found["status"]["targets"]] == [source.bucket]
    assert not {"dirty", "claim", "inFlight"} & only(found).keys()
    await shared.emptied(source.queue.url)


async def test_a_job_that_fails_is_followed_by_another_one(
    shared: Refreshing, admin: Admin, nodes: Nodes, worker: str
) -> None:
    source = shared.aws.source()
    await steer.steer_node(admin, worker, steer.behaviour("fail", run_seconds=0.1))
    resource = await refresher(shared, source, job(nodes, backoffLimit=0))
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(failing("BackoffLimitExceeded"))
    assert only(found)["last"]["result"] == "Failed"
    assert condition(found, "CaughtUp")["reason"] == "RefreshFailing"
    (first, *_) = await jobs_of(admin, resource)
    assert first["metadata"]["name"] in only(found)["failure"]["message"]
    await steer.release_node(admin, worker)
    assert "failure" not in only(await resource.when(succeeded))
    every = await jobs_of(admin, resource)
    assert len(every) >= 2
    for one in every:
        check(told(one), source)
    assert len({told(one)["claimID"] for one in every}) == len(every)
    born = [datetime.fromisoformat(one["metadata"]["creationTimestamp"]).timestamp() for one in every]
    # Times are told in whole seconds.
    assert all(later - earlier >= shared.min_interval - 1 for earlier, later in pairwise(born))


async def test_a_template_that_is_invalid_is_told_and_what_came_meanwhile_is_refreshed(
    shared: Refreshing, admin: Admin, nodes: Nodes, worker: str
) -> None:
    source = shared.aws.source()
    good = job(nodes)
    invalid = {"spec": {"containers": [{"name": "main", "image": "i", "imagePullPolicy": "Sometimes"}]}}
    resource = await refresher(shared, source, {"job": {"template": invalid}})
    said = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert "spec.target.job.template.spec.containers[0].imagePullPolicy" in said["message"]
    await resource.condition("Ready", "False", "TargetsUnresolved")
    await shared.put(source.bucket, *KEYS)
    await resource.when(lambda found: bool(only(found).get("dirty")))
    assert await jobs_of(admin, resource) == []
    await resource.edit(target=good)
    await resource.when(succeeded)
    (made,) = await jobs_of(admin, resource)
    check(told(made), source)


async def test_flush_waits_for_the_end_of_the_job_which_would_go_with_its_owner(
    shared: Refreshing, admin: Admin, nodes: Nodes, worker: str
) -> None:
    source = shared.aws.source()
    slow = {"quietPeriod": "24h", "maxDelay": "24h", "minInterval": "60s"}
    target = job(nodes, run_seconds=5)
    resource = await refresher(shared, source, target, onDelete="Flush", debounce=slow)
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS)
    await resource.when(lambda found: set((only(found).get("dirty") or {}).get("folders", ())) == FOLDERS)
    ended: list[Json] = []

    async def watch() -> None:
        def done(jobs: Sequence[Json]) -> bool:
            mine = [one for one in jobs if told(one)["bucket"] == source.bucket]
            ended[:] = [one for one in mine if one.get("status", {}).get("succeeded")]
            return bool(ended)

        await admin.wait_for_all(path("jobs", resource.namespace), done, TIMEOUT)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await resource.delete()
        await resource.gone()
        assert all(one["status"].get("succeeded") for one in await jobs_of(admin, resource))
    check(told(ended[0]), source)


class Kill(Action):
    """Kills the operator at its first Job that is not a dry run, `before` or after it is created."""

    def __init__(self, process: OperatorProcess, *, before: bool) -> None:
        self._process = process
        self._before = before
        self.struck = threading.Event()

    async def before(self, exchange: Exchange) -> None:
        if self._before and self._meant(exchange):
            exchange.reset = True
            await self._strike()

    async def after(self, exchange: Exchange) -> None:
        if not self._before and self._meant(exchange):
            await self._strike()

    def _meant(self, exchange: Exchange) -> bool:
        return "dryRun" not in exchange.query and not self.struck.is_set()

    async def _strike(self) -> None:
        await asyncio.to_thread(self._process.kill9)
        self.struck.set()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(True, id="before it is created", marks=pytest.mark.slow),
        pytest.param(False, id="before it is known"),
    ],
)
async def test_an_operator_that_dies_at_a_job_makes_it_once(
    before: bool,
    own: tuple[OperatorProcess, Refreshing, ApiProxy],
    admin: Admin,
    nodes: Nodes,
    worker: str,
) -> None:
    process, place, proxy = own
    kill = Kill(process, before=before)
    proxy.add(Match(verb="create", resource="jobs"), kill)
    source = place.aws.source()
    resource = await refresher(place, source, job(nodes))
    await asyncio.to_thread(process.start)
    await resource.condition("Ready")
    await place.put(source.bucket, *KEYS)
    assert await asyncio.to_thread(kill.struck.wait, TIMEOUT)
    claim = only(await resource.get())["claim"]
    assert len(await jobs_of(admin, resource)) == (0 if before else 1)
    await asyncio.to_thread(process.start)
    await resource.when(succeeded)
    (made,) = await jobs_of(admin, resource)
    assert told(made)["claimID"] == claim["id"]
    check(told(made), source)


# ---------------------------------------------------------------- calls by HTTP


def call(service: FakeApiServer, number: int = 0) -> tuple[str, Json]:
    """(Idempotency-Key, payload) of a request."""
    request = service.requests[number]
    assert (request.method, request.path) == ("POST", "/purge")
    return request.headers["Idempotency-Key"], json.loads(service.bodies[number])


async def test_events_become_one_call_with_headers_from_a_secret(
    shared: Refreshing, service: FakeApiServer, admin: Admin
) -> None:
    service.on("POST", "/purge", answering())
    source = shared.aws.source()
    secret = f"headers-{source.bucket}"
    target = http(service, headersFrom=[{"secretRef": {"name": secret}}])
    await add_headers(admin, shared.namespace, secret, target["http"]["url"], Authorization="Bearer t0ken")
    resource = await refresher(shared, source, target)
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(succeeded)
    assert len(service.requests) == 1
    key, payload = call(service)
    assert key == payload["claimID"]
    check(payload, source)
    assert service.requests[0].headers["Authorization"] == "Bearer t0ken"
    assert "t0ken" not in json.dumps(found)
    assert not {"dirty", "claim", "inFlight"} & only(found).keys()
    await shared.emptied(source.queue.url)


async def test_a_prefix_of_the_bucket_is_refreshed_and_another_one_whole_once_it_is_set(
    shared: Refreshing, service: FakeApiServer
) -> None:
    service.on("POST", "/purge", answering())
    source = shared.aws.source()
    resource = await refresher(
        shared, source, http(service, prefix="in/"), debounce={"quietPeriod": "1s", "minInterval": "0s"}
    )
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS, "out/c")
    await resource.when(succeeded)
    _, payload = call(service)
    assert (payload["prefix"], payload["all"], set(payload["folders"])) == ("in/", False, {"/", "2026"})
    await shared.emptied(source.queue.url)
    assert len(service.requests) == 1
    await resource.edit(target=http(service, prefix="out/"))
    await resource.when(
        lambda found: only(found).get("location") == f"{source.bucket}/out/" and succeeded(found)
    )
    _, payload = call(service, 1)
    assert (payload["prefix"], payload["all"], payload["folders"]) == ("out/", True, [])
    assert len(service.requests) == 2


async def test_an_address_that_is_not_allowed_is_not_called_and_the_mend_is_named(
    shared: Refreshing, service: FakeApiServer
) -> None:
    service.on("POST", "/purge", answering())
    source = shared.aws.source()
    resource = await refresher(shared, source, http(service, "127.0.0.2"))
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(failing("AddressRefused"))
    said = condition(found, "CaughtUp")
    assert said["reason"] == "RefreshFailing"
    assert "127.0.0.2, which is loopback" in said["message"]
    assert "--egress-allow" in said["message"]
    await resource.edit(target=http(service, "127.0.0.1"))  # where the API server is, too
    await resource.when(lambda found: "the API server's" in str(only(found).get("failure")))
    assert service.requests == []
    await resource.edit(target=http(service))
    await resource.when(succeeded)
    check(call(service)[1], source)


async def test_a_secret_that_is_missing_is_named_and_looked_for_again(
    shared: Refreshing, service: FakeApiServer, admin: Admin
) -> None:
    service.on("POST", "/purge", answering())
    source = shared.aws.source()
    secret = f"headers-{source.bucket}"
    target = http(service, headersFrom=[{"secretRef": {"name": secret}}])
    resource = await refresher(shared, source, target)
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert told["message"].startswith(f"spec.target.http.headersFrom: Secret {secret}:")
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(failing("SecretUnreadable"))
    assert secret in condition(found, "CaughtUp")["message"]
    assert service.requests == []
    await add_headers(admin, shared.namespace, secret, target["http"]["url"], X="y")
    await resource.when(succeeded)
    assert service.requests[0].headers["X"] == "y"
    await resource.condition("TargetsResolved")


async def test_a_secret_that_is_not_for_this_host_is_not_sent_until_it_says_so(
    shared: Refreshing, service: FakeApiServer, admin: Admin
) -> None:
    service.on("POST", "/purge", answering())
    source = shared.aws.source()
    secret = f"headers-{source.bucket}"
    target = http(service, headersFrom=[{"secretRef": {"name": secret}}])
    url = path("secrets", shared.namespace, secret)
    data = {"metadata": {"name": secret}, "stringData": {"X": "s3cret"}}
    await admin.create(path("secrets", shared.namespace), data)
    resource = await refresher(shared, source, target)
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert f"Secret {secret} is not meant for headers: label it" in told["message"]
    await shared.put(source.bucket, *KEYS)
    await admin.patch(url, {"metadata": {"labels": {names.SECRET_HEADERS: "true"}}})
    found = await resource.when(lambda found: names.SECRET_HOSTS in str(only(found).get("failure")))
    assert service.requests == []
    assert "s3cret" not in json.dumps(found["status"])
    host = target["http"]["url"].split("/")[2]
    await admin.patch(url, {"metadata": {"annotations": {names.SECRET_HOSTS: host}}})
    await resource.when(succeeded)
    assert service.requests[0].headers["X"] == "s3cret"


async def test_a_call_of_unknown_outcome_is_made_again_to_the_letter(
    shared: Refreshing, service: FakeApiServer
) -> None:
    service.on("POST", "/purge", answering(503))
    source = shared.aws.source()
    resource = await refresher(shared, source, http(service))
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(failing("OutcomeUnknown"))
    assert "503" in only(found)["failure"]["message"]
    await shared.put(source.bucket, "late/1")  # it is for the next call
    await resource.when(lambda found: succeeded(found) and len(service.requests) == 3)
    assert call(service, 0) == call(service, 1)
    assert service.bodies[0] == service.bodies[1]
    check(call(service, 0)[1], source)
    key, payload = call(service, 2)
    assert key != call(service, 0)[0]
    assert set(payload["folders"]) == {"/", "late"}


async def test_a_call_that_is_refused_is_followed_by_another_one(
    shared: Refreshing, service: FakeApiServer
) -> None:
    service.on("POST", "/purge", answering(403))
    source = shared.aws.source()
    resource = await refresher(shared, source, http(service))
    await shared.put(source.bucket, *KEYS)
    await resource.when(failing("HTTP403"))
    await resource.when(succeeded)
    assert len(service.requests) == 2
    (first, one), (second, other) = call(service, 0), call(service, 1)
    assert first != second
    assert one["folders"] == other["folders"]


async def test_an_operator_that_dies_at_a_call_makes_the_same_again(
    own: tuple[OperatorProcess, Refreshing, ApiProxy], service: FakeApiServer
) -> None:
    process, place, _ = own
    called = asyncio.Event()
    killing: list[asyncio.Task[None]] = []

    async def kill(_: web.Request) -> web.StreamResponse:
        if not killing:
            killing.append(asyncio.create_task(asyncio.to_thread(process.kill9)))
            called.set()
            await asyncio.shield(killing[0])  # the operator's end ends this request first
        return web.Response(status=204)

    service.on("POST", "/purge", kill)
    source = place.aws.source()
    resource = await refresher(place, source, http(service, "127.0.0.1"))
    await asyncio.to_thread(process.start)
    await place.put(source.bucket, *KEYS)
    async with asyncio.timeout(TIMEOUT):
        await called.wait()
    await killing[0]
    await asyncio.to_thread(process.start)
    await resource.when(succeeded)
    assert len(service.requests) == 2
    assert call(service, 0) == call(service, 1)
    assert service.bodies[0] == service.bodies[1]
    check(call(service)[1], source)


async def test_calls_that_wait_when_an_operator_stops_are_left_to_the_next_one(
    own: tuple[OperatorProcess, Refreshing, ApiProxy], service: FakeApiServer
) -> None:
    process, place, _ = own
    stopping = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        await stopping.wait()
        return web.Response(status=204)

    service.on("POST", "/purge", answer)
    target, buckets = http(service, "127.0.0.1"), [f"bucket-{n}" for n in range(EACH + 2)]
    resource = await place.create(
        place.aws.source().queue, filter={"buckets": buckets}, target=target, resync={"onStart": True}
    )
    await asyncio.to_thread(process.start)
    await resource.when(lambda found: sum("claim" in one for one in targets_of(found)) == len(buckets))
    await service.received(EACH)
    ending = asyncio.create_task(asyncio.to_thread(process.terminate))
    await asyncio.to_thread(process.wait_log, lambda entry: entry["msg"] == "not leading", TIMEOUT)
    stopping.set()
    await ending
    assert len(service.requests) == EACH
    left = [one for one in targets_of(await resource.get()) if "dirty" in one]
    assert [sorted(one.keys() & {"claim", "failure", "last"}) for one in left] == [[], []]
    await asyncio.to_thread(process.start)
    await resource.when(lambda found: stands(found, "CaughtUp"))
    assert len({call(service, number)[1]["bucket"] for number in range(len(service.requests))}) == len(
        buckets
    )
    assert len(service.requests) == len(buckets)


# The name server of *.silent does not answer.
SILENT_NAMES: Final = """
import socket, sys, threading
from caretaker.cli import main

sys.path.append(sys.argv[1])
from testing import waits

real = socket.getaddrinfo

def getaddrinfo(host, *args, **kwargs):
    if not str(host).endswith(".silent"):
        return real(host, *args, **kwargs)
    print('{"msg": "asked"}', flush=True)
    threading.Event().wait()

socket.getaddrinfo = getaddrinfo
waits.shorten(float(sys.argv[2]), lease="--no-leader-elect" not in sys.argv)
sys.exit(main(sys.argv[3:]))
"""


async def test_an_operator_stops_while_a_name_is_looked_up(
    own: tuple[OperatorProcess, Refreshing, ApiProxy],
) -> None:
    process, place, _ = own
    process.command = (sys.executable, "-c", SILENT_NAMES, TESTS, str(TIME_SCALE), "run")
    source = place.aws.source()
    target = {"http": {"url": "http://a.silent/purge", "timeout": "60s"}}
    resource = await refresher(place, source, target)
    await asyncio.to_thread(process.start)
    await place.put(source.bucket, *KEYS)
    await asyncio.to_thread(process.wait_log, lambda entry: entry["msg"] == "asked", TIMEOUT)
    await asyncio.to_thread(process.terminate)
    assert only(await resource.get())["claim"], "the next operator makes the call"
