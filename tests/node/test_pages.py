"""The guides' commands that look into the operator's pods, typed as they stand there."""

import asyncio

from realnode.registry import Registry
from testbed.admin import Admin, path
from testing.release import NAMESPACE, PODS, Release


async def test_the_guides_commands_about_pods(release: Release, admin: Admin, registry: Registry) -> None:
    well, told, found = await asyncio.to_thread(typed, release)
    pods = [pod["metadata"]["name"] for pod in await admin.list(path("pods", NAMESPACE), labels=PODS)]
    assert "daemontask.caretaker.dev/hello condition met" in well
    assert [name for name in pods if f"{name} " not in well] == []
    assert "Succeeded" in told
    assert [name for name in pods if f"pod/{name} " not in found] == []
    assert '"level"' in found
    url = path("daemontasks", "default", "hello")
    await admin.delete(url)
    await admin.wait_gone(url)


def typed(release: Release) -> tuple[str, str, str]:
    """What the three blocks print."""
    return (
        release.documented("install.md", "## Is it well?"),
        release.documented("operations.md", "## First look", 1, NAME="hello", NS="default"),
        release.documented("operations.md", "### CaretakerDown"),
    )
