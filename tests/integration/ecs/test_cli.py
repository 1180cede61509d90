"""caretaker plan and status of a DaemonTask with an ECS target, and the commands that have no meaning for
one."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from awsdoubles.clients import KEY
from testbed.cluster import Cluster
from testing.cli import Cli
from testing.ecstasks import SERVICE, EcsTasks


@pytest.fixture
def cli(cluster: Cluster, shared_namespace: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    return Cli(cluster.kubeconfig, shared_namespace)


def rows_of(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


async def test_status_shows_each_cluster_and_what_to_do(place: EcsTasks, cli: Cli) -> None:
    place.cluster(instances=2)
    place.cluster("odd", instances=1, strategy="DAEMON")
    task = await place.create(clusters=["prod", "odd"])
    await task.condition("Stalled", "True", "DaemonService")
    await task.when(lambda f: f["status"]["desired"] == 2)
    said = await cli("status", "dtask", task.name)
    assert said.code == 0
    assert said.lines[0] == f"DaemonTask {place.namespace}/{task.name}: service {SERVICE}"
    assert said.lines[1].startswith("  2 clusters, 2 container instances, ")
    assert "    -> delete the task: ECS keeps such a service itself" in said.lines
    rows = rows_of(said.lines)
    assert ["prod", "2", "2"] in [row[:3] for row in rows]
    assert ["odd", "-", "-", "-", "-", "-", "1", "DaemonService:"] in [row[:8] for row in rows]
    as_json = (await cli("status", f"dtask/{task.name}", "-o", "json")).json
    assert [one["cluster"] for one in as_json["clusters"]] == ["odd", "prod"]
    assert "schedulingStrategy DAEMON" in (await cli("status", "dtask", task.name, "-o", "wide")).out
    watched = await cli("status", "dtask", task.name, "--watch")
    assert (watched.code, "kubectl get daemontask" in watched.err) == (2, True)


@pytest.mark.parametrize(
    "command",
    ["rerun", *(pytest.param(word, marks=pytest.mark.slow) for word in ("resume", "logs --failed"))],
)
async def test_what_is_about_runs_on_nodes_says_so(place: EcsTasks, cli: Cli, command: str) -> None:
    place.cluster()
    task = await place.create(clusters=["prod"])
    verb, *more = command.split()
    said = await cli(verb, "dtask", task.name, *more)
    assert said.code == 2
    assert f"DaemonTask {task.name} keeps an ECS service and has no runs on nodes" in said.err


async def test_plan_tells_what_would_be_set_and_sets_nothing(
    place: EcsTasks, cli: Cli, tmp_path: Path
) -> None:
    place.cluster(instances=3)
    place.cluster("even", instances=1, desired=1)
    place.control.add_cluster("empty")
    file = tmp_path / "task.yaml"

    async def planned(*more: str, **ecs: Any) -> Any:
        file.write_text(yaml.safe_dump(place.body("planned", **ecs)))
        return await cli("plan", "-f", str(file), *more)

    said = await planned()
    assert (said.code, said.err) == (0, "")
    assert said.lines[0].endswith(
        f"(new): service {SERVICE}, 2 clusters that run it, 1 desired count would be set"
    )
    assert ["prod", "3", "0", "3", "-"] in rows_of(said.lines)
    assert ["even", "1", "1", "-", "-"] in rows_of(said.lines)
    held = await planned(clusters=["prod", "even"], maxCount=2)
    assert ["prod", "3", "0", "2"] in [row[:4] for row in rows_of(held.lines)]
    assert "spec.ecs.maxCount holds the desired count at 2" in held.out
    named = await planned(clusters=["prod", "empty", "none"])
    assert named.code == 1
    assert "cluster empty has no service agent: create it there" in named.err
    assert "there is no active cluster none" in named.err
    nowhere = await planned(service="other")
    assert (nowhere.code, "no cluster in eu-west-1 runs the service other" in nowhere.err) == (1, True)
    assert not place.control.calls("UpdateService")
    place.control.deny("DescribeServices")
    denied = (await planned("-o", "json", clusters=["prod"])).json["tasks"][0]
    assert "AccessDeniedException" in denied["clusters"][0]["problem"]
    assert "asked as you" in denied["notes"][0]
    place.control.deny("ListClusters")
    unlisted = await planned()
    assert "could not be listed: ecs:ListClusters: AccessDeniedException" in unlisted.err
    assert "ecs:ListClusters: AccessDeniedException" in unlisted.out
    assert "no cluster in" not in unlisted.err
    wrong = await planned(countInstances="Some")
    assert (wrong.code, "countInstances" in wrong.err) == (1, True)
