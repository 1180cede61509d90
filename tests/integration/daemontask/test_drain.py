"""spec.drain: a node is cordoned and emptied before its run, and given back after it."""

import asyncio
import contextlib
import json
import time
from queue import Queue
from typing import Any

import pytest

from testbed.admin import ApiError, Json, Jsons, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import TIMEOUT, condition, stands
from testing.faults import Action, Answer, LoseReply, Match, Reply, Run, status_body
from testing.kubelet import HOLD, fail
from testing.operator import OperatorProcess
from testing.world import Task, World, holds_for, in_loop

MARK = "caretaker.dev/cordoned-by"
APPS = "/apis/apps/v1/namespaces/{}/replicasets"


async def drained(world: World, name: str = "t", *, drain: Json | None = None, **spec: Any) -> Task:
    return await world.task(name, drain=drain or {}, **{"parallelism": 1, **spec})


def mark(node: Json) -> str:
    return str((node["metadata"].get("annotations") or {}).get(MARK, ""))


def cordoned(node: Json) -> bool:
    return bool(node["spec"].get("unschedulable"))


async def node_when(world: World, name: str, *, on: bool) -> Json:
    """The node once it is cordoned by us, or neither cordoned nor marked."""
    return await world.admin.wait_for(
        path("nodes", name=name), lambda node: cordoned(node) == on == bool(mark(node)), TIMEOUT
    )


async def app(world: World, node: str, name: str = "web", replicas: int = 1, **pod: Any) -> Jsons:
    """Pods of a ReplicaSet that run on this node; they may be made again on it alone."""
    labels = {"app": name}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "test:1"}],
        **pod,
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    world.kubelet.script(node, *[HOLD] * replicas)
    await world.admin.create(APPS.format(world.namespace), body)

    def run(pods: Jsons) -> bool:
        return [one["status"]["phase"] for one in pods].count("Running") == replicas

    return await world.admin.wait_for_all(path("pods", world.namespace), run, TIMEOUT, labels=f"app={name}")


async def budget(world: World, name: str = "web", least: int = 1) -> str:
    """A PodDisruptionBudget, once the disruption controller has looked at it."""
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": name}}}
    url = path("poddisruptionbudgets", world.namespace)
    await world.admin.create(url, {"metadata": {"name": name}, "spec": spec})
    await world.admin.wait_for(
        f"{url}/{name}", lambda found: (found.get("status") or {}).get("currentHealthy", 0) >= least, TIMEOUT
    )
    return f"{url}/{name}"


async def gone(world: World, pods: Jsons) -> None:
    await world.gone(pods)


async def test_a_node_is_cordoned_emptied_run_and_given_back(world: World) -> None:
    (name,) = await world.join()
    pods = await app(world, name, replicas=2)
    world.kubelet.default = HOLD
    task = await drained(world)
    node = await node_when(world, name, on=True)
    assert mark(node).split("/")[:3] == [world.namespace, "t", await task.uid()]
    (run,) = await task.pods_when(lambda found: len(found) == 1)
    there = await world.admin.list(path("pods", world.namespace), labels="app=web")
    assert not [pod for pod in there if pod["spec"].get("nodeName")], "the run waits for an empty node"
    await gone(world, pods)
    assert any(t.get("key") == "node.kubernetes.io/unschedulable" for t in run["spec"]["tolerations"])
    await task.running()
    assert cordoned(await world.node(name))
    await world.kubelet.finish(name)
    await node_when(world, name, on=False)
    await task.done(1)


async def test_parallelism_is_needed_and_named(world: World) -> None:
    with pytest.raises(ApiError, match=r"spec.drain needs spec.parallelism"):
        await world.task(drain={})


async def test_no_more_nodes_are_cordoned_than_parallelism_allows(world: World) -> None:
    names = await world.join(4)
    most = 0
    task = await drained(world, parallelism=2)

    async def few() -> bool:
        nonlocal most
        count = sum([cordoned(await world.node(name)) for name in names])
        most = max(most, count)
        return count <= 2

    while (await task.get()).get("status", {}).get("succeeded") != 4:
        assert await few()
    assert most
    for name in names:
        await node_when(world, name, on=False)


async def test_pods_that_stay(world: World) -> None:
    """A finished one, a mirror pod, one of a DaemonSet, those that podSelector leaves out."""
    (name,) = await world.join()
    spec = {"nodeName": name, "containers": [{"name": "main", "image": "test:1"}]}
    url = path("pods", world.namespace)
    await app(world, name, "kept")
    world.kubelet.script(name, fail())
    ended = await world.admin.create(url, {"metadata": {"name": "ended"}, "spec": spec})
    task = await drained(
        world,
        drain={
            "podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["kept"]}]}
        },
    )
    await task.done(1)
    assert len(await world.admin.list(url, labels="app=kept")) == 1
    assert await world.admin.find(f"{url}/{ended['metadata']['name']}") is not None
    await node_when(world, name, on=False)


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        pytest.param({"volumes": [{"name": "v", "emptyDir": {}}]}, "deleteEmptyDirData", id="emptyDir"),
        pytest.param(None, "force", id="no controller"),
    ],
)
async def test_a_pod_that_may_not_go_holds_the_node_and_is_told_with_the_field(
    world: World, pod: Json | None, field: str
) -> None:
    (name,) = await world.join()
    other = await app(world, name, "other")
    if pod is None:
        spec = {"nodeName": name, "containers": [{"name": "main", "image": "test:1"}]}
        world.kubelet.script(name, HOLD)
        body = {"metadata": {"name": "alone"}, "spec": spec}
        kept = [await world.admin.create(path("pods", world.namespace), body)]
    else:
        kept = await app(world, name, **pod)
    task = await drained(world)
    found = await task.when(lambda t: field in condition(t, "Ready").get("message", ""))
    assert kept[0]["metadata"]["name"] in condition(found, "Ready")["message"]
    assert found["status"]["active"] == 1
    there = await world.admin.get(path("pods", world.namespace, other[0]["metadata"]["name"]))
    assert "deletionTimestamp" not in there["metadata"], "a node that cannot be drained keeps its workloads"
    await task.edit(drain={field: True})
    await gone(world, [*kept, *other])
    await task.done(1)
    await node_when(world, name, on=False)


async def test_a_disruption_budget_holds_until_the_timeout_which_is_a_failed_attempt(world: World) -> None:
    (name, second) = await world.join(2)
    (pod,) = await app(world, name)
    (other,) = await app(world, second, "web2")
    await budget(world)
    await budget(world, "web2")
    policy = {"action": "Pause"}
    task = await drained(world, drain={"timeoutSeconds": 2}, backoffLimit=0, failurePolicy=policy)
    found = await task.counts(failed=1)
    (failed,) = found["status"]["failedNodes"]
    assert failed["reason"] == "DrainTimeout"
    assert "web" in failed["message"]
    assert "disruption budget" in failed["message"].lower()
    for one in (pod, other):
        there = await world.admin.get(path("pods", world.namespace, one["metadata"]["name"]))
        assert there["metadata"]["uid"] == one["metadata"]["uid"]
        assert "deletionTimestamp" not in there["metadata"]
    await task.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert mark(await world.node(failed["nodeName"])), "KeepCordoned"
    (free,) = {name, second} - {failed["nodeName"]}
    assert not cordoned(await world.node(free))
    assert not world.kubelet.ran[2:], "no run began"


async def test_uncordon_on_failure_gives_the_node_back(world: World) -> None:
    (name,) = await world.join()
    world.kubelet.default = fail()
    task = await drained(world, drain={"onFailure": "Uncordon"}, backoffLimit=1)
    await node_when(world, name, on=True)
    await task.counts(failed=1)
    await node_when(world, name, on=False)
    assert len(world.kubelet.ran) == 2


async def test_a_failed_node_that_stays_cordoned_holds_its_slot_until_it_is_uncordoned(world: World) -> None:
    names = await world.join(2)
    world.kubelet.default = fail()
    task = await drained(world, backoffLimit=0)
    found = await task.counts(failed=1, pending=1)
    (holder,) = found["status"]["slots"]["holders"]
    assert holder["reason"] == "Cordoned"
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
    await world.cordon(holder["nodeName"], on=False)
    await task.counts(failed=2)
    assert not mark(await world.node(holder["nodeName"])), "the mark of a cordon that has ended goes"
    assert sum([cordoned(await world.node(name)) for name in names]) == 1


async def test_a_node_that_somebody_else_cordoned_is_left_alone(world: World) -> None:
    (name,) = await world.join()
    await world.cordon(name)
    task = await drained(world, template=world.template(tolerations=[{"operator": "Exists"}]))
    await task.when(lambda t: [b["reason"] for b in t["status"]["blockedNodes"]] == ["Cordoned"])
    await holds_for(1.0, lambda: not world.kubelet.ran)
    assert not mark(await world.node(name))
    await world.cordon(name, on=False)
    await task.done(1)


async def test_somebody_who_cordons_at_the_same_moment_keeps_his_cordon(
    world: World, proxy: ApiProxy
) -> None:
    (name,) = await world.join()
    once = Match(verb="patch", resource="nodes", name=name, nth=1)
    with proxy.fault(once, Run(run_before=in_loop(lambda: world.cordon(name)))) as rule:
        task = await drained(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await task.when(lambda t: [b["reason"] for b in t["status"]["blockedNodes"]] == ["Cordoned"])
    assert [call.code for call in rule.hits] == [409]
    assert cordoned(await world.node(name))
    assert not mark(await world.node(name))


async def end(world: World, task: Task, how: str) -> None:
    if how == "deleted":
        await task.delete()
    elif how == "suspended":
        await task.edit(suspend=True)
    elif how == "without drain":
        await task.edit(drain=None)
    else:
        await task.put_template(world.template(nodeSelector={"no": "node"}))


@pytest.mark.parametrize("how", ["deleted", "suspended", "without drain", "not selected"])
async def test_a_node_that_is_drained_for_a_run_that_will_not_come_is_given_back(
    world: World, how: str
) -> None:
    (name,) = await world.join()
    (pod,) = await app(world, name)
    await budget(world)
    world.kubelet.default = HOLD
    task = await drained(world)
    await node_when(world, name, on=True)
    await end(world, task, how)
    await node_when(world, name, on=False)
    there = await world.admin.get(path("pods", world.namespace, pod["metadata"]["name"]))
    assert "deletionTimestamp" not in there["metadata"]


async def test_a_suspended_task_gives_the_node_back_after_the_run_that_goes_on(world: World) -> None:
    (name,) = await world.join()
    world.kubelet.default = HOLD
    task = await drained(world)
    await task.running()
    await task.edit(suspend=True)
    await task.when(lambda t: stands(t, "Suspended"))
    assert mark(await world.node(name))
    await world.kubelet.finish(name)
    await node_when(world, name, on=False)


async def test_a_run_of_another_task_is_waited_for(world: World) -> None:
    (name,) = await world.join()
    world.kubelet.default = HOLD
    first = await world.task("first")
    await first.running()
    task = await drained(world)
    await node_when(world, name, on=True)
    await task.when(lambda t: "have not ended" in condition(t, "Ready").get("message", ""))
    await holds_for(1.0, lambda: len(world.kubelet.ran) == 1)
    await world.kubelet.finish(name)
    await task.running()
    await world.kubelet.finish(name)
    await node_when(world, name, on=False)


# ---------------------------------------------------------------- faults


ACTIONS: dict[str, Any] = {
    "the answer is lost": LoseReply(),
    "500": Answer(500),
    "403": Answer(403, "Forbidden"),
    "409": Answer(409, "Conflict"),
    "429": Answer(429),
}
QUICK = {("cordon", "the answer is lost"), ("eviction", "429"), ("uncordon", "403")}


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        pytest.param(step, fault, marks=() if (step, fault) in QUICK else pytest.mark.slow)
        for step in ("cordon", "list", "eviction", "uncordon")
        for fault in ACTIONS
    ],
)
async def test_a_step_that_fails_is_tried_again(world: World, proxy: ApiProxy, step: str, fault: str) -> None:
    (name,) = await world.join()
    pods = await app(world, name)
    match = {
        "cordon": Match(verb="patch", resource="nodes", name=name, nth=1),
        "list": Match(verb="list", resource="pods", namespace="", nth=1),
        "eviction": Match(
            verb="create", resource="pods", subresource="eviction", namespace=world.namespace, nth=1
        ),
        "uncordon": Match(verb="patch", resource="nodes", name=name, nth=2),
    }[step]
    with proxy.fault(match, ACTIONS[fault]) as rule:
        task = await drained(world)
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await task.done(1)
        await node_when(world, name, on=False)
    await gone(world, pods)


async def test_a_missing_right_to_evict_is_told_with_the_value_that_grants_it(
    world: World, proxy: ApiProxy
) -> None:
    (name,) = await world.join()
    await app(world, name)
    words = 'pods "web" is forbidden: User "x" cannot create resource "pods/eviction" in API group ""'
    match = Match(verb="create", resource="pods", subresource="eviction", namespace=world.namespace)
    with proxy.fault(match, Answer(403, "Forbidden", words)):
        task = await drained(world)
        found = await task.when(lambda t: stands(t, "Degraded", reason="DrainRefused"))
    assert "drain.enabled" in condition(found, "Degraded")["message"]
    found = await task.done(1)
    assert not condition(found, "Degraded")
    await node_when(world, name, on=False)


async def test_evictions_are_never_repeated_faster_than_the_bound(world: World, proxy: ApiProxy) -> None:
    (name,) = await world.join()
    (pod,) = await app(world, name)
    url = await budget(world)
    began = time.monotonic()
    task = await drained(world, drain={"timeoutSeconds": 60})
    await node_when(world, name, on=True)
    await holds_for(4.0, lambda: True)
    calls = evictions(world, proxy)
    assert 1 <= len(calls) <= 2 + (time.monotonic() - began) / 0.5
    await world.admin.delete(url)
    await gone(world, [pod])
    await task.done(1)


async def test_status_tells_of_it(world: World, cluster: Cluster) -> None:
    (name,) = await world.join()
    await app(world, name)
    await budget(world)
    await drained(world)
    await node_when(world, name, on=True)
    shown = await Cli(cluster.kubeconfig, world.namespace)("status", "dtask", "t")
    assert "drain: 1 node cordoned by the task, 1 at once at most" in shown.out
    assert f"{name} Cordoned not running" in shown.out
    told = await Cli(cluster.kubeconfig, world.namespace)("status", "dtask", "t", "-o", "json")
    assert told.json["drain"] == {"cordoned": [name], "most": 1}


async def test_a_refused_pod_cordons_no_node(world: World) -> None:
    names = await world.join(3)
    pods = [(await app(world, name, f"web-{turn}"))[0] for turn, name in enumerate(names)]
    url = path("resourcequotas", world.namespace)
    await world.admin.create(url, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": str(len(pods))}}})
    await world.admin.wait_for(f"{url}/q", lambda q: bool((q.get("status") or {}).get("used")), TIMEOUT)
    task = await drained(world)
    await task.when(lambda t: stands(t, "Ready", "False", "PodCreationRefused") or bool(blocked(t)))

    async def untouched() -> bool:
        return not any([mark(await world.node(name)) for name in names])

    for _ in range(20):
        assert await untouched(), "its Pod would be refused"
        await asyncio.sleep(0.1)
    await world.admin.patch(f"{url}/q", {"spec": {"hard": {"pods": "50"}}})
    await task.done(3)
    for name in names:
        await node_when(world, name, on=False)


def blocked(task: Json) -> Jsons:
    return list((task.get("status") or {}).get("blockedNodes") or ())


async def test_a_re_run_after_a_timeout_drains_anew(world: World) -> None:
    (name,) = await world.join()
    pods = await app(world, name)
    url = await budget(world)
    task = await drained(world, drain={"timeoutSeconds": 3}, backoffLimit=0)
    await task.counts(failed=1)
    await world.admin.delete(url)
    await asyncio.sleep(3.1)  # longer than the timeout since the cordon, which stays
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    await task.annotate(rerun_nodes=f'{{"{name}": "{at}"}}')
    await task.done(1)
    await gone(world, pods)
    await node_when(world, name, on=False)


async def test_a_pod_that_tolerates_the_cordon_is_evicted_once_and_the_run_begins_beside_the_next(
    world: World, proxy: ApiProxy
) -> None:
    (name,) = await world.join()
    (pod,) = await app(world, name, tolerations=[{"operator": "Exists"}])
    task = await drained(world)
    await task.done(1)
    await node_when(world, name, on=False)
    assert len(evictions(world, proxy)) == 1
    await gone(world, [pod])


def evictions(world: World, proxy: ApiProxy) -> list[Any]:
    return [
        call
        for call in proxy.ledger.writes()
        if call.target.subresource == "eviction" and call.target.namespace == world.namespace
    ]


class LateWrite(Action):
    """The API server answers 504, and executes the request later, when the test says so."""

    def __init__(self) -> None:
        self.seen = Queue[tuple[str, Json]]()

    async def before(self, exchange: Any) -> None:
        self.seen.put((exchange.path, json.loads(exchange.body)))
        exchange.reply = Reply(504, status_body(504, "Timeout", "request did not complete in time"))


async def test_a_cordon_that_is_executed_late_is_never_one_too_many(world: World, proxy: ApiProxy) -> None:
    names, late = await world.join(4), LateWrite()
    world.kubelet.default = HOLD

    async def count() -> int:
        return sum([cordoned(await world.node(name)) for name in names])

    with proxy.fault(Match(verb="patch", resource="nodes", nth=1), late):
        await drained(world)
        url, body = await asyncio.to_thread(late.seen.get, timeout=TIMEOUT)
        with contextlib.suppress(ApiError):  # it has lost to the operator's second request
            await world.admin.patch(url, body)
        for _ in range(30):
            assert await count() <= 1
            await asyncio.sleep(0.05)
    assert await count() == 1


async def test_a_task_that_goes_while_nodes_may_not_be_written_is_forgotten_and_its_node_given_back_later(
    world: World, proxy: ApiProxy, operator: OperatorProcess
) -> None:
    (name,) = await world.join()
    await app(world, name)
    await budget(world)
    task = await drained(world)
    await node_when(world, name, on=True)
    words = (
        'nodes "x" is forbidden: User "x" cannot patch resource "nodes" in API group "" at the cluster scope'
    )
    with proxy.fault(Match(verb="patch", resource="nodes"), Answer(403, "Forbidden", words)) as rule:
        await task.delete()
        await asyncio.to_thread(rule.wait, timeout=TIMEOUT)
        await asyncio.sleep(1.0)
        series = f'namespace="{world.namespace}"'
        assert not [one for one in operator.metrics() if series in one and one.startswith("caretaker_")]
    await node_when(world, name, on=False)


async def test_a_node_stays_cordoned_until_the_run_of_a_task_that_is_deleted_has_ended(world: World) -> None:
    (name,) = await world.join()
    world.kubelet.default = HOLD
    task = await drained(world)
    await task.running()
    await world.admin.patch(task.url, {"metadata": {"finalizers": ["test.dev/hold"]}})
    await task.delete()
    await holds_for(1.0, lambda: True)
    assert mark(await world.node(name)), "its Pod still runs"
    await world.kubelet.finish(name)
    await node_when(world, name, on=False)
    await world.admin.patch(task.url, {"metadata": {"finalizers": None}})


async def test_the_cordon_of_a_task_that_was_made_again_for_ecs_ends(world: World) -> None:
    (name,) = await world.join()
    marks = {MARK: f"{world.namespace}/t/an-earlier-uid/2026-01-01T00:00:00Z"}
    ecs = {
        "aws": {"region": "eu-west-1"},
        "service": "agent",
        "events": {"sqsQueueURL": "https://sqs.eu-west-1.amazonaws.com/123456789012/q"},
    }
    await world.create("t", {"ecs": ecs, "suspend": True})
    await world.patch_node(name, {"metadata": {"annotations": marks}, "spec": {"unschedulable": True}})
    await node_when(world, name, on=False)


async def test_where_parallelism_is_lowered_the_nodes_beyond_it_are_given_back(world: World) -> None:
    names = await world.join(3)
    for number, name in enumerate(names):
        await app(world, name, name=f"web{number}")
        await budget(world, name=f"web{number}")
    task = await drained(world, parallelism=3)
    for name in names:
        await node_when(world, name, on=True)
    await world.admin.patch(task.url, {"spec": {"parallelism": 1}})

    async def one_is_left() -> bool:
        return sum([cordoned(await world.node(name)) for name in names]) == 1

    await world.until(one_is_left)
    await task.when(lambda t: t["status"].get("active") == 1)
    assert await one_is_left()


async def test_a_users_cordon_after_the_end_of_ours_stays(world: World, proxy: ApiProxy) -> None:
    (name,) = await world.join()
    await app(world, name)
    await budget(world)
    task = await drained(world)
    await node_when(world, name, on=True)
    url, words = path("nodes", name=name), 'nodes "x" is forbidden: User "x" cannot patch resource "nodes"'
    with proxy.fault(Match(verb="patch", resource="nodes"), Answer(403, "Forbidden", words)) as rule:
        await end(world, task, "deleted")
        await world.admin.patch(url, {"spec": {"unschedulable": None}})
        seen = len(rule.hits)
        await world.until(lambda: len(rule.hits) > seen)  # the operator tries to remove the mark that is left
        await world.admin.patch(url, {"spec": {"unschedulable": True}})
    found = await world.admin.wait_for(url, lambda node: not mark(node), TIMEOUT)
    assert cordoned(found)
