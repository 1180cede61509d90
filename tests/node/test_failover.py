"""A leader that stops: the standby acts at once on a new task. A leader whose node hangs: test_nodes.py."""

import time

from caretaker.api.names import LABEL_TASK
from testbed.admin import Admin, path
from testing.customresource import Resource, stands
from testing.nodetasks import task
from testing.release import NAMESPACE, Release, complete, leader


async def test_the_standby_acts_within_3_seconds_of_a_clean_stop(release: Release, admin: Admin) -> None:
    led = await leader(admin)
    await admin.delete(path("pods", NAMESPACE, led))
    since = time.monotonic()
    await admin.create(path("daemontasks", "default"), task("after-stop"))
    await admin.wait_for_all(path("pods", "default"), bool, 60, labels=f"{LABEL_TASK}=after-stop")
    assert time.monotonic() - since < 3
    resource = Resource(admin, path("daemontasks", "default", "after-stop"))
    await resource.when(lambda body: stands(body, "Ready"))
    assert release.logged(led)
    assert await leader(admin) != led
    await complete(admin)
