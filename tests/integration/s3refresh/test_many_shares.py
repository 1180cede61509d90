"""Two resources on one share, and more shares than one resource keeps a record of."""

import pytest

from caretaker.api.s3refresh import MAX_TARGETS
from testing.refreshing import Refreshing, gateway, s3_event

SOON = {"quietPeriod": "0s", "maxDelay": "1s"}


@pytest.mark.slow
async def test_two_resources_on_one_share_keep_its_interval_together(shared: Refreshing) -> None:
    """A second refresh within 60 s does nothing, says the vendor: it would be lost without a word."""
    first, second = shared.aws.source(), shared.aws.source()
    share = shared.share(first.bucket)
    both = []
    for name, source in (("first", first), ("second", second)):
        target = gateway(shares={"fileShareARNs": [share]})
        both.append(await shared.create(source.queue, name, target=target, debounce=SOON))
    for one in both:
        await one.condition("Ready")
    for number in range(2):
        await shared.put(first.bucket, f"a/{number}")
        told = s3_event(first.bucket, f"b/{number}")
        shared.aws.sqs.send_message(QueueUrl=second.queue.url, MessageBody=told)
        await shared.refreshed(share, 2 * (number + 1))
    for one in both:
        await one.caught_up()
    await shared.fresh(share)
    assert all(made["evicts"] for made in shared.control.refreshes(share))


@pytest.mark.slow
async def test_with_more_shares_than_a_record_holds_nothing_is_read_until_fewer_are_named(
    shared: Refreshing,
) -> None:
    """Read, events of those without a record would have to be given back until the queue takes them for
    dead."""
    source, one = shared.aws.source(), shared.control.add_gateway()
    shares = [
        shared.control.add_share(one, bucket=source.bucket, prefix=f"team/{number}/")
        for number in range(MAX_TARGETS + 1)
    ]
    target = gateway(shares={"discover": {"gatewayARNs": [one]}})
    resource = await shared.create(source.queue, target=target, debounce=SOON)
    told = await resource.condition("Ready", "False", "TargetsUnresolved")
    assert told["message"].startswith(f"{MAX_TARGETS + 1} file shares match, and a resource keeps")
    assert "with a queue of its own" in told["message"]
    await shared.put(source.bucket, "team/0/a")
    assert shared.aws.depth(source.queue.url) == (2, 0), "s3:TestEvent and the object's"
    await resource.edit(target=gateway(shares={"fileShareARNs": shares[:MAX_TARGETS], "discover": None}))
    await resource.condition("Ready")
    await shared.refreshed(shares[0])
    await shared.fresh(shares[0])
    await shared.emptied(source.queue.url)
