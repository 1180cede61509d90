"""A resource that is suspended, edited and deleted while it works, and refreshes that no event asks for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Json, path
from testing.aws import Source
from testing.refreshing import Refresh, Refreshing, stands

LATER = {"quietPeriod": "5m", "maxDelay": "10m"}  # dirty for as long as a test wants it
SOON = {"quietPeriod": "1s", "maxDelay": "5s"}


def dirty(found: Json) -> list[Json]:
    """What the targets are to be refreshed for."""
    return [target["dirty"] for target in found["status"]["targets"] if target.get("dirty")]


async def one_dirty_share(shared: Refreshing, **spec: Any) -> tuple[Source, str, Refresh]:
    """A share for whose refresh the time has not come; its queue is empty."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce=LATER, **spec)
    await resource.condition("Ready")
    await shared.put(source.bucket, "a/1")
    await resource.when(lambda found: bool(dirty(found)))
    await shared.emptied(source.queue.url)
    return source, share, resource


async def test_suspended_it_reads_and_refreshes_nothing_and_forgets_nothing(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    source, share, resource = await one_dirty_share(shared)
    before = dirty(await resource.get())
    await resource.edit(suspend=True, debounce=SOON)
    await resource.condition("Suspended")
    await resource.condition("Ready", "True", "Suspended")
    await shared.polls_over(sqs_proxy)
    receives = sqs_proxy.calls.count("ReceiveMessage")
    await shared.put(source.bucket, "b/1")
    await shared.until(lambda: shared.aws.depth(source.queue.url) == (1, 0), "the event waits in the queue")
    assert dirty(await resource.get()) == before
    assert sqs_proxy.calls.count("ReceiveMessage") == receives
    assert shared.control.refreshes(share) == []
    await resource.edit(suspend=False)
    await resource.condition("Ready", "True", "Consuming")
    await shared.fresh(share)
    await shared.until(
        lambda: {f for made in shared.control.refreshes(share) for f in made["folders"]} == {"/", "a", "b"},
        "what was dirty and what waited are refreshed",
    )
    await shared.emptied(source.queue.url)


async def test_another_pace_counts_for_what_waits_already(shared: Refreshing) -> None:
    _, share, resource = await one_dirty_share(shared)
    await resource.edit(debounce=SOON)
    (made,) = await shared.refreshed(share)
    assert set(made["folders"]) == {"/", "a"}
    await shared.fresh(share)


async def test_another_queue_is_read_from_now_on_and_what_is_dirty_stays(shared: Refreshing) -> None:
    source, share, resource = await one_dirty_share(shared)
    other = shared.aws.queue()
    shared.aws.wiring.connect(source.bucket, other)
    await resource.edit(source={"sqs": {"queueURL": other.url}}, debounce=SOON)
    await resource.condition("Ready")
    await shared.put(source.bucket, "b/1")
    await shared.fresh(share)
    await shared.emptied(other.url)


async def test_another_filter_counts_for_what_comes_from_now_on(shared: Refreshing) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce=SOON, filter={"prefixes": ["in/"]})
    await resource.condition("Ready")
    await shared.put(source.bucket, "out/1")
    await shared.emptied(source.queue.url)
    assert dirty(await resource.get()) == []
    edited = await resource.edit(filter={"prefixes": ["in/", "out/"]})
    generation = edited["metadata"]["generation"]
    await resource.when(lambda found: found["status"]["observedGeneration"] >= generation)
    await shared.put(source.bucket, "out/2")
    (made,) = await shared.refreshed(share)
    assert set(made["folders"]) == {"/", "out"}


async def test_flush_refreshes_what_is_dirty_before_the_resource_goes(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    source, share, resource = await one_dirty_share(shared, onDelete="Flush")
    await resource.delete()
    await resource.gone()
    await shared.fresh(share)
    assert len(shared.control.refreshes(share)) == 1
    await shared.polls_over(sqs_proxy)
    await shared.put(source.bucket, "b/1")
    await shared.until(lambda: shared.aws.depth(source.queue.url) == (1, 0), "nobody reads the queue")


async def test_flush_waits_for_a_refresh_that_is_refused(shared: Refreshing) -> None:
    _, share, resource = await one_dirty_share(shared, onDelete="Flush")
    shared.control.fault("refuse", count=None)
    await resource.delete()
    await resource.when(lambda found: any(t.get("failure") for t in found["status"]["targets"]))
    assert dirty(await resource.get())
    shared.control.clear_faults()
    await resource.gone()
    await shared.fresh(share)


@pytest.mark.slow
async def test_flush_is_given_up_when_nothing_may_be_refreshed(shared: Refreshing) -> None:
    """For example, the Secret was deleted with the namespace, and the process that knew its keys is gone."""
    source, share, resource = await one_dirty_share(shared, onDelete="Flush")
    aws = shared.body(source.queue)["spec"]["aws"]
    await resource.edit(aws={**aws, "credentialsSecretRef": {"name": "gone"}})
    await resource.condition("Ready", "False", "CredentialsUnavailable")
    await resource.delete()
    await resource.gone()
    assert shared.control.refreshes(share) == []
    # Events are posted beside the pass: this one may come after the resource has gone.
    (told,) = await shared.admin.wait_for_all(
        path("events", shared.namespace), lambda found: len(found) == 1, fields="reason=FlushGivenUp"
    )
    assert "Secret gone" in told["message"]


async def test_discard_refreshes_nothing_and_holds_no_finalizer(shared: Refreshing) -> None:
    _, _, resource = await one_dirty_share(shared)
    assert not (await resource.get())["metadata"].get("finalizers")
    await resource.delete()
    await resource.gone()
    assert shared.control.calls("RefreshCache") == []


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_finalizer_comes_and_goes_with_on_delete(suspended: bool, shared: Refreshing) -> None:
    queue = shared.aws.queue()
    shared.share(shared.aws.bucket("a"))
    resource = await shared.create(queue, suspend=suspended, onDelete="Flush")
    await resource.when(lambda found: found["metadata"].get("finalizers") == ["caretaker.dev/finalizer"])
    await resource.edit(onDelete="Discard")
    await resource.when(lambda found: not found["metadata"].get("finalizers"))


async def test_on_start_everything_is_refreshed_once(shared: Refreshing) -> None:
    """Hole 15: the article failed on the first event of a share, whose row was missing; here what came before
    the resource is refreshed too."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    await shared.put(source.bucket, "a/1")
    shared.aws.sqs.purge_queue(QueueUrl=source.queue.url)
    resource = await shared.create(source.queue, debounce=SOON, resync={"onStart": True})
    await resource.caught_up()
    await shared.fresh(share)
    (made,) = shared.control.refreshes(share)
    assert (made["folders"], made["recursive"]) == (["/"], True)


async def test_after_a_pause_in_which_events_may_have_expired_everything_is_refreshed(
    shared: Refreshing,
) -> None:
    """The queue keeps messages for four days, and nobody has read it for three."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce=SOON)
    await resource.when(lambda found: bool(found["status"].get("queue", {}).get("checkedAt")))
    await resource.edit(suspend=True)
    await resource.condition("Ready", "True", "Suspended")
    await shared.put(source.bucket, "a/1")
    shared.aws.sqs.purge_queue(QueueUrl=source.queue.url)
    past = (datetime.now(UTC) - timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await shared.admin.patch(f"{resource.url}/status", {"status": {"queue": {"checkedAt": past}}})
    await resource.edit(suspend=False)
    await resource.caught_up()
    await shared.fresh(share)
    (made,) = shared.control.refreshes(share)
    assert (made["folders"], made["recursive"]) == (["/"], True)
    events = await shared.admin.list(path("events", shared.namespace))
    reasons = {e["reason"] for e in events if e["involvedObject"]["name"] == resource.name}
    assert "EventsMayHaveExpired" in reasons


@pytest.mark.slow
async def test_every_interval_everything_is_refreshed(shared: Refreshing) -> None:
    bucket = shared.aws.bucket("a/0")
    share = shared.share(bucket)
    resync = {"onStart": False, "interval": "2s"}
    resource = await shared.create(shared.aws.queue(), debounce=SOON, resync=resync)
    await shared.put(bucket, "a/1")  # which nobody tells
    await shared.refreshed(share)
    await shared.fresh(share)
    await shared.refreshed(share, 2)
    assert all(made["folders"] == ["/"] and made["recursive"] for made in shared.control.refreshes(share))
    await resource.edit(resync={"interval": "0s"})
    await resource.when(lambda found: stands(found, "CaughtUp"))
