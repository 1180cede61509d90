"""The log of a real operator as whoever searches it reads it: one JSON object a line, one id a pass."""

import json
import re
from collections import defaultdict
from typing import Any, Final

from testbed.admin import Json, path
from testing.refreshplace import Place

# Of every line, of lines that belong to a resource, and what `extra` adds.
ALWAYS: Final = ("ts", "level", "logger", "msg")
ALLOWED: Final = {*ALWAYS, "kind", "namespace", "name", "node", "reconcile_id", "exc", "stack"}
EXTRA: Final = {"version", "metrics_port", "health_port", "api_server", "seconds", "event"}
LEVELS: Final = {"debug", "info", "warning", "error", "critical"}


def task(name: str) -> Json:
    """One that matches no node."""
    pod = {"nodeSelector": {"no": "node"}, "containers": [{"name": "main", "image": "example.com/none:1"}]}
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod}},
    }


def named(lines: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("name") == name]


async def suspended_and_resumed(place: Place, name: str) -> None:
    """A DaemonTask's two transitions: each is an Event, and so a line."""
    url = path("daemontasks", place.namespace, name)
    process = place.replicas[0].process
    for suspend, reason in ((True, "Suspended: "), (False, "Resumed: ")):
        await place.admin.patch(url, {"spec": {"suspend": suspend}})
        await place.until(
            lambda reason=reason: any(one["msg"].startswith(reason) for one in named(process.logs, name)),
            f"{reason}is logged",
        )


async def test_every_line_is_one_object_and_those_of_a_pass_have_its_id(place: Place) -> None:
    replica = await place.operator(args=("--log-level", "DEBUG"))
    for name in ("one", "two"):
        await place.admin.create(path("daemontasks", place.namespace), task(name))
        await suspended_and_resumed(place, name)
    replica.process.terminate()
    lines = [json.loads(line) for line in replica.process.lines]
    assert [line for line in lines if tuple(line)[:4] != ALWAYS or set(line) - ALLOWED - EXTRA] == []
    assert {line["level"] for line in lines} <= LEVELS
    assert [line for line in lines if not re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", line["ts"])] == []
    whose = defaultdict(set)
    for line in (line for line in lines if "kind" in line):
        assert re.fullmatch(r"[0-9a-f]{12}", line["reconcile_id"]), line
        whose[line["reconcile_id"]].add((line["kind"], line["namespace"], line["name"]))
    assert [objects for objects in whose.values() if len(objects) > 1] == []
    # Each transition was found by a pass of its own.
    for name in ("one", "two"):
        ids = [line["reconcile_id"] for line in named(lines, name) if re.match("Suspend|Resum", line["msg"])]
        assert len(ids) == len(set(ids)) == 2


async def test_what_goes_on_between_passes_names_its_resource_and_no_pass(place: Place) -> None:
    replica = await place.operator()
    source = place.aws.source()
    place.share(source.bucket)
    resource = await place.create(source.queue, "polled")
    await resource.condition("Ready")
    place.aws.sqs.send_message(QueueUrl=source.queue.url, MessageBody="no event")
    await place.until(lambda: told_malformed(place) != [], "a message cannot be read")
    (line, *_) = told_malformed(place)
    assert (line["kind"], line["namespace"]) == ("S3AggregatedRefresh", place.namespace)
    assert line["name"] == resource.name
    assert "reconcile_id" not in line
    # The pass that tells of it, a line later.
    await place.until(
        lambda: any("reconcile_id" in one for one in named(replica.process.logs, resource.name)),
        "a pass has logged something",
    )


def told_malformed(place: Place) -> list[dict[str, Any]]:
    return [line for line in place.replicas[0].process.logs if "cannot be read" in line["msg"]]
