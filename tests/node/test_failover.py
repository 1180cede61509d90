"""A leader that dies, and one that is stopped: the standby acts in time, on a task that nobody has seen
before."""

import time
from collections.abc import Awaitable, Callable

from caretaker.api.names import LABEL_TASK
from testbed.admin import Admin, path
from testing.customresource import Resource, stands
from testing.nodetasks import task
from testing.release import NAMESPACE, Release, complete, kill, leader


async def seconds_until_it_acts(admin: Admin, name: str, end: Callable[[], Awaitable[None]]) -> float:
    """From the leader's end until a new task has its pod; that task comes to its end, too."""
    await end()
    since = time.monotonic()
    await admin.create(path("daemontasks", "default"), task(name))
    await admin.wait_for_all(path("pods", "default"), bool, 60, labels=f"{LABEL_TASK}={name}")
    spent = time.monotonic() - since
    resource = Resource(admin, path("daemontasks", "default", name))
    await resource.when(lambda body: stands(body, "Ready"))
    return spent


async def test_the_standby_acts_within_20_seconds_of_the_leaders_death(
    release: Release, admin: Admin
) -> None:
    led = await leader(admin)

    async def die() -> None:
        await kill(admin, led)
        assert await leader(admin) == led, "the Lease was not handed over, it has to run out"

    spent = await seconds_until_it_acts(admin, "after-death", die)
    assert spent < 20
    assert release.logged(led), "what the dead one wrote is judged, too"
    assert await leader(admin) != led
    await complete(admin)


async def test_the_standby_acts_within_3_seconds_of_a_clean_stop(release: Release, admin: Admin) -> None:
    led = await leader(admin)
    stop = admin.delete(path("pods", NAMESPACE, led))
    spent = await seconds_until_it_acts(admin, "after-stop", lambda: stop)
    assert spent < 3
    assert release.logged(led)
    assert await leader(admin) != led
    await complete(admin)
