"""The testbed itself: fake nodes and pods do what they are told, and nothing is left running."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from testbed import steer
from testbed.admin import Admin, ApiError, Json, path
from testbed.closing import connections_closed, connections_cut, server_closed
from testbed.cluster import Cluster
from testbed.nodes import FAKE, register
from testbed.nodes import node as node_body
from testbed.recorder import PodRecorder
from testbed.steer import behaviour
from testing.cluster import TEST_LABEL, Nodes


class Pods:
    """Creates pods on the test's nodes and awaits their states."""

    def __init__(self, admin: Admin, namespace: str, nodes: Nodes) -> None:
        self.admin = admin
        self.namespace = namespace
        self.nodes = nodes

    async def create(self, annotations: dict[str, str], name: str = "p", **spec: Any) -> None:
        container = {"name": "main", "image": "example.invalid/task:1"}
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "containers": [container],
                "restartPolicy": "Never",
                "nodeSelector": self.nodes.selector,
                **spec,
            },
        }
        await self.admin.create(path("pods", self.namespace), body)

    async def until(self, check: Callable[[Json], bool], name: str = "p", timeout: float = 20.0) -> Json:
        return await self.admin.wait_for(path("pods", self.namespace, name), check, timeout)

    async def until_phase(self, phase: str, name: str = "p") -> Json:
        return await self.until(lambda pod: bool(pod["status"]["phase"] == phase), name)

    async def get(self, name: str = "p") -> Json:
        return await self.admin.get(path("pods", self.namespace, name))

    async def gone(self, name: str = "p") -> None:
        await self.admin.wait_gone(path("pods", self.namespace, name), 20.0)


@pytest.fixture
async def pods(admin: Admin, namespace: str, nodes: Nodes) -> Pods:
    await nodes.add(1)
    return Pods(admin, namespace, nodes)


def terminated(pod: Json) -> Json:
    state: Json = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def waiting_reason(pod: Json) -> str | None:
    statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
    reason: str | None = statuses[0]["state"].get("waiting", {}).get("reason")
    return reason


def condition(body: Json, kind: str) -> Json:
    conditions = body["status"].get("conditions") or []
    return next((found for found in conditions if found["type"] == kind), {})


ENDS = {
    "succeeds after about a second unless told otherwise": ({}, "Succeeded", 0, "Completed"),
    "succeeds at once": (behaviour(run_seconds=0), "Succeeded", 0, "Completed"),
    "fails with 1 unless told otherwise": (behaviour("fail", run_seconds=0), "Failed", 1, "Error"),
    "fails with the exit code asked for": (
        behaviour("fail", exit_code=42, run_seconds=0),
        "Failed",
        42,
        "Error",
    ),
    "is killed for its memory": (behaviour("oom", run_seconds=0.2), "Failed", 137, "OOMKilled"),
}


@pytest.mark.parametrize(("annotations", "phase", "code", "reason"), ENDS.values(), ids=ENDS)
async def test_a_pod(pods: Pods, annotations: dict[str, str], phase: str, code: int, reason: str) -> None:
    await pods.create(annotations)
    pod = await pods.until_phase(phase)
    assert terminated(pod)["exitCode"] == code
    assert terminated(pod)["reason"] == reason
    assert condition(pod, "Ready")["status"] == "False"
    assert condition(pod, "PodScheduled")["status"] == "True"


async def test_a_delay_is_kept(pods: Pods) -> None:
    started = time.monotonic()
    await pods.create(behaviour(run_seconds=3))
    await pods.until_phase("Succeeded")
    assert 3 <= time.monotonic() - started <= 9


async def test_a_termination_message_is_reported(pods: Pods) -> None:
    await pods.create(behaviour(run_seconds=0, message='{"latency": 3}'))
    assert terminated(await pods.until_phase("Succeeded"))["message"] == '{"latency": 3}'


async def test_a_pod_runs_on_until_it_is_told_to_end(pods: Pods, admin: Admin, namespace: str) -> None:
    await pods.create(behaviour("run-on"))
    await pods.until_phase("Running")
    with pytest.raises(TimeoutError):
        await pods.until(lambda pod: bool(pod["status"]["phase"] != "Running"), timeout=2)
    assert terminated(await steer.finish(admin, namespace, "p", 7))["exitCode"] == 7


async def test_an_image_that_cannot_be_pulled_and_then_can(pods: Pods, admin: Admin, namespace: str) -> None:
    await pods.create(behaviour("image-pull-failure", run_seconds=0))
    pod = await pods.until(lambda pod: waiting_reason(pod) == "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    await steer.steer_pod(admin, namespace, "p", behaviour("succeed"))
    await pods.until_phase("Succeeded")


async def test_a_kubelet_rejects_a_pod(pods: Pods) -> None:
    await pods.create(behaviour("reject", reason="NodeAffinity"))
    pod = await pods.until_phase("Failed")
    assert pod["status"]["reason"] == "NodeAffinity"
    assert "containerStatuses" not in pod["status"]


async def test_a_container_is_restarted_in_place(pods: Pods, admin: Admin, namespace: str) -> None:
    await pods.create(behaviour("fail", run_seconds=0), restartPolicy="OnFailure")
    pod = await pods.until(
        lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("restartCount") == 1
    )
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    ended = await steer.finish(admin, namespace, "p")
    assert ended["status"]["containerStatuses"][0]["restartCount"] == 1


async def test_a_container_that_keeps_failing_waits_in_crash_loop_back_off(
    pods: Pods, admin: Admin, namespace: str
) -> None:
    await pods.create(behaviour("fail", run_seconds=0), restartPolicy="OnFailure")
    pod = await pods.until(
        lambda pod: (
            waiting_reason(pod) == "CrashLoopBackOff"
            and pod["status"]["containerStatuses"][0]["restartCount"]
        )
    )
    assert pod["status"]["phase"] == "Running"
    await admin.delete(path("pods", namespace, "p"), grace=30)
    await pods.gone()


DEADLINES = {
    "that runs on": behaviour("run-on"),
    "that would run longer": behaviour(run_seconds=60),
    "whose image cannot be pulled": behaviour("image-pull-failure"),
}


@pytest.mark.parametrize("annotations", DEADLINES.values(), ids=DEADLINES)
async def test_the_deadline_ends_a_pod(pods: Pods, annotations: dict[str, str]) -> None:
    await pods.create(annotations, activeDeadlineSeconds=1)
    pod = await pods.until_phase("Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"


async def test_the_deadline_spares_a_pod_that_ends_in_time(pods: Pods) -> None:
    await pods.create(behaviour(run_seconds=1), activeDeadlineSeconds=5)
    assert "reason" not in (await pods.until_phase("Succeeded"))["status"]


@pytest.mark.parametrize("grace", [0, 1, 30])
async def test_a_running_pod_that_is_deleted_goes_away(
    pods: Pods, admin: Admin, namespace: str, grace: int
) -> None:
    await pods.create(behaviour("run-on"))
    await pods.until_phase("Running")
    await admin.delete(path("pods", namespace, "p"), grace=grace)
    await pods.gone()


async def test_a_deleted_pod_is_reported_failed_before_it_goes(
    pods: Pods, admin: Admin, namespace: str, recorders: Callable[[], PodRecorder]
) -> None:
    async with recorders() as record:
        await pods.create(behaviour("run-on"))
        await pods.until_phase("Running")
        await admin.delete(path("pods", namespace, "p"))
        await pods.gone()
        await record.settle()
    assert [seen.type for seen in record.states_of("p")][-1] == "DELETED"
    assert record.runs_per_node("Failed").total() == 1


async def test_a_pod_is_stuck_terminating_until_it_is_let_go(
    pods: Pods, admin: Admin, namespace: str
) -> None:
    await pods.create(behaviour("run-on", stuck=True))
    await pods.until_phase("Running")
    await admin.delete(path("pods", namespace, "p"), grace=1)
    await pods.until(lambda pod: "deletionTimestamp" in pod["metadata"])
    with pytest.raises(TimeoutError):
        await admin.wait_gone(path("pods", namespace, "p"), 3)
    await steer.steer_pod(admin, namespace, "p", {steer.STUCK: None})
    await pods.gone()


async def test_an_eviction_marks_the_pod_and_removes_it(
    pods: Pods, admin: Admin, namespace: str, recorders: Callable[[], PodRecorder]
) -> None:
    async with recorders() as record:
        await pods.create(behaviour("run-on"))
        await pods.until_phase("Running")
        await steer.evict(admin, namespace, "p")
        await pods.gone()
        await record.settle()
    reasons = {condition(seen.object, "DisruptionTarget").get("reason") for seen in record.states_of("p")}
    assert reasons == {None, "EvictionByEvictionAPI"}


async def test_a_disrupted_pod_stays_failed(pods: Pods, admin: Admin, namespace: str) -> None:
    await pods.create(behaviour(run_seconds=4))
    await pods.until_phase("Running")
    await steer.disrupt(admin, namespace, "p")
    # Its success was due after 4 s; the fake kubelet must not overwrite the failure then.
    with pytest.raises(TimeoutError):
        await pods.until(lambda pod: bool(pod["status"]["phase"] != "Failed"), timeout=5)
    pod = await pods.get()
    assert condition(pod, "DisruptionTarget")["reason"] == "TerminationByKubelet"


async def test_a_node_that_is_lost_freezes_its_pods_and_comes_back(
    pods: Pods, admin: Admin, namespace: str, nodes: Nodes
) -> None:
    node = nodes.names[0]
    tolerant = [{"operator": "Exists"}]
    # Steering is in effect before the Pod's seconds begin.
    await steer.steer_node(admin, node, behaviour(run_seconds=5))
    await pods.create({}, tolerations=tolerant)
    await pods.until_phase("Running")
    await steer.make_not_ready(admin, node)
    await pods.create(behaviour(run_seconds=0), "late", tolerations=tolerant)
    await admin.wait_for(
        path("nodes", name=node),
        lambda body: (
            "node.kubernetes.io/unreachable" in {taint["key"] for taint in body["spec"].get("taints", [])}
        ),
    )
    await pods.until(lambda pod: bool(pod["spec"].get("nodeName")), "late")
    await admin.delete(path("pods", namespace, "p"))
    with pytest.raises(TimeoutError):
        await admin.wait_gone(path("pods", namespace, "p"), 6)
    assert (await pods.get("late"))["status"]["phase"] == "Pending"

    await steer.make_ready(admin, node)
    await pods.gone()
    await pods.until_phase("Succeeded", "late")
    await nodes.wait_ready([node])


@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_a_node_is_registered_not_ready(nodes: Nodes, admin: Admin, status: str) -> None:
    (name,) = await nodes.add(1, ready=False, annotations={"testbed.caretaker.dev/ready": status})
    body = await admin.wait_for(path("nodes", name=name), lambda node: steer.ready_status(node) == status)
    assert body["status"]["nodeInfo"]["bootID"]
    await steer.make_ready(admin, name)


async def test_a_node_without_status_is_initialised(nodes: Nodes, admin: Admin) -> None:
    name = f"bare-{nodes.selector[TEST_LABEL]}"
    nodes.names.append(name)
    await admin.create(path("nodes"), {"metadata": {"name": name, "annotations": FAKE}})
    body = await admin.wait_for(path("nodes", name=name), lambda node: steer.ready_status(node) == "True")
    assert len(body["status"]["nodeInfo"]["bootID"]) == 36


async def test_every_node_has_a_boot_id_of_its_own(nodes: Nodes, admin: Admin) -> None:
    await nodes.add(5)
    found = [await admin.get(path("nodes", name=name)) for name in nodes.names]
    assert len({node["status"]["nodeInfo"]["bootID"] for node in found}) == 5


@pytest.mark.parametrize("through_not_ready", [False, True], ids=["at once", "with a NotReady interval"])
async def test_a_reboot_changes_the_boot_id(nodes: Nodes, admin: Admin, through_not_ready: bool) -> None:
    (name,) = await nodes.add(1)
    before = await admin.get(path("nodes", name=name))
    boot_id = await steer.reboot(admin, name, through_not_ready=through_not_ready)
    after = await admin.get(path("nodes", name=name))
    assert before["status"]["nodeInfo"]["bootID"] != boot_id
    assert after["status"]["nodeInfo"]["bootID"] == boot_id
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert steer.ready_status(after) == "True"


async def test_a_reboot_that_is_overlooked_is_asked_for_again(admin: Admin, nodes: Nodes) -> None:
    """kwok now and then takes an older copy of a node after a newer one. This node is none of its own, and
    nobody looks at it the first time."""
    name = f"own-{nodes.selector[TEST_LABEL]}"
    nodes.names.append(name)
    body = node_body(name)
    del body["metadata"]["annotations"]
    await register(admin, body)
    url = path("nodes", name=name)
    rebooting = asyncio.create_task(steer.reboot(admin, name))
    asked = await admin.wait_for(url, lambda found: steer.NUDGED in found["metadata"].get("annotations", {}))
    wanted = asked["metadata"]["annotations"][steer.BOOT_ID]
    await admin.patch(f"{url}/status", {"status": {"nodeInfo": {"bootID": wanted}}})
    assert await rebooting == wanted


async def test_a_reboot_can_kill_what_runs(pods: Pods, admin: Admin, nodes: Nodes) -> None:
    await pods.create(behaviour("run-on"))
    await pods.until_phase("Running")
    await steer.reboot(admin, nodes.names[0], pods="kill")
    assert terminated(await pods.get())["exitCode"] == 255


async def test_one_node_of_two_fails_its_pods_until_it_is_released(
    admin: Admin, namespace: str, nodes: Nodes
) -> None:
    bad, good = await nodes.add(2)
    pods = Pods(admin, namespace, nodes)
    await steer.steer_node(admin, bad, behaviour("fail", exit_code=9, run_seconds=0))
    for node, name in ((bad, "one"), (good, "two")):
        await pods.create({}, name, nodeSelector={"kubernetes.io/hostname": node})
    assert terminated(await pods.until_phase("Failed", "one"))["exitCode"] == 9
    await pods.until_phase("Succeeded", "two")
    await steer.release_node(admin, bad)
    await pods.create({}, "three", nodeSelector={"kubernetes.io/hostname": bad})
    await pods.until_phase("Succeeded", "three")


async def test_the_recorder_counts_what_was_active_at_once(
    pods: Pods, admin: Admin, namespace: str, nodes: Nodes, recorders: Callable[[], PodRecorder]
) -> None:
    async with recorders() as record:
        await pods.create(behaviour("run-on"), "a")
        await pods.create(behaviour("run-on"), "b")
        await asyncio.gather(*(pods.until_phase("Running", name) for name in "ab"))
        await steer.finish(admin, namespace, "a")
        await pods.create(behaviour(run_seconds=0), "c")
        await pods.until_phase("Succeeded", "c")
        await record.settle()
    assert record.max_active() == 2
    assert record.max_active_per_place() == 2
    assert record.runs_per_node() == {nodes.names[0]: 3}
    assert record.runs_per_node("Succeeded") == {nodes.names[0]: 2}
    assert set(record.peak().pods) <= {"a", "b", "c"}
    assert any(seen.object["metadata"]["name"] == nodes.names[0] for seen in record.nodes)


async def test_roles_are_enforced(cluster: Cluster, admin: Admin, namespace: str) -> None:
    request = {"spec": {"expirationSeconds": 3600}}
    answer = await admin.create(path("serviceaccounts", namespace, "default", "token"), request)
    async with Admin(cluster.url, answer["status"]["token"], cluster.ca) as nobody:
        with pytest.raises(ApiError, match="403 Forbidden"):
            await nobody.list(path("nodes"))


async def test_of_those_who_give_up_a_begun_request_is_seen_through_and_one_that_waits_is_not_sent(
    cluster: Cluster, admin: Admin, namespace: str
) -> None:
    def body(name: str) -> Json:
        return {"metadata": {"name": name}}

    url = path("configmaps", namespace)
    async with cluster.admin(connections=1) as client:
        asking = [asyncio.create_task(client.create(url, body(name))) for name in ("begun", "waits")]
        await asyncio.sleep(0)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await client.create(url, body("after"))
    found = {item["metadata"]["name"] for item in await admin.list(url)}
    assert {"begun", "waits", "after"} & found == {"begun", "after"}


@pytest.mark.parametrize("goodbye", ["polite", "aborted"])
def test_no_connection_that_is_being_closed_outlives_the_event_loop(cluster: Cluster, goodbye: str) -> None:
    """It would be a warning, that is a failure, of whatever test runs when it is collected."""

    async def leave() -> str:
        address, tls = urlsplit(cluster.url), ssl.create_default_context(cafile=str(cluster.ca))
        _, writer = await asyncio.open_connection(address.hostname, address.port, ssl=tls)
        if goodbye == "polite":
            writer.close()
        else:
            writer.transport.abort()
        below = writer.transport._ssl_protocol._transport  # type: ignore[attr-defined]
        await connections_closed()
        return repr(below)

    assert asyncio.run(leave()).startswith("<_SelectorSocketTransport closed")


def test_a_connection_whose_other_side_reads_nothing_is_cut() -> None:
    async def leave() -> str:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            _, writer = await asyncio.open_connection(*silent.getsockname()[:2])
            writer.write(bytes(50_000_000))  # more than the kernel takes
            writer.close()
            await connections_closed(patience=0.1)
            return repr(writer.transport)

    assert asyncio.run(leave()).startswith("<_SelectorSocketTransport closed")


def test_no_connection_that_a_server_has_accepted_outlives_its_event_loop() -> None:
    """Including a connection that was accepted while the server closed."""

    async def serve() -> str:
        accepted = asyncio.get_running_loop().create_future()

        class Silent(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport)

        server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()[:2]):
            transport = await accepted
            server.close()
            await connections_cut(patience=3600)  # does not wait for what is closed already
            return repr(transport)

    assert asyncio.run(serve()).startswith("<_SelectorSocketTransport closed")


def test_no_connection_is_lost_that_a_server_accepts_in_the_turn_in_which_it_closes() -> None:
    """Its client sees it closed, also while the loop goes on."""

    async def serve() -> bytes:
        runner = web.AppRunner(web.Application(), shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with socket.create_connection(runner.addresses[0][:2]) as client:
            await asyncio.sleep(0)  # the loop sees the connection
            await asyncio.sleep(0)  # the loop has accepted it, and has not made its transport
            await server_closed(runner)
            client.setblocking(False)
            async with asyncio.timeout(5):
                return await asyncio.get_running_loop().sock_recv(client, 1)

    assert asyncio.run(serve()) == b""
