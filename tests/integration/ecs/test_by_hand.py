"""What CONTRIBUTING has people type to see a service kept with the doubles: its Python and its manifest."""

import asyncio
import re
import sys
from collections.abc import Mapping
from string import Template

import pytest

from awsdoubles.stack import environment
from testbed.admin import path
from testbed.paths import CHECKOUT
from testing import manifests
from testing.ecstasks import PLURAL, EcsTasks, Task
from testing.pages import blocks

_DOCUMENT = re.compile(r"^([^\n]*) <<EOF\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)


def documents() -> list[tuple[str, str]]:
    """(command, what it reads) of CONTRIBUTING's blocks about ECS, in their order."""
    about = [one.text for one in blocks() if one.page == "CONTRIBUTING.md" and "awsdoubles.ecs" in one.text]
    return [found for text in about for found in _DOCUMENT.findall(text)]


async def run(script: str, env: Mapping[str, str]) -> None:
    """Run Python as the page does, from the checkout's root."""
    where = {**env, "PYTHONPATH": "dev"}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=where, cwd=CHECKOUT)
    assert await process.wait() == 0


@pytest.mark.slow
async def test_the_service_by_hand_follows_its_container_instances(place: EcsTasks) -> None:
    made, manifest, joined = documents()
    assert [command.split()[0] for command, _ in (made, manifest, joined)] == [
        "PYTHONPATH=dev",
        "kubectl",
        "PYTHONPATH=dev",
    ]
    urls = place.endpoints
    env = environment(urls["sqs"], urls["sqs"], ec2_url=urls["sqs"], ecs_url=urls["ecs"])
    await run(made[1], env)
    body = manifests.load(Template(manifest[1]).substitute(env))
    # The operator of these tests is in a namespace of its own, and is led to the doubles by each task.
    del body["metadata"]["namespace"]
    body["spec"]["ecs"]["aws"]["endpointURLs"] = urls
    await place.admin.create(path(PLURAL, place.namespace), body)
    task = Task(place.admin, place.namespace, body["metadata"]["name"])
    place.made.append(task)
    await task.clusters({"prod": 3})
    await task.condition("Ready", "True", "InStep")
    await run(joined[1], env)
    await task.clusters({"prod": 4})
    assert place.desired() == 4
