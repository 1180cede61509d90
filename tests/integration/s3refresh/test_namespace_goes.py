"""A namespace is deleted while onDelete: Flush of a resource in it is under way.

The API server takes Secrets and Jobs first, refuses everything new in the namespace, and keeps it until the
finalizer has gone.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from awsdoubles.gateway.server import StorageGateway
from fakes.apiserver import FakeApiServer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.aws import Aws, Source
from testing.operator import OperatorProcess
from testing.refreshing import LOOPBACK, Refresh, Refreshing, add_headers, grants, operator

TIME_SCALE: Final = 0.02  # a flush that cannot be made is given up after 6 s
LATER: Final = {"quietPeriod": "20m", "maxDelay": "20m"}  # dirty until the flush
REFUSED: Final = 60  # requests in the namespace, until it has gone
SOON: Final = {"quietPeriod": "1s", "maxDelay": "5s"}


class Place(msgspec.Struct):
    """An operator of all namespaces, and two of them, with doubles in common."""

    process: OperatorProcess
    proxy: ApiProxy
    going: Refreshing
    stays: Refreshing


@pytest.fixture
async def place(
    cluster: Cluster, admin: Admin, namespace: str, aws: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> AsyncIterator[Place]:
    going = f"{namespace}-going"
    await admin.create(path("namespaces"), {"metadata": {"name": going}})
    env = aws.environment(storage_gateway.url)
    args = (*grants(tmp_path), *LOOPBACK, "--egress-allow", "http://127.0.0.1")
    with ApiProxy(cluster.kubeconfig) as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        with operator(kubeconfig, tmp_path, env, time_scale=TIME_SCALE, args=args) as process:
            both = [
                Refreshing(admin, name, aws, storage_gateway.control, scale=TIME_SCALE)
                for name in (going, namespace)
            ]
            try:
                yield Place(process, proxy, *both)
            finally:
                print("\n".join(process.lines))
                for one in both:
                    await one.clear()


async def dirty(of: Refreshing, source: Source, target: Json) -> Refresh:
    """A resource whose bucket is to be refreshed, by a flush."""
    filters = {"buckets": [source.bucket]} if "storageGateway" not in target else {}
    how = {"debounce": LATER, "onDelete": "Flush", "filter": filters, "target": target}
    resource = await of.create(source.queue, **how)
    await resource.condition("Ready")
    await of.put(source.bucket, "a/1")
    await resource.when(lambda found: any(t.get("dirty") for t in found["status"]["targets"]))
    return resource


def only(share: str) -> Json:
    """spec.target of this share."""
    return {"storageGateway": {"shares": {"fileShareARNs": [share]}}}


async def failed(resource: Refresh, why: str = "") -> None:
    """Return once its target could not be refreshed."""

    def fits(found: Json) -> bool:
        failures = [t["failure"] for t in found["status"]["targets"] if t.get("failure")]
        return any(why in failure["message"] for failure in failures)

    await resource.when(fits)


def assert_given_up(place: Place, why: str) -> None:
    """The log says so; a namespace that is being deleted takes no Events."""
    (event,) = [line["msg"] for line in place.process.logs if line["msg"].startswith("FlushGivenUp: ")]
    assert why in event


async def served(of: Refreshing) -> None:
    """An event is followed by its refresh."""
    source = of.aws.source()
    share = of.share(source.bucket)
    resource = await of.create(source.queue, "served", debounce=SOON, target=only(share))
    await resource.condition("Ready")
    await of.put(source.bucket, "b/1")
    await of.refreshed(share)
    await of.fresh(share)


@asynccontextmanager
async def deleted(place: Place) -> AsyncIterator[None]:
    """The namespace is deleted, what follows happens, and it goes. Meanwhile a resource elsewhere is served,
    and the operator neither logs errors nor repeats many refused requests."""
    admin, namespace = place.going.admin, place.going.namespace
    await admin.delete(path("namespaces", name=namespace))
    await place.going.made[0].when(lambda found: "deletionTimestamp" in found["metadata"])
    await served(place.stays)
    yield
    await admin.wait_gone(path("namespaces", name=namespace), 60)
    refused = place.proxy.ledger.calls(lambda c: c.namespace == namespace and c.code >= 400)
    print(*refused, sep="\n")
    assert len(refused) <= REFUSED
    assert [line for line in place.process.logs if line["level"] in ("error", "critical")] == []


@pytest.mark.slow
async def test_a_flush_that_a_gateway_refuses_at_first_is_made(place: Place) -> None:
    going, control = place.going, place.going.control
    source = going.aws.source()
    share = going.share(source.bucket)
    resource = await dirty(going, source, only(share))
    control.fault("refuse", count=None, share=share)
    async with deleted(place):
        await failed(resource)
        assert control.refreshes(share) == []
        control.clear_faults()
        await resource.gone()
    assert len(control.refreshes(share)) == 1
    assert control.differences(share) == []


@pytest.mark.slow
@pytest.mark.parametrize("created", [False, True], ids=["not created", "created"])
async def test_a_flush_by_a_job_is_given_up(place: Place, created: bool) -> None:
    """No Job can be created any more; one that was, was deleted before it had ended: no node runs it."""
    template = {"spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "main", "image": "i"}]}}
    resource = await dirty(place.going, place.going.aws.source(), {"job": {"template": template}})
    if created:
        await resource.delete()
        await resource.when(lambda found: any(t.get("inFlight") for t in found["status"]["targets"]))
    async with deleted(place):
        await failed(resource, "was deleted" if created else "is being terminated")
        await resource.gone()
    assert_given_up(place, "is being terminated")


@pytest.mark.slow
async def test_a_flush_by_http_is_given_up_when_the_secret_with_its_headers_went_first(place: Place) -> None:
    admin, namespace = place.going.admin, place.going.namespace
    async with FakeApiServer() as service:
        url = f"{service.url}/purge"
        await add_headers(admin, namespace, "headers", url, Authorization="Bearer x")
        target = {"http": {"url": url, "headersFrom": [{"secretRef": {"name": "headers"}}]}}
        resource = await dirty(place.going, place.going.aws.source(), target)
        async with deleted(place):
            await failed(resource, "Secret headers")
            await resource.gone()
        assert_given_up(place, "Secret headers")
        assert service.requests == []
