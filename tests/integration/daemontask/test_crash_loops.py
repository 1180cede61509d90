"""restartPolicy OnFailure: restarts in place are bounded as in a Job; a changed template replaces a loop."""

from collections.abc import Callable

import pytest

from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.customresource import stands
from testing.faults import Answer, Match
from testing.kubelet import HOLD, crash_loop
from testing.world import World, holds_for

Recorders = Callable[[], PodRecorder]


async def test_a_crash_loop_ends_at_backoff_limit_and_its_pod_goes_once_that_is_recorded(
    world: World, proxy: ApiProxy
) -> None:
    node, other = await world.join(2)
    world.kubelet.default = HOLD
    task = await world.task(template=world.template(restartPolicy="OnFailure"), backoffLimit=2, parallelism=1)
    (pod,) = await task.running()
    first, later = (node, other) if pod["spec"]["nodeName"] == node else (other, node)
    await world.kubelet.finish(first, outcome=crash_loop(1))
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
    await task.counts(active=1, pending=1)

    refused = Match(resource="configmaps", namespace=world.namespace, times=2)
    with proxy.fault(refused, Answer(500, "InternalError")) as rule:
        await world.kubelet.finish(first, outcome=crash_loop(2, exit_code=3))
        found = await task.counts(failed=1, active=1)
        assert len(rule.hits) == 2
    (failed,) = found["status"]["failedNodes"]
    assert (failed["nodeName"], failed["reason"]) == (first, "BackoffLimitExceeded")
    assert (failed["attempts"], failed["exitCode"]) == (3, 3)
    await world.gone([pod])
    written = proxy.ledger.calls(lambda c: c.is_write and c.namespace == world.namespace and c.code < 400)
    order = [c.resource for c in written if c.resource == "configmaps" or c.verb == "delete"]
    assert order[:2] == ["configmaps", "pods"]
    await world.kubelet.finish(later)
    await task.counts(failed=1, succeeded=1)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 2)


@pytest.mark.parametrize("looping", [True, False], ids=["in CrashLoopBackOff", "hung"])
async def test_a_changed_template_replaces_a_loop_and_waits_for_what_only_hangs(
    world: World, recorders: Recorders, looping: bool
) -> None:
    (node,) = await world.join()
    world.kubelet.script(node, HOLD)
    async with recorders() as record:
        task = await world.task(template=world.template(restartPolicy="OnFailure"), backoffLimit=100)
        await task.running()
        if looping:
            await world.kubelet.finish(node, outcome=crash_loop(5))
        await task.put_template(world.template(restartPolicy="OnFailure", labels={"mended": "yes"}))
        if not looping:
            await holds_for(1.5, lambda: len(world.kubelet.ran) == 1)
            await task.edit(concurrencyPolicy="Replace")
        found = await task.done(1)
        await record.settle()
    assert stands(found, "Ready")
    assert record.runs_per_node("Succeeded") == {node: 1}
    assert record.max_active_per_place() == 1
