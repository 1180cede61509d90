"""Refreshes that a person asks for, by annotation and by the command: real API server, real operator."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web

from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from fakes.apiserver import FakeApiServer
from testbed import steer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.accounts import bind, kubeconfig_of
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.cluster import Nodes
from testing.faults import Answer
from testing.operator import OperatorProcess
from testing.refreshing import PLURAL, TIMEOUT, Refresh, Refreshing, condition
from testing.witness import STATUS_WRITES

# As long as events have to wait here: a request does not.
LONG: Final = {"quietPeriod": "10m", "maxDelay": "10m"}
T1, T2 = "2026-01-31T12:00:01Z", "2026-01-31T12:00:02Z"


@pytest.fixture
def cli(cluster: Cluster, shared_namespace: str) -> Cli:
    return Cli(Path(cluster.kubeconfig), shared_namespace)


async def ask(admin: Admin, resource: Refresh, at: str | None = None, **folders: str) -> None:
    """As kubectl annotate does."""
    marks: dict[str, Any] = {REFRESH_AT: at} if at else {}
    if folders:
        marks[REFRESH_FOLDERS] = msgspec.json.encode(folders).decode()
    await admin.patch(resource.url, {"metadata": {"annotations": marks}})


def done(found: Json) -> bool:
    return bool((found["status"].get("requests") or {}).get("doneAt"))


def same(at: str | None, wanted: str) -> bool:
    return (at or "").startswith(wanted.removesuffix("Z"))


async def past_the_events(place: Refreshing, **spec: Any) -> tuple[Refresh, str, str]:
    """(resource, its one share, the share's bucket, whose events go nowhere)."""
    bucket = place.aws.bucket()
    share = place.share(bucket)
    resource = await place.create(place.aws.queue(), debounce={**LONG, "minInterval": "60s"}, **spec)
    await resource.condition("Ready")
    return resource, share, bucket


async def test_everything_is_refreshed_once_for_each_time(shared: Refreshing) -> None:
    resource, share, bucket = await past_the_events(shared)
    await shared.put(bucket, "in/2026/a", "b")
    await ask(shared.admin, resource, T1)
    found = await resource.when(done)
    await shared.fresh(share)
    assert same(found["status"]["requests"]["refreshAt"], T1)
    await ask(shared.admin, resource, "2026-01-31T13:00:01+01:00")  # the same time
    await ask(shared.admin, resource, T2)
    await resource.when(lambda r: done(r) and same(r["status"]["requests"]["refreshAt"], T2))
    made = shared.control.refreshes(share)
    assert [(one["folders"], one["recursive"]) for one in made] == [(["/"], True)] * 2
    assert all(one["evicts"] for one in made), "within 60 s of another"
    await resource.condition("CaughtUp")
    events = await shared.admin.wait_for_all(
        path("events", shared.namespace),
        lambda found: len(found) == 2,
        fields=f"reason=RefreshRequested,involvedObject.name={resource.name}",
    )
    assert {one["message"].rpartition(": ")[2] for one in events} == {"1 target(s)"}


async def test_a_folder_is_refreshed_with_everything_below_and_the_folders_above(
    shared: Refreshing, cli: Cli
) -> None:
    resource, share, bucket = await past_the_events(shared)
    other = shared.share(shared.aws.bucket())
    await resource.edit(target={"storageGateway": {"rediscoverEvery": "10s"}})
    await resource.when(lambda r: len(r["status"].get("targets", ())) == 2)
    await shared.put(bucket, "in/2026/a", "in/2026/11/b")
    said = await cli("refresh", f"s3ar/{resource.name}", "--folder", f"s3://{bucket}/in/2026", "--wait")
    assert (said.code, said.err) == (0, "")
    assert said.lines[0].endswith(f"/{resource.name}: 1 target of 2 will be refreshed")
    assert any(line.startswith("  refresh: asked for ") and ", done " in line for line in said.lines)
    await shared.fresh(share)
    trees, above = shared.control.refreshes(share)
    assert (trees["folders"], trees["recursive"]) == (["in/2026"], True)
    assert (set(above["folders"]), above["recursive"]) == ({"in", "/"}, False)
    assert shared.control.refreshes(other) == [], "its events go on waiting"


async def test_commands_at_once_lose_no_folder(shared: Refreshing, cli: Cli) -> None:
    resource, share, _ = await past_the_events(shared)
    await resource.when(lambda r: bool(r["status"].get("targets")))
    wanted = {f"f{n}" for n in range(4)}
    said = await asyncio.gather(*(cli("refresh", f"s3ar/{resource.name}", "--folder", f) for f in wanted))
    assert [(one.code, one.err) for one in said] == [(0, "")] * len(wanted)
    await resource.when(lambda r: done(r) and trees(shared, share) == wanted)


def trees(place: Refreshing, share: str) -> set[str]:
    made = [one for one in place.control.refreshes(share) if one["recursive"]]
    return {folder for one in made for folder in one["folders"]}


async def test_folders_that_are_asked_for_within_a_second_are_all_refreshed(shared: Refreshing) -> None:
    """Each replaces the one before, once that was taken."""
    resource, share, _ = await past_the_events(shared)
    for folder in ("a", "b", "c"):
        await ask(shared.admin, resource, **{folder: T1})
        await resource.when(lambda r, own=folder: done(r) and own in trees(shared, share))


async def test_a_time_that_is_put_back_refreshes_nothing_and_is_told(shared: Refreshing) -> None:
    resource, share, _ = await past_the_events(shared)
    await ask(shared.admin, resource, T2)
    await resource.when(done)
    await ask(shared.admin, resource, T1)
    found = await resource.when(lambda r: bool(condition(r, "InvalidRequest")))
    assert f"'{T1}' is earlier than " in condition(found, "InvalidRequest")["message"]
    assert same(found["status"]["requests"]["refreshAt"], T2)
    assert len(shared.control.refreshes(share)) == 1


async def test_a_bucket_that_leaves_with_the_request_is_not_waited_for(shared: Refreshing) -> None:
    async with FakeApiServer() as service:
        service.on("POST", "/purge", taken)
        one, two, three = (shared.aws.bucket() for _ in range(3))
        port = service.url.rpartition(":")[2]
        resource = await shared.create(
            shared.aws.queue(),
            filter={"buckets": [one, two]},
            target={"http": {"url": f"http://localhost:{port}/purge"}},
            debounce={**LONG, "minInterval": "0s"},
            resync={"onStart": False},
        )
        await resource.condition("Ready")
        marks = {"annotations": {REFRESH_AT: T1}}
        await shared.admin.patch(
            resource.url, {"metadata": marks, "spec": {"filter": {"buckets": [one, three]}}}
        )
        found = await resource.when(done)
        bodies = [msgspec.json.decode(body) for body in service.bodies]
    assert {target["id"] for target in found["status"]["targets"]} == {one, three}
    assert {body["bucket"] for body in bodies} == {one, three}
    await resource.condition("Ready")


async def test_a_request_during_a_refresh_makes_another_after_it(shared: Refreshing) -> None:
    resource, share, bucket = await past_the_events(shared)
    await ask(shared.admin, resource, T1)
    await shared.refreshed(share)
    await shared.put(bucket, "late")
    await ask(shared.admin, resource, T2)
    await resource.when(lambda r: done(r) and same(r["status"]["requests"]["refreshAt"], T2))
    await shared.fresh(share)
    times = [one["acceptedAt"] for one in shared.control.refreshes(share)]
    assert [after - before >= shared.min_interval for before, after in pairwise(times)] == [True]


async def test_a_bad_annotation_is_told_and_stops_nothing(shared: Refreshing, cli: Cli) -> None:
    resource, share, _ = await past_the_events(shared)
    await ask(shared.admin, resource, "soon", **{"a//b": T1, "in": T1})
    found = await resource.when(done)
    assert same(found["status"]["requests"]["foldersAt"], T1)
    wrong = condition(found, "InvalidRequest")
    assert (wrong["status"], wrong["reason"]) == ("True", "InvalidAnnotation")
    assert "'soon' is not an RFC 3339 time" in wrong["message"]
    assert "'a//b' has the part ''" in wrong["message"]
    await resource.condition("Ready")
    assert shared.control.refreshes(share)[0]["folders"] == ["in"]
    said = await cli("status", f"s3ar/{resource.name}")
    assert "    -> correct or remove the annotation that is named; it asks for nothing" in said.lines
    await shared.admin.patch(
        resource.url, {"metadata": {"annotations": {REFRESH_AT: None, REFRESH_FOLDERS: None}}}
    )
    found = await resource.when(lambda r: not condition(r, "InvalidRequest"))
    assert same(found["status"]["requests"]["foldersAt"], T1)


@pytest.mark.slow
async def test_a_suspended_resource_refreshes_when_it_goes_on(shared: Refreshing, cli: Cli) -> None:
    resource, share, _ = await past_the_events(shared)
    await resource.when(lambda r: bool(r["status"].get("targets")))
    await resource.edit(suspend=True)
    await resource.condition("Suspended")
    said = await cli("refresh", f"s3ar/{resource.name}", "--wait")
    assert said.code == 1
    assert "asked for, but nothing is started now: spec.suspend is true" in said.lines[0]
    assert "requests" not in (await resource.get())["status"], "targets are not looked for"
    assert shared.control.refreshes(share) == []
    await resource.edit(suspend=False)
    await resource.when(done)
    assert len(shared.control.refreshes(share)) == 1


@pytest.mark.slow
async def test_a_queue_that_is_gone_delays_no_request(shared: Refreshing) -> None:
    bucket, queue = shared.aws.bucket(), shared.aws.queue()
    share = shared.share(bucket)
    await asyncio.to_thread(shared.aws.sqs.delete_queue, QueueUrl=queue.url)
    resource = await shared.create(queue, debounce={**LONG, "minInterval": "60s"})
    await resource.condition("QueueReachable", "False", "QueueNotFound")
    await shared.put(bucket, "in/a")
    await ask(shared.admin, resource, T1)
    await resource.when(done)
    await shared.fresh(share)


async def taken(_: web.Request) -> web.StreamResponse:
    return web.Response(status=204)


async def test_a_service_is_told_of_a_folder(shared: Refreshing) -> None:
    async with FakeApiServer() as service:
        service.on("POST", "/purge", taken)
        bucket, port = shared.aws.bucket(), service.url.rpartition(":")[2]
        resource = await shared.create(
            shared.aws.queue(),
            filter={"buckets": [bucket]},
            target={"http": {"url": f"http://localhost:{port}/purge"}},
            debounce={**LONG, "minInterval": "0s"},
        )
        await resource.condition("Ready")
        await ask(shared.admin, resource, **{"in/2026": T1})
        await resource.when(done)
        bodies = [msgspec.json.decode(body) for body in service.bodies]
    assert [(set(one["folders"]), one["recursive"]) for one in bodies] == [
        ({"in/2026"}, True),
        ({"in", "/"}, False),
    ]


async def test_a_wait_for_what_fails_ends_in_time_and_the_request_stands(
    shared: Refreshing, cli: Cli
) -> None:
    async with FakeApiServer() as service:  # it knows no /purge
        port = service.url.rpartition(":")[2]
        resource = await shared.create(
            shared.aws.queue(),
            filter={"buckets": [shared.aws.bucket()]},
            target={"http": {"url": f"http://localhost:{port}/purge"}},
            debounce={**LONG, "minInterval": "0s"},
        )
        await resource.when(lambda r: bool(r["status"].get("targets")))
        said = await cli("refresh", f"s3ar/{resource.name}", "--wait", "--timeout", "3s")
        words = "caretaker refresh: not done yet, and not given up: caretaker status shows how far it is\n"
        assert (said.code, said.err) == (1, words)
        assert not done(await resource.get())
        service.on("POST", "/purge", taken)
        await resource.when(done)


@pytest.mark.slow
async def test_a_job_is_made_for_everything(shared: Refreshing, nodes: Nodes) -> None:
    await nodes.add(1)
    template = {
        "metadata": {"annotations": steer.behaviour(run_seconds=0.1)},
        "spec": {
            "nodeSelector": nodes.selector,
            "containers": [{"name": "main", "image": "example.com/refresh:1"}],
        },
    }
    resource = await shared.create(
        shared.aws.queue(),
        filter={"buckets": [shared.aws.bucket()]},
        target={"job": {"template": template}},
        debounce={**LONG, "minInterval": "0s"},
    )
    await resource.condition("Ready")
    await ask(shared.admin, resource, T1)
    found = await resource.when(done)
    assert found["status"]["targets"][0]["last"]["result"] == "Succeeded"
    labels = f"caretaker.dev/s3aggregatedrefresh={resource.name}"
    (made,) = await shared.admin.list(path("jobs", shared.namespace), labels=labels)
    (variable,) = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert msgspec.json.decode(variable["value"])["all"] is True


async def test_a_folder_that_no_target_has_is_refused_and_written_nowhere(
    shared: Refreshing, cli: Cli
) -> None:
    resource, _, bucket = await past_the_events(shared)
    await resource.when(lambda r: bool(r["status"].get("targets")))
    said = await cli("refresh", f"s3ar/{resource.name}", "--folder", "s3://other/in")
    words = f"no target has the folder s3://other/in; there are: s3://{bucket}/"
    assert (said.code, said.out, said.err) == (1, "", f"caretaker refresh: {words}\n")
    assert REFRESH_FOLDERS not in ((await resource.get())["metadata"].get("annotations") or {})


@pytest.mark.parametrize(
    ("verbs", "code"), [(["get", "patch"], 0), (["get"], 1)], ids=["get and patch", "get alone"]
)
async def test_the_command_needs_get_and_patch(
    verbs: list[str], code: int, shared: Refreshing, cluster: Cluster, tmp_path: Path
) -> None:
    resource, share, _ = await past_the_events(shared)
    account = f"person-{resource.name}"
    config = await kubeconfig_of(
        shared.admin, cluster, shared.namespace, account, tmp_path / "person.kubeconfig"
    )
    rule = {"apiGroups": ["caretaker.dev"], "resources": [PLURAL], "verbs": verbs}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": account, "namespace": shared.namespace},
        "rules": [rule],
    }
    await bind(shared.admin, role, account, shared.namespace)
    said = await Cli(config, shared.namespace)("refresh", "s3aggregatedrefresh", resource.name)
    assert said.code == code, said.err
    if code:
        assert f'cannot patch resource "{PLURAL}"' in said.err
        assert said.err.endswith(": ask for a role that allows it, or use another --context\n")
    else:
        await shared.refreshed(share)


async def test_a_write_that_is_refused_takes_no_request(
    own: tuple[OperatorProcess, Refreshing, ApiProxy],
) -> None:
    """409: another has written the resource meanwhile. The request is taken by a later pass, once."""
    process, place, proxy = own
    await asyncio.to_thread(process.start)
    resource, share, _ = await past_the_events(place)
    await ask(place.admin, resource, T1)
    before = await resource.when(done, TIMEOUT)
    with proxy.fault(STATUS_WRITES, Answer(409, "Conflict")) as refused:
        await ask(place.admin, resource, T2)
        await asyncio.to_thread(refused.wait, 2)
        assert len(place.control.refreshes(share)) == 1
        assert (await resource.get())["status"]["requests"] == before["status"]["requests"]
    await resource.when(lambda r: done(r) and same(r["status"]["requests"]["refreshAt"], T2), TIMEOUT)
    assert len(place.control.refreshes(share)) == 2
