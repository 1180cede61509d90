"""What goes on beside the tests of this folder."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from testbed.cluster import Cluster
from testing.faults import Match, Stall
from testing.meanwhile import Meanwhile
from testing.rollouts import fresh_image, rollouts

STALL_SECONDS = 70  # of silence, after which a watch is given up; the same in kopf
RESOURCES = ("nodes", "pods", "daemontasks")


@pytest.fixture(autouse=True)
def _silence_begins(request: pytest.FixtureRequest) -> None:
    """The first test begins what a later one waits for, if that is to run at all."""
    if any("silent_watches" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("silent_watches")


@pytest.fixture(scope="session")
def silent_watches(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meanwhile]:
    """One rollout for each resource, whose watch falls silent; see test_silent_watches.py."""
    folder = tmp_path_factory.mktemp("silent-watches")
    with Meanwhile({name: partial(falls_silent, name, cluster, folder) for name in RESOURCES}) as works:
        yield works


async def falls_silent(resource: str, cluster: Cluster, folder: Path) -> None:
    """A change that is told on a silent watch only is made all the same."""
    async with cluster.admin() as admin, rollouts(cluster, admin, folder) as place:
        await place.nodes.add(2)
        _, proxy = await place.operator()
        task = await place.task()
        await place.converged(task, succeeded=2)
        began = time.time()
        silent = Match(verb="watch", resource=resource, where=lambda call: call.time < began)
        with proxy.fault(silent, Stall()):
            if resource == "nodes":
                await place.nodes.add(1)
            else:
                await task.edit(template=place.template(image=fresh_image()))
            expected = 3 if resource == "nodes" else 2
            await place.converged(task, succeeded=expected, timeout=STALL_SECONDS + 60)
        await place.history.check(backoff_limit=0)
