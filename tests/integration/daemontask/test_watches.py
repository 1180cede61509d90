"""Answers that are lost, watches that stall or lag: what the operator believes when it cannot see."""

from collections.abc import Callable

from testbed.admin import path
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.faults import Answer, Lag, LoseReply, Match, Run
from testing.kubelet import HOLD
from testing.world import World, in_loop, node_of

Recorders = Callable[[], PodRecorder]


async def test_creates_whose_answers_are_lost_heal_within_thirty_seconds(
    world: World, proxy: ApiProxy, recorders: Recorders
) -> None:
    """Fault 4 (kruise #580)."""
    names = await world.join(6)
    creates = Match(verb="create", resource="pods", namespace=world.namespace, times=3, where=is_real)
    async with recorders() as record:
        with proxy.fault(creates, LoseReply()) as rule:
            task = await world.task()
            await task.done(6, timeout=30)
            assert len(rule.hits) == 3
        await record.settle()
    assert record.runs_per_node() == dict.fromkeys(names, 1)


def is_real(call: object) -> bool:
    return not getattr(call, "dry_run", False)


async def test_nothing_is_done_on_a_cache_that_is_older_than_our_own_last_write(
    world: World, proxy: ApiProxy, recorders: Recorders
) -> None:
    """Fault 35 (KEP-5647): the watch shows each Pod seconds after it was made."""
    names = await world.join(6)
    late = Match(verb="watch", resource="pods")
    async with recorders() as record:
        with proxy.fault(late, Lag(2.5)):
            task = await world.task(parallelism=2)
            await task.when(lambda t: t["status"]["succeeded"] >= 4)
        await task.done(6)
        await record.settle()
    assert record.max_active() <= 2
    assert record.runs_per_node() == dict.fromkeys(names, 1)
    created = proxy.ledger.calls(
        lambda c: (c.verb, c.resource, c.namespace, c.dry_run) == ("create", "pods", world.namespace, False)
    )
    assert len(created) == 6


async def test_watches_that_break_or_expire_lose_nothing(
    world: World, proxy: ApiProxy, recorders: Recorders
) -> None:
    """Fault 23 (harvester #9880); a watch that falls silent is in tests/integration/test_kube.py."""
    names = await world.join(3)
    world.kubelet.default = HOLD
    async with recorders() as record:
        task = await world.task()
        await task.counts(active=3)
        proxy.cut_watches()
        await world.kubelet.finish(names[0])
        await task.counts(succeeded=1, active=2)
        await world.until(lambda: proxy.open_watches() >= 2)
        assert proxy.send_watch_error(code=410) >= 2
        await world.kubelet.finish(names[1])
        (late,) = await world.join()
        await task.counts(succeeded=2, active=2)
        await world.kubelet.finish(names[2], late)
        await task.done(4)
        await record.settle()
    assert record.runs_per_node() == dict.fromkeys([*names, late], 1)


async def test_a_pod_that_is_born_with_a_deletion_timestamp_is_retried(
    world: World, proxy: ApiProxy, recorders: Recorders
) -> None:
    """Fault 26 (k8s#136932)."""
    (node,) = await world.join()
    await world.shrink(node, cpu="32", memory="256Gi", pods="0")
    task = world.handle("t")

    async def delete() -> None:
        (pod,) = await task.pods()
        url = path("pods", world.namespace, pod["metadata"]["name"])
        await world.admin.patch(url, {"metadata": {"finalizers": ["test.caretaker.dev/hold"]}})
        await world.admin.delete(url, grace=0)

    born = Match(verb="create", resource="pods", namespace=world.namespace, times=1, where=is_real)
    with proxy.fault(born, Run(run_after=in_loop(delete))):
        await world.task()
        await task.pods_when(lambda pods: any("deletionTimestamp" in p["metadata"] for p in pods))
    await world.shrink(node, pods="110")
    (dead,) = await task.pods()
    url = path("pods", world.namespace, dead["metadata"]["name"])
    await world.admin.patch(url, {"metadata": {"finalizers": None}})
    await task.done(1)
    assert [on for on, _ in world.kubelet.ran] == [node]


async def test_an_api_server_that_asks_for_patience_gets_it(world: World, proxy: ApiProxy) -> None:
    names = await world.join(4)
    busy = Match(verb="create", resource="pods", namespace=world.namespace, times=3, where=is_real)
    with proxy.fault(busy, Answer(429, "TooManyRequests", retry_after=1)) as rule:
        task = await world.task()
        await task.done(4)
    first, last = rule.hits[0].time, rule.hits[-1].time
    made = proxy.ledger.calls(
        lambda c: (c.verb, c.resource, c.namespace, c.code) == ("create", "pods", world.namespace, 201)
    )
    real = [call for call in made if is_real(call)]
    assert len(real) == 4
    assert min(call.time for call in real) - first >= 1
    assert last >= first
    assert sorted(node_of(pod) for pod in await task.pods()) == sorted(names)
