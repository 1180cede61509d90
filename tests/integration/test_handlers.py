"""Which kinds are watched: those that the cluster has and that may be listed, whatever is with the others.

On a control plane of its own, since the CRDs are everybody's.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from caretaker import handlers
from caretaker.handlers import CustomResources
from caretaker.kube.client import KubeClient
from caretaker.registry import DAEMON_TASK, INSTALL_CRDS, S3_AGGREGATED_REFRESH, KindInfo
from caretaker.runtime.work_queue import Key
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.accounts import bind, kubeconfig_of
from testing.cluster import apply_crd, crd, delete_crd
from testing.customresource import TIMEOUT
from testing.daemontasks import task
from testing.s3refreshes import refresh

pytestmark = pytest.mark.slow

KINDS = (DAEMON_TASK, S3_AGGREGATED_REFRESH)
SPECS = {DAEMON_TASK: task(suspend=True), S3_AGGREGATED_REFRESH: refresh(suspend=True)}
OURS = "caretaker.handlers"
Told = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "ABSENT_SECONDS", 1.0)


class Place:
    """A namespace, what is made in it, and what was heard of that."""

    def __init__(self, admin: Admin, cluster: Cluster, namespace: str) -> None:
        self.admin = admin
        self.cluster = cluster
        self.namespace = namespace
        self._heard: asyncio.Queue[Key] = asyncio.Queue()

    async def apply(self, *kinds: KindInfo) -> None:
        for info in kinds:
            await apply_crd(self.admin, crd(info.plural))

    async def remove(self, *kinds: KindInfo) -> None:
        """Delete CRDs, and wait until they are gone with all objects."""
        for info in kinds:
            await delete_crd(self.admin, f"{info.plural}.caretaker.dev")

    @asynccontextmanager
    async def watching(self, kubeconfig: Path | None = None) -> AsyncIterator[CustomResources]:
        """Both kinds are asked for."""
        async with await KubeClient.connect(str(kubeconfig or self.cluster.kubeconfig)) as client:
            resources = CustomResources(client, KINDS, None, self._heard.put_nowait)
            running = asyncio.create_task(resources.run())
            try:
                yield resources
            finally:
                running.cancel()
                await resources.stop()

    async def served(self, info: KindInfo) -> None:
        """Make an object, and return once it was heard of."""
        name = f"o-{secrets.token_hex(4)}"
        body: Json = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": info.kind,
            "metadata": {"name": name},
            "spec": SPECS[info],
        }
        await self.admin.create(path(info.plural, self.namespace), body)
        async with asyncio.timeout(TIMEOUT):
            while await self._heard.get() != Key(info.kind, self.namespace, name):
                pass


@pytest.fixture
async def place(bare: Cluster) -> AsyncIterator[Place]:
    async with bare.admin() as admin:
        name = f"t-{secrets.token_hex(4)}"
        await admin.create(path("namespaces"), {"metadata": {"name": name}})
        made = Place(admin, bare, name)
        yield made
        await made.remove(*KINDS)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """What was complained of so far."""
    caplog.set_level(logging.INFO, OURS)
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name == OURS and record.levelno >= logging.WARNING
    ]


async def until(holds: Callable[[], bool]) -> None:
    """Nothing tells when the operator has looked."""
    async with asyncio.timeout(TIMEOUT):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def missing(info: KindInfo) -> str:
    """The line about a CRD."""
    return f"CRD missing: {info.plural}: {INSTALL_CRDS}; waiting for it"


@pytest.mark.parametrize(("there", "absent"), [KINDS, KINDS[::-1]], ids=lambda info: info.kind)
async def test_a_kind_without_its_crd_keeps_no_other_waiting_and_is_served_once_it_is_applied(
    place: Place, told: Told, there: KindInfo, absent: KindInfo
) -> None:
    await place.apply(there)
    async with place.watching():
        await place.served(there)
        assert told() == [missing(absent)]
        await place.apply(absent)
        await place.served(absent)
        await place.served(there)
    assert len(told()) == 1


async def test_without_any_crd_there_is_one_line_and_the_first_to_be_applied_is_served(
    place: Place, told: Told
) -> None:
    async with place.watching():
        await until(lambda: told() != [])
        assert told() == [f"no caretaker.dev/v1alpha1 in this cluster: {INSTALL_CRDS}; waiting for it"]
        await place.apply(DAEMON_TASK)
        await place.served(DAEMON_TASK)
    assert told()[1:] == [f"CRD missing: {S3_AGGREGATED_REFRESH.plural}: {INSTALL_CRDS}; waiting for it"]


@pytest.mark.parametrize(("stays", "goes"), [KINDS, KINDS[::-1]], ids=lambda info: info.kind)
async def test_a_kind_whose_crd_is_deleted_ends_no_other_and_is_served_when_it_is_back(
    place: Place, told: Told, stays: KindInfo, goes: KindInfo
) -> None:
    await place.apply(*KINDS)
    async with place.watching():
        await place.served(stays)
        await place.served(goes)
        assert told() == []
        await place.remove(goes)
        await until(lambda: told() != [])
        await place.served(stays)
        await place.apply(goes)
        await place.served(goes)
        await place.served(stays)
    # It is a change, and no failure that is waited after.
    assert told() == [missing(goes)]


async def test_a_kind_that_may_not_be_listed_keeps_no_other_waiting_and_is_served_once_it_may(
    place: Place, told: Told, tmp_path: Path
) -> None:
    await place.apply(*KINDS)
    config = await kubeconfig_of(place.admin, place.cluster, place.namespace, "operator", tmp_path / "config")
    await bind(place.admin, role(place.namespace, DAEMON_TASK), "operator", place.namespace)
    async with place.watching(config):
        await place.served(DAEMON_TASK)
        (line,) = told()
        assert 'cannot list resource "s3aggregatedrefreshes"' in line
        await bind(place.admin, role(place.namespace, *KINDS), "operator", place.namespace)
        await place.served(S3_AGGREGATED_REFRESH)
        await place.served(DAEMON_TASK)
    assert len(told()) == 1


def role(name: str, *kinds: KindInfo) -> Json:
    """May list and watch these kinds in all namespaces."""
    resources = [info.plural for info in kinds]
    rule = {"apiGroups": ["caretaker.dev"], "resources": resources, "verbs": ["list", "watch"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule],
    }
