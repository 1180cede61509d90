"""`make release-check`: what dist/ has is verified, installed, tested, upgraded, rolled back and uninstalled.

The tests are the life of one installation, in this order.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from realnode.kind import KindNode
from release.checks import ReleaseError
from release.publish import Publisher
from testbed.admin import Admin, path
from testing.aws import Aws
from testing.cluster import Nodes
from testing.customresource import Resource, stands
from testing.installed import block
from testing.leading import Leading
from testing.nodetasks import task
from testing.release import DEPLOYMENT, NAMESPACE, PODS, Release, complete
from testing.underway import TAINTS, Fleet, UnderWay

from .conftest import Figures, Say, chart_of, stand_in

FAKE: Final = 200
FEW: Final = 3
LEADS_SECONDS: Final = 15.0
WITHOUT_SECONDS: Final = 3.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def fleet(admin: Admin, ec2: Ec2) -> AsyncIterator[Fleet]:
    """Fake nodes of this test."""
    made = Fleet(admin, ec2.control)
    await made.add(FAKE)
    yield made
    await made.gone()
    await asyncio.to_thread(ec2.control.remove, made.instances)


@pytest.fixture
def not_installed(_release: Release) -> Release:
    """The version before, to be installed by the test."""
    return _release


@pytest.fixture
def begin(admin: Admin, fleet: Fleet, aws: Aws, storage_gateway: StorageGateway) -> Callable[[str], UnderWay]:
    """Work of this test, by its name."""
    return lambda name: UnderWay(name, admin, fleet, aws, storage_gateway.control)


class TestSignatures:
    def test_all_that_is_published_verifies(self, publisher: Publisher, key: Path, published: str) -> None:
        for what in (*publisher.images.values(), published):
            publisher.verify(key, what)
        publisher.verify_sums(key, publisher.dist.sums)

    @pytest.mark.usefixtures("published")
    def test_a_wrong_key_is_refused(self, publisher: Publisher) -> None:
        other = publisher.key("other")
        for what in publisher.images.values():
            with pytest.raises(ReleaseError, match=r"cosign verify of .* is refused"):
                publisher.verify(other, what)
        with pytest.raises(ReleaseError, match=r"cosign verify-blob of .* is refused"):
            publisher.verify_sums(other, publisher.dist.sums)

    def test_a_changed_chart_is_refused(
        self, publisher: Publisher, key: Path, published: str, tmp_path: Path
    ) -> None:
        """Under the name of the real one, which comes back afterwards."""
        changed = publisher.push_chart(stand_in(publisher.dist, publisher.dist.version, tmp_path))
        try:
            assert changed != published
            with pytest.raises(ReleaseError, match=r"cosign verify of .* is refused"):
                publisher.verify(key, changed)
            by_tag = f"{publisher.place}/charts/caretaker:{publisher.dist.version}"
            with pytest.raises(ReleaseError, match=r"cosign verify of .* is refused"):
                publisher.verify(key, by_tag)
        finally:
            assert publisher.push_chart(publisher.dist.chart) == published
        publisher.verify(key, by_tag)

    @pytest.mark.usefixtures("published")
    def test_a_changed_sum_is_refused(self, publisher: Publisher, key: Path, tmp_path: Path) -> None:
        changed = tmp_path / "SHA256SUMS"
        text = publisher.dist.sums.read_text()
        changed.write_text(f"{'0' if text[0] != '0' else '1'}{text[1:]}")
        with pytest.raises(ReleaseError, match=r"cosign verify-blob of .* is refused"):
            publisher.verify_sums(key, changed)


async def test_it_leads_soon_after_it_is_installed(
    not_installed: Release, node: KindNode, previous: Publisher, admin: Admin, figures: Figures, say: Say
) -> None:
    """Images are there, as on a node that has run it before; they came from the registry, by digest."""
    say("images are pulled by digest, and the version before is installed")
    image = previous.dist.image("operator")
    await asyncio.to_thread(node.pull, image)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await admin.create(path("namespaces"), {"metadata": {"name": NAMESPACE, "labels": labels}})
    since = time.monotonic()
    async with asyncio.TaskGroup() as both:  # a refusal by helm ends the wait
        both.create_task(asyncio.to_thread(not_installed.install))
        async with Leading(admin) as seen:
            pass
    figures.add("helm install until it leads", seen.since - since, LEADS_SECONDS, " s")
    await complete(admin)
    for pod in await admin.list(path("pods", NAMESPACE), labels=PODS):
        assert pod["spec"]["containers"][0]["image"] == image


async def test_the_charts_test_passes(release: Release, say: Say) -> None:
    say("helm test")
    assert "every node has run it" in await asyncio.to_thread(release.test)


async def test_an_upgrade_repeats_forgets_and_loses_nothing(
    release: Release,
    admin: Admin,
    begin: Callable[[str], UnderWay],
    node: KindNode,
    publisher: Publisher,
    figures: Figures,
    say: Say,
) -> None:
    version = publisher.dist.version
    await asyncio.to_thread(node.pull, publisher.dist.image("operator"))
    say(f"upgrade to {version} while {FAKE} nodes are rolled out, refreshed and enforced")
    release.chart = chart_of(publisher)
    await _while(begin("upgrade"), 2, release.upgrade, admin, figures)
    for pod in await admin.list(path("pods", NAMESPACE), labels=PODS):
        assert pod["metadata"]["labels"]["helm.sh/chart"] == f"caretaker-{version}"


async def test_a_rollback_repeats_forgets_and_loses_nothing(
    release: Release,
    admin: Admin,
    begin: Callable[[str], UnderWay],
    previous: Publisher,
    figures: Figures,
    say: Say,
) -> None:
    version = previous.dist.version
    say(f"rollback to {version}, likewise")
    await _while(begin("rollback"), 3, release.rollback, admin, figures)
    for pod in await admin.list(path("pods", NAMESPACE), labels=PODS):
        assert pod["metadata"]["labels"]["helm.sh/chart"] == f"caretaker-{version}"


async def _while(
    work: UnderWay, hop_limit: int, change: Callable[[], None], admin: Admin, figures: Figures
) -> None:
    """Change the operator while work is under way, and measure."""
    async with work.begun(hop_limit):
        before = {pod["metadata"]["name"] for pod in await admin.list(path("pods", NAMESPACE), labels=PODS)}
        async with Leading(admin) as seen:
            since = time.monotonic()
            await asyncio.to_thread(change)
            spent = time.monotonic() - since
            assert await work.goes_on(), "the work ended before the change did: it shows nothing"
            await complete(admin)
            # The last of the old ones may have led until just now.
            await seen.until(lambda pod: bool(pod) and pod not in before)
    figures.add(f"{work.name}: helm is done", spent, None, " s")
    figures.add(f"{work.name}: without a leader", seen.without(), WITHOUT_SECONDS, " s")
    figures.add(f"{work.name}: no run started for", work.pause, None, " s")
    figures.add(f"{work.name}: events", len(work.written), None)
    for what, count in work.judged(hop_limit).items():
        figures.add(f"{work.name}: {what}", count)
    await work.clear()


async def test_an_uninstallation_leaves_resources_and_nothing_of_the_release(
    release: Release, admin: Admin, figures: Figures, say: Say
) -> None:
    """As the guide says: what users made stays, and can be deleted without an operator."""
    say("uninstall")
    nodes = Nodes(admin, "kept")
    await nodes.add(FEW, taints=TAINTS)
    pod = {"nodeSelector": nodes.selector, "tolerations": [{"operator": "Exists"}]}
    tasks = path("daemontasks", "default")
    await admin.create(tasks, task("kept", pod=pod))
    kept = Resource(admin, f"{tasks}/kept")
    await kept.when(lambda found: stands(found, "Ready"))
    await asyncio.to_thread(release.uninstall)
    await admin.wait_gone(DEPLOYMENT)
    await admin.wait_for_all(path("pods", NAMESPACE), lambda pods: not pods, 60, labels=PODS)
    _, *of_release = block("uninstall.md", "## What is left").splitlines()
    left = await asyncio.to_thread(release.shell, "\n".join(of_release))
    of_helm = f"kubectl get secrets -n {NAMESPACE} -l owner=helm -o name"
    left += await asyncio.to_thread(release.shell, of_helm)
    named = [line for line in left.splitlines() if line.strip() and not line.startswith("NAME")]
    figures.add("uninstall: objects left", len(named))
    stays = await kept.get()
    assert stands(stays, "Ready")
    assert stays["status"]["succeeded"] == FEW
    for body in await admin.list(tasks):
        await admin.delete(f"{tasks}/{body['metadata']['name']}")
        await admin.wait_gone(f"{tasks}/{body['metadata']['name']}")
    await admin.delete(path("namespaces", name=NAMESPACE))
    await admin.wait_gone(path("namespaces", name=NAMESPACE), 60)
