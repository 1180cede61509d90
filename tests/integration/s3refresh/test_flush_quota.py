"""A quota of a living namespace refuses the Job of onDelete: Flush."""

import asyncio

import pytest

from testbed.admin import Admin, Json, path
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, condition, stands

HELD = "its finalizer caretaker.dev/finalizer holds it"


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(True, id="until there is room"),
        pytest.param(False, id="until it is let go", marks=pytest.mark.slow),
    ],
)
async def test_a_flush_whose_job_a_quota_refuses_names_the_quota_and_waits(
    room: bool, own: tuple[OperatorProcess, Refreshing, ApiProxy], admin: Admin, nodes: Nodes
) -> None:
    process, place, _ = own
    await nodes.add(1)
    quota = path("resourcequotas", place.namespace, "full")
    body = {"metadata": {"name": "full"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
    await admin.create(path("resourcequotas", place.namespace), body)
    await admin.wait_for(quota, lambda found: "used" in found.get("status", {}))
    await asyncio.to_thread(process.start)
    source = place.aws.source()
    template = {"spec": {"nodeSelector": nodes.selector, "containers": [{"name": "main", "image": "i"}]}}
    resource = await place.create(
        source.queue,
        onDelete="Flush",
        debounce={"quietPeriod": "20m", "maxDelay": "20m"},
        filter={"buckets": [source.bucket]},
        target={"job": {"template": template}},
    )
    await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    await place.put(source.bucket, "a/1")
    await resource.when(lambda found: any(t.get("dirty") for t in found["status"]["targets"]))
    await resource.delete()

    def refused_again(found: Json) -> bool:
        (target,) = found["status"]["targets"]
        return (target.get("failure") or {}).get("count", 0) >= 2 and stands(found, "CaughtUp", "False")

    found = await resource.when(refused_again)
    ready, caught_up = condition(found, "Ready"), condition(found, "CaughtUp")
    assert (ready["status"], ready["reason"]) == ("False", "TargetsUnresolved")
    assert "exceeded quota: full" in ready["message"]
    assert HELD in ready["message"]
    assert caught_up["reason"] == "RefreshFailing"
    assert "exceeded quota: full" in caught_up["message"]
    if room:
        await admin.patch(quota, {"spec": {"hard": {"count/jobs.batch": "1"}}})
    else:
        await resource.edit(onDelete="Discard")
        await resource.when(lambda _: True)
        await admin.patch(resource.url, {"metadata": {"finalizers": None}})
    await resource.gone()
