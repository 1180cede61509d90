"""Results: what a run leaves in its termination message reaches status, ledger, metric and terminal."""

import json
import subprocess
from typing import Any

import pytest

from caretaker.api.daemontask import Result
from caretaker.api.objects import ContainerEnd
from caretaker.daemontask.results import read
from testbed.admin import Json
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing import manifests
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import condition, stands
from testing.faults import Match, Run
from testing.kubelet import HOLD, fail, measured
from testing.operator import OperatorProcess
from testing.world import World
from unit.daemontask.build import node, succeeded

MS = {"name": "ms", "unit": "ms"}
OS = {"name": "os", "type": "Text"}


def told(task: Json) -> dict[str, Json]:
    """status.results by name."""
    return {result["name"]: result for result in task["status"]["results"]}


def series(operator: OperatorProcess, world: World) -> dict[str, float]:
    """statistic -> value, of this test's task."""
    found = {}
    for name, value in operator.metrics().items():
        if name.startswith("caretaker_daemontask_result{") and f'namespace="{world.namespace}"' in name:
            found[name.partition('statistic="')[2].partition('"')[0]] = value
    return found


async def test_what_runs_told_is_in_status_ledger_metric_and_on_the_terminal(
    world: World, operator: OperatorProcess, cluster: Cluster
) -> None:
    nodes = await world.join(4)
    for place, name in enumerate(nodes):
        world.kubelet.script(name, measured(json.dumps({"ms": place + 0.5, "os": "one" if place else "two"})))
    task = await world.task(results=[MS, OS])
    found = await task.done(4)
    assert found["status"]["results"] == [
        {"name": "ms", "type": "Number", "unit": "ms", "count": 4}
        | {"min": 0.5, "median": 1.5, "p95": 3.5, "max": 3.5},
        {"name": "os", "type": "Text", "unit": "", "count": 4}
        | {"values": [{"value": "one", "nodes": 3}, {"value": "two", "nodes": 1}]},
    ]
    ledger = await task.ledger()
    assert [ledger[name]["results"] for name in nodes] == [
        {"ms": place + 0.5, "os": "one" if place else "two"} for place in range(4)
    ]
    assert series(operator, world) == {"count": 4, "min": 0.5, "median": 1.5, "p95": 3.5, "max": 3.5}
    said = await Cli(cluster.kubeconfig, world.namespace)("status", "daemontask", "t")
    assert "ms      ms    4      0.5  1.5     3.5  3.5  -" in said.out
    assert "3 one, 1 two" in said.out
    await task.delete()
    await world.until(lambda: series(operator, world) == {})


async def test_a_fault_is_told_with_node_field_and_mend_and_changes_no_outcome(world: World) -> None:
    silent, quoted, cut, good = await world.join(4)
    world.kubelet.script(silent, measured("done"))
    world.kubelet.script(quoted, measured('{"ms": "3", "os": "one"}'))
    world.kubelet.script(cut, measured(json.dumps({"ms": 3, "os": "one", "log": "x" * 5000})))
    world.kubelet.script(good, measured('{"ms": 3, "os": "one"}'))
    task = await world.task(results=[MS, OS], backoffLimit=0)
    found = await task.done(4)
    errors = {error["nodeName"]: error["message"] for error in found["status"]["resultErrors"]}
    assert "it is done, not a JSON object" in errors[silent]
    assert "ms: it is 3, not a number; write it without quotes" in errors[quoted]
    assert "fills the 4096 bytes where the kubelet cuts" in errors[cut]
    assert sorted(errors) == sorted([silent, quoted, cut])
    assert (told(found)["ms"]["count"], told(found)["os"]["count"]) == (1, 2)
    assert stands(found, "Degraded", reason="InvalidResults")
    assert len(world.kubelet.ran) == 4, "nothing is retried"
    assert (await task.event("InvalidResults"))["type"] == "Warning"
    # The program is mended, and run again where it was wrong.
    world.kubelet.default = measured('{"ms": 4, "os": null}')
    marks = dict.fromkeys(errors, "2026-01-31T12:00:00Z")
    await task.annotate(rerun_nodes=json.dumps(marks))
    found = await task.when(lambda t: t["status"]["resultErrors"] == [] and told(t)["ms"]["count"] == 4)
    assert told(found)["os"]["count"] == 1, "null is nothing to tell"
    assert not condition(found, "Degraded")
    assert len(await task.events("InvalidResults")) == 1


async def test_a_result_that_is_declared_later_runs_nothing_and_is_told_by_later_runs(world: World) -> None:
    (first,) = await world.join()
    world.kubelet.default = measured('{"ms": 3, "os": "one"}')
    task = await world.task(results=[MS])
    before = await task.done(1)
    await task.edit(results=[MS, OS])
    found = await task.when(lambda t: "os" in told(t))
    assert found["status"]["currentRevision"] == before["status"]["currentRevision"]
    assert (told(found)["ms"]["count"], told(found)["os"]["count"]) == (1, 0)
    (late,) = await world.join()
    found = await task.when(lambda t: told(t)["os"]["count"] == 1)
    assert [name for name, _ in world.kubelet.ran] == [first, late]
    assert found["status"]["resultErrors"] == []
    await task.edit(results=None)
    found = await task.when(lambda t: t["status"]["results"] == [])
    assert (await task.ledger())[late]["results"] == {"ms": 3, "os": "one"}


async def test_a_run_that_fails_tells_why_and_no_results(world: World) -> None:
    (name,) = await world.join()
    world.kubelet.script(name, fail(3, '{"ms": 3}'))
    task = await world.task(results=[MS], backoffLimit=0)
    found = await task.counts(failed=1)
    assert found["status"]["failedNodes"][0]["message"] == '{"ms": 3}'
    assert (told(found)["ms"]["count"], found["status"]["resultErrors"]) == (0, [])


async def test_of_several_containers_the_first_of_the_spec_that_left_a_message_counts(world: World) -> None:
    """The kubelet sorts their statuses by name."""
    await world.join()
    world.kubelet.default = measured(z="", m='{"ms": 1}', a='{"ms": 2}')
    containers = [{"name": name, "image": "test:1"} for name in "zma"]
    task = await world.task(results=[MS], template=world.template(containers=containers))
    assert told(await task.done(1))["ms"]["max"] == 1


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
async def test_killed_between_a_runs_end_and_its_record_nothing_is_lost(
    world: World, operator: OperatorProcess, proxy: ApiProxy, when: str
) -> None:
    """The record is made from the Pod, which stays until it is written."""
    (name,) = await world.join()
    world.kubelet.script(name, HOLD)
    task = await world.task(results=[MS])
    await task.running()
    how: dict[str, Any] = {"run_before": lambda _: operator.kill9(), "forward": False}
    if when == "after":
        how = {"run_after": lambda _: operator.kill9()}
    writes = Match(resource="configmaps", namespace=world.namespace, where=lambda call: call.is_write, nth=1)
    try:
        with proxy.fault(writes, Run(**how)) as rule:
            await world.kubelet.finish(name, outcome=measured('{"ms": 3}'))
            await world.until(lambda: rule.hits and not operator.running)
    finally:
        if not operator.running:
            operator.start()
    found = await task.done(1)
    assert told(found)["ms"]["max"] == 3
    assert (await task.ledger())[name]["results"] == {"ms": 3}
    assert len(world.kubelet.ran) == 1


DF = """\
Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/nvme0n1p1    83873772  40000000  43873772      48% /room
"""


@pytest.mark.parametrize(
    ("df", "values"),
    [
        pytest.param(DF, {"freePercent": 52.3, "freeGiB": 41.84}, id="a disk"),
        pytest.param("", None, id="no df"),
    ],
)
def test_the_program_of_the_example_tells_what_it_declares(
    tmp_path: Any, df: str, values: dict[str, float] | None
) -> None:
    spec = manifests.load((CHECKOUT / "examples" / "free-disk.yaml").read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    log = tmp_path / "termination-log"
    (tmp_path / "df").write_text(f"#!/bin/sh\ncat <<'END'\n{df}END\n")
    (tmp_path / "df").chmod(0o755)
    script = container["command"][-1].replace("/dev/termination-log", str(log))
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(["sh", "-c", script], env={"PATH": path}, check=False, timeout=10)
    assert (done.returncode == 0) == (values is not None)
    if values is not None:
        declared = tuple(Result(**result) for result in spec["results"])
        run = succeeded(node(), ends=(ContainerEnd("measure", 0, message=log.read_text()),))
        assert read(declared, run) == (values, None)
