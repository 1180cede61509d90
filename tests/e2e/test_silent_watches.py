"""harvester#9880: watches that stay open and tell nothing any more are noticed, and recover by themselves.

Nothing scales the 70 s of silence that this takes; the three wait for it side by side.
"""

import time
from pathlib import Path

import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.faults import Match, Stall
from testing.rollouts import fresh_image, rollouts, together

STALL_SECONDS = 70  # of silence, after which a watch is given up; the same in kopf
RESOURCES = ("nodes", "pods", "daemontasks")


@pytest.mark.slow
async def test_a_watch_that_falls_silent_recovers_by_itself(
    cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """One rollout for each resource: a change that is told on a silent watch only is made all the same."""

    async def one(resource: str) -> None:
        try:
            await falls_silent(resource, cluster, admin, tmp_path)
        except Exception as error:
            error.add_note(f"the watch of {resource} fell silent")
            raise

    await together(one(resource) for resource in RESOURCES)


async def falls_silent(resource: str, cluster: Cluster, admin: Admin, folder: Path) -> None:
    async with rollouts(cluster, admin, folder) as place:
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
