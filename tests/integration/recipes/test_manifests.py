"""Every recipe of docs/recipes.md is accepted by a real API server, with the rights that the page tells."""

import re
import secrets
from collections.abc import AsyncIterator
from typing import Final

import pytest

from testbed.admin import Admin, ApiError, path
from testbed.paths import CHECKOUT
from testing.recipes import documents, pods

PAGE: Final = (CHECKOUT / "docs" / "recipes.md").read_text()
# Recipe -> the Pod Security level that its namespace has to admit, as the table has it.
LEVELS: Final = dict(re.findall(r"^\| \[([\w-]+)\]\(#.*\| `(\w+)`", PAGE, re.MULTILINE))
STRICTER: Final = {"privileged": "baseline", "baseline": "restricted"}
DRY_RUN: Final = "?dryRun=All&fieldValidation=Strict"
PLURALS: Final = {
    "ConfigMap": "configmaps",
    "DaemonTask": "daemontasks",
    "S3AggregatedRefresh": "s3aggregatedrefreshes",
}


@pytest.fixture
async def namespaces(admin: Admin) -> AsyncIterator[dict[str, str]]:
    """Pod Security level -> a namespace that enforces it."""
    made = {
        level: f"pss-{level}-{secrets.token_hex(3)}" for level in ("privileged", "baseline", "restricted")
    }
    for level, name in made.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        await admin.create(path("namespaces"), {"metadata": {"name": name, "labels": labels}})
        await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
        await admin.create(path("serviceaccounts", name), {"metadata": {"name": "assets-repair"}})
    yield made
    for name in made.values():
        await admin.delete(path("namespaces", name=name))


def test_the_page_has_a_row_for_each() -> None:
    named = set(re.findall(r"\(\.\./examples/([\w-]+)\.yaml\)", PAGE))
    assert len(LEVELS) >= 6
    assert set(LEVELS) <= named
    assert [name for name in LEVELS if f"\n## {name}\n" not in PAGE] == []


@pytest.mark.parametrize("name", LEVELS)
async def test_a_recipe_is_accepted_with_no_more_rights_than_the_page_tells(
    admin: Admin, namespaces: dict[str, str], name: str
) -> None:
    level = LEVELS[name]
    for body in documents(name):
        await admin.create(path(PLURALS[body["kind"]], namespaces[level]) + DRY_RUN, body)
    assert pods(name)
    for spec in pods(name):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "recipe"}, "spec": spec}
        await admin.create(path("pods", namespaces[level]) + DRY_RUN, pod)
        if level in STRICTER:
            with pytest.raises(ApiError, match="violates PodSecurity"):
                await admin.create(path("pods", namespaces[STRICTER[level]]) + DRY_RUN, pod)
