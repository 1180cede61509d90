"""A revision is of what the API server would store: other words for a template run nothing again."""

import asyncio
import subprocess
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import gotools
from caretaker.api import podtypes
from caretaker.api.daemontask import Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.pods import Start, build, revision_of
from testbed.admin import Admin, ApiError, Json, path
from testing.templates import FULL, changes, noisy
from testing.world import World

START = Start("node", "uid", 1, 1, "key", "", "", "NewNode")
# Stored as they come, though empty they say nothing.
HOLLOW = (
    *("affinity", "nodeAffinity", "podAffinity", "podAntiAffinity"),
    *("securityContext", "capabilities", "lifecycle", "dnsConfig"),
)


async def test_other_words_for_a_template_run_nothing_again_and_another_meaning_does(world: World) -> None:
    await world.join(2)
    task = await world.task()
    first = await task.done(2)
    words: Json = {
        "metadata": {"creationTimestamp": None, "labels": {}},
        "spec": {
            **world.template()["spec"],
            "securityContext": {},
            "affinity": {"nodeAffinity": {}},
            "hostNetwork": False,
            "dnsPolicy": "ClusterFirst",
            "containers": [{"name": "main", "image": "test:1", "resources": {}, "env": []}],
        },
    }
    await task.put_template(words)
    second = await task.when(lambda t: t["status"]["observedGeneration"] > first["metadata"]["generation"])
    assert second["status"]["currentRevision"] == first["status"]["currentRevision"]
    assert second["status"]["succeeded"] == 2
    words["spec"]["containers"][0]["env"] = [{"name": "A"}]
    await task.put_template(words)
    third = await task.when(lambda t: t["status"]["currentRevision"] != first["status"]["currentRevision"])
    await task.done(2)
    stored = third["spec"]["template"]
    assert third["status"]["currentRevision"] == revision_of(Spec(template=stored))
    assert len(world.kubelet.ran) == 4


@pytest.mark.slow
async def test_templates_of_one_revision_are_one_pod_to_the_api_server(admin: Admin, namespace: str) -> None:
    """Of random words for random meanings; the other way round a revision may tell more apart."""
    meanings = [FULL, *changes(FULL)]
    templates = [*meanings, *_drawn(st.sampled_from(meanings).flatmap(noisy), 150), *_drawn(noisy(FULL), 50)]
    found: dict[str, dict[str, Json]] = {}
    gate = asyncio.Semaphore(16)
    pods = await asyncio.gather(*(_stored(admin, namespace, template, gate) for template in templates))
    for template, stored in zip(templates, pods, strict=True):
        found.setdefault(revision_of(Spec(template=template)), {})[str(stored)] = template
    apart = [list(same.values()) for same in found.values() if len(same) > 1]
    assert apart == []
    assert len(found) > 90


async def test_the_types_are_those_of_kubernetes() -> None:
    printed = subprocess.run([gotools.path("podtypes")], check=True, capture_output=True, text=True)  # noqa: ASYNC221
    assert podtypes.TEXT.strip() == printed.stdout.strip()


def _drawn(strategy: st.SearchStrategy[Json], count: int) -> list[Json]:
    found: list[Json] = []

    @settings(max_examples=count, phases=[Phase.generate])
    @given(strategy)
    def collect(template: Json) -> None:
        found.append(template)

    collect()
    return found


async def _stored(admin: Admin, namespace: str, template: Json, gate: asyncio.Semaphore) -> Any:
    """The Pod as the API server would store it; None where it refuses it."""
    spec = Spec(template=template)
    body = build(WireMeta(name="t", namespace=namespace, uid="u"), spec, "revision", START)
    try:
        async with gate:
            made = await admin.create(f"{path('pods', namespace)}?dryRun=All&fieldValidation=Strict", body)
    except ApiError:
        return None
    kept = {key: made["metadata"].get(key) for key in ("labels", "annotations")}
    return _ordered({**kept, "spec": made["spec"]})


def _ordered(value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if isinstance(value, str) and value.startswith("kube-api-access-"):
        return "kube-api-access"  # the volume of the ServiceAccount's token, named at random
    if not isinstance(value, dict):
        return value
    inner = {key: _ordered(value[key]) for key in sorted(value)}
    return {key: item for key, item in inner.items() if not (key in HOLLOW and not item)}
