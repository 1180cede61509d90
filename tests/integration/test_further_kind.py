"""A further kind edits three shared files, then it is in the chart, watched, reconciled, measured and shown.

The kind is testing.toykind, on a control plane of its own, for its CRD.
"""

import asyncio
import json
import secrets
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import chart
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing import toykind
from testing.cluster import apply_crd
from testing.customresource import TIMEOUT, stands

pytestmark = pytest.mark.slow

RESOURCE: Json = {
    "apiVersion": "caretaker.dev/v1alpha1",
    "kind": "PoolStamp",
    "metadata": {"name": "toy"},
    "spec": {"label": "pool"},
}


@dataclass(frozen=True)
class Place:
    """A namespace, and the operator with the kind."""

    admin: Admin
    cluster: Cluster
    namespace: str
    env: Mapping[str, str]

    @property
    def collection(self) -> str:
        return f"/apis/caretaker.dev/v1alpha1/namespaces/{self.namespace}/poolstamps"

    async def stamps(self, wanted: set[str]) -> None:
        """Wait for exactly these ConfigMaps."""
        url = path("configmaps", self.namespace)

        def names(items: list[Json]) -> set[str]:
            return {item["metadata"]["name"] for item in items if "stampedAt" in item.get("data", {})}

        await self.admin.wait_for_all(url, lambda items: names(items) == wanted, timeout=TIMEOUT)

    async def caretaker(self, *words: str, stdin: str = "") -> str:
        """A command's stdout."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "caretaker", words[0], "--kubeconfig", str(self.cluster.kubeconfig)),
            *("-n", self.namespace, *words[1:]),
            env=self.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(TIMEOUT):
            out, _ = await process.communicate(stdin.encode())
        assert process.returncode == 0
        return out.decode()

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Callable[[], str]]:
        """`caretaker run` with all kinds; yields a function that reads its metrics."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "caretaker", "run", "--kubeconfig", str(self.cluster.kubeconfig)),
            *("--operator-namespace", self.namespace, "--metrics-port", "0", "--health-port", "0"),
            env=self.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        lines: list[str] = []
        port = asyncio.get_running_loop().create_future()

        async def read(stream: asyncio.StreamReader) -> None:
            while line := (await stream.readline()).decode():
                lines.append(line)
                if not port.done() and '"msg":"ready"' in line.replace(" ", ""):
                    port.set_result(json.loads(line)["metrics_port"])

        reading = asyncio.create_task(read(process.stdout))
        try:
            url = f"http://127.0.0.1:{await asyncio.wait_for(port, TIMEOUT)}/metrics"
            yield lambda: urllib.request.urlopen(url, timeout=TIMEOUT).read().decode()
        finally:
            process.terminate()
            async with asyncio.timeout(TIMEOUT):
                await process.wait()
            await reading
        assert process.returncode == 0
        assert not any("Traceback" in line for line in lines), "".join(lines)


@pytest.fixture
async def place(bare: Cluster, tmp_path: Path) -> AsyncIterator[Place]:
    env = toykind.environment(toykind.install(tmp_path))
    async with bare.admin() as admin:
        await apply_crd(admin, toykind.CRD)
        name = f"t-{secrets.token_hex(4)}"
        await admin.create(path("namespaces"), {"metadata": {"name": name}})
        yield Place(admin, bare, name, env)


async def test_a_further_kind_is_watched_reconciled_measured_shown_and_removed(place: Place) -> None:
    admin, url = place.admin, f"{place.collection}/toy"
    await place.cluster.add_nodes(2, "blue", {"pool": "blue"}, wait=False)
    planned = await place.caretaker("plan", "-f", "-", stdin=json.dumps(RESOURCE))
    assert planned == "PoolStamp toy: would stamp blue\n"
    async with place.operator() as metrics:
        await admin.create(place.collection, RESOURCE)
        await place.stamps({"toy-blue"})
        await place.cluster.add_nodes(1, "green", {"pool": "green"}, wait=False)
        await place.stamps({"toy-blue", "toy-green"})
        await admin.wait_for(
            url, lambda f: stands(f, "Ready") and f["status"]["pools"] == ["blue", "green"], timeout=TIMEOUT
        )
        assert await place.caretaker("status", "poolstamp", "toy") == "PoolStamp toy: blue, green\n"
        series = f'caretaker_poolstamp_pools{{name="toy",namespace="{place.namespace}"}} 2.0'
        assert series in metrics()
        assert f'caretaker_condition{{kind="PoolStamp",name="toy",namespace="{place.namespace}",' in metrics()
        assert 'caretaker_plan_cpu_seconds_count{kind="PoolStamp"}' in metrics()
        await place.cluster.delete_node("green-0")
        await place.stamps({"toy-blue"})
        await admin.delete(url)
        await admin.wait_gone(url)
        async with asyncio.timeout(TIMEOUT):
            while 'name="toy"' in metrics():  # noqa: ASYNC110  nothing tells that it was forgotten
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the kind, after the commands that write files have run."""
    copy = toykind.install(tmp_path_factory.mktemp("toy"))
    assert toykind.changed(copy) == set(toykind.EDITED)
    toykind.run(copy, "chart")
    for module, file in (("page", "docs/metrics.md"), ("dashboard", "helm/caretaker/files/dashboard.json")):
        (copy / file).write_text(toykind.run(copy, f"observability.{module}"))
    assert toykind.changed(copy) == {*toykind.EDITED, *toykind.MADE}
    assert toykind.run(copy, "chart", "--check") == ""
    return copy


def rendered(copy: Path, *values: str) -> list[Json]:
    text = chart.text("--set", ",".join(values), "--skip-tests", chart=copy / "helm" / "caretaker")
    return [one for one in yaml.load_all(text, chart.LOADER) if one]


def rights(objects: list[Json], name: str) -> set[tuple[str, str]]:
    """What the ClusterRole of this name grants."""
    rules = [
        rule
        for o in objects
        if (o["kind"], o["metadata"]["name"]) == ("ClusterRole", name)
        for rule in o["rules"]
    ]
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


def test_the_chart_has_a_further_kinds_crd_switch_rules_and_alerts(copy: Path) -> None:
    others = [f"kinds.{name}.enabled=false" for name in ("daemonTask", "s3AggregatedRefresh", "imdsPolicy")]
    objects = rendered(copy, *others, "prometheusRule.enabled=true")
    crds = [o["metadata"]["name"] for o in objects if o["kind"] == "CustomResourceDefinition"]
    assert crds == ["poolstamps.caretaker.dev"]
    assert rights(objects, "caretaker") == {
        *(("poolstamps", verb) for verb in ("get", "list", "watch")),
        ("poolstamps/status", "patch"),
        *(("configmaps", verb) for verb in ("list", "create", "delete")),
        *(("nodes", verb) for verb in ("list", "watch")),
        ("events", "create"),
    }
    assert rights(objects, "caretaker-view") == {("poolstamps", verb) for verb in ("get", "list", "watch")}
    (rule,) = (o for o in objects if o["kind"] == "PrometheusRule")
    assert "PoolStampNotReady" in str(rule)
    assert "poolstamps" not in str(rendered(copy, "kinds.poolStamp.enabled=false"))
    with pytest.raises(chart.ChartError, match="additional properties 'poolStamps' not allowed"):
        rendered(copy, "kinds.poolStamps.enabled=true")


def test_the_pages_of_metrics_and_the_dashboard_have_a_further_kind(copy: Path) -> None:
    assert "\n### caretaker_poolstamp_pools\n" in (copy / "docs" / "metrics.md").read_text()
    board = json.loads((copy / "helm" / "caretaker" / "files" / "dashboard.json").read_text())
    assert "PoolStamp" in [panel["title"] for panel in board["panels"] if panel["type"] == "row"]


@pytest.mark.parametrize(
    "tests",
    [
        ("tests/unit/observability",),
        ("tests/integration/observability/test_alerts.py", "-k", "PoolStamp or valid"),
        ("tests/integration/chart/test_render.py", "-k", "a_kind_that_is_off or typo or every_value"),
    ],
    ids=lambda tests: tests[0],
)
def test_the_tests_of_all_kinds_hold_for_a_further_kind(copy: Path, tests: tuple[str, ...]) -> None:
    assert " passed" in toykind.run(copy, "pytest", "-q", "-p", "no:cacheprovider", *tests)
