"""examples/s3-metadata-repair.yaml at work: events become Jobs that mend objects, then no Job follows."""

import asyncio
import copy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from awsdoubles.s3copies import S3Copies
from caretaker.api.s3refresh import Filter
from caretaker.s3refresh.envelope import parse
from caretaker.s3refresh.match import wanted
from testbed.admin import Json, path
from testbed.steer import behaviour, finish
from testing.cluster import Nodes
from testing.recipes import document, run
from testing.refreshing import Refresh, Refreshing

NAME: Final = "s3-metadata-repair"
MANIFEST: Final = document(NAME, "S3AggregatedRefresh")
JOBS: Final = "caretaker.dev/s3aggregatedrefresh={}"


class Worker:
    """Runs each Job's program where the Job's pod would, and ends the pod as the program has ended."""

    def __init__(self, place: Refreshing, s3: S3Copies, folder: Path) -> None:
        self.printed: list[str] = []
        self.second = asyncio.Event()  # two Jobs have been done
        self._place = place
        self._s3 = s3
        self._folder = folder

    async def work(self, resource: Refresh) -> None:
        """For ever."""
        place, labels = self._place, JOBS.format(resource.name)
        done: set[str] = set()
        async for pods in place.admin.states(path("pods", place.namespace), labels=labels):
            for uid, pod in pods.items():
                if pod["status"].get("phase") == "Running" and uid not in done:
                    done.add(uid)
                    await self._run(pod)

    async def _run(self, pod: Json) -> None:
        told = pod["spec"]["containers"][0]["env"]
        doubles = self._place.aws.environment(self._place.aws.url)
        env = {**doubles, **{one["name"]: one["value"] for one in told}}
        env |= {"AWS_ENDPOINT_URL_S3": self._s3.url, "DRY_RUN": "false"}
        code, _, printed = await asyncio.to_thread(run, NAME, self._folder, env)
        self.printed.append(printed)
        if len(self.printed) == 2:
            self.second.set()
        await finish(self._place.admin, self._place.namespace, pod["metadata"]["name"], code)


def spec(nodes: Nodes, bucket: str) -> dict[str, Any]:
    """As the manifest has it, for this test's bucket and nodes, and in a hurry."""
    made = copy.deepcopy(MANIFEST["spec"])
    made["filter"] = {**made["filter"], "buckets": [bucket], "ignorePrincipals": []}
    made["debounce"] = {"quietPeriod": "1s", "maxDelay": "60s", "minInterval": "1s"}
    template = made["target"]["job"]["template"]
    template["metadata"] = {"annotations": behaviour("run-on")}
    template["spec"] |= {"nodeSelector": nodes.selector, "serviceAccountName": "default"}
    return {name: made[name] for name in ("filter", "debounce", "target")}


@pytest.mark.slow
async def test_its_own_copies_start_one_more_job_which_finds_nothing_and_is_the_last(
    shared: Refreshing, nodes: Nodes, tmp_path: Path
) -> None:
    """Without ignorePrincipals, as with EventBridge, which names no principal."""
    await nodes.add(1)
    aws, admin = shared.aws, shared.admin
    source = aws.source()
    with S3Copies(aws.url) as s3:
        resource = await shared.create(source.queue, **spec(nodes, source.bucket))
        await resource.condition("Ready")
        worker = Worker(shared, s3, tmp_path)
        working = asyncio.create_task(worker.work(resource))
        try:
            for key in ("a/1.html", "a/2.html", "3.html"):
                await asyncio.to_thread(
                    aws.s3.put_object, Bucket=source.bucket, Key=key, Body=b"<p>", ContentEncoding="gzip"
                )
            async with asyncio.timeout(90):
                await worker.second.wait()
            await shared.emptied(source.queue.url)
            await resource.caught_up()
        finally:
            working.cancel()
    assert ['"repaired": 3' in printed for printed in worker.printed] == [True, False]
    assert "copy" not in worker.printed[1]
    assert sorted(copied.key for copied in s3.copies) == ["3.html", "a/1.html", "a/2.html"]
    # Every event is answered for: of what was written, and of the three copies, which the second Job was for.
    jobs = await admin.list(path("jobs", shared.namespace), labels=JOBS.format(resource.name))
    assert len(jobs) == 2
    heads = [aws.s3.head_object(Bucket=source.bucket, Key=copied.key) for copied in s3.copies]
    assert not any("ContentEncoding" in head for head in heads)


@pytest.mark.parametrize(
    ("principal", "name", "counts"),
    [
        pytest.param("AWS:AROAEXAMPLEEXAMPLEEX:botocore-session-1", "Copy", False, id="the Jobs' own copy"),
        pytest.param("AWS:AROAEXAMPLEEXAMPLEEX:eks-assets-repair-1", "Put", False, id="how far it has come"),
        pytest.param("AWS:AROAOTHEROTHEROTHER00:deploy", "Put", True, id="an upload"),
        pytest.param("AWS:AROAOTHEROTHEROTHER00:deploy", "Copy", True, id="a copy of somebody else"),
    ],
)
def test_the_filter_of_the_manifest_passes_uploads_and_not_its_own_copies(
    principal: str, name: str, counts: bool
) -> None:
    record = {
        "eventVersion": "2.1",
        "eventName": f"ObjectCreated:{name}",
        "userIdentity": {"principalId": principal},
        "s3": {"bucket": {"name": "assets"}, "object": {"key": "a/1.html"}},
    }
    (event,) = parse(msgspec.json.encode({"Records": [record]}).decode(), "Auto").events
    assert wanted(msgspec.convert(MANIFEST["spec"]["filter"], Filter), event) is counts
