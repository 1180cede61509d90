"""docs/spec/daemontask.md leaves nothing out: every field, condition, reason and name stands on it."""

import re
from pathlib import Path

import pytest

from caretaker.api import names
from caretaker.api.conditions import EcsReason, Reason
from caretaker.registry import DAEMON_TASK
from testing import manifests
from testing.examplefiles import examples_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spec" / "daemontask.md").read_text()
SCHEMA = manifests.load((ROOT / "crds" / "daemontasks.yaml").read_text())["spec"]["versions"][0]["schema"]
PARTS = SCHEMA["openAPIV3Schema"]["properties"]
# Names of S3AggregatedRefresh, which has a page of its own.
OTHERS = {
    names.LABEL_REFRESH,
    names.LABEL_CLAIM,
    names.ENV_PAYLOAD,
    names.SECRET_HEADERS,
    names.SECRET_HOSTS,
    names.REFRESH_AT,
    names.REFRESH_FOLDERS,
}
CODE = {word for span in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w./-]+", span)}


def constants(holder: object, prefix: str = "") -> list[str]:
    return [
        v
        for k, v in vars(holder).items()
        if k.startswith(prefix) and k.isupper() and isinstance(v, str) and v not in OTHERS
    ]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(list(PARTS["spec"]["properties"]), id="fields of spec"),
        pytest.param(
            list(PARTS["spec"]["properties"]["failurePolicy"]["properties"]), id="fields of failurePolicy"
        ),
        pytest.param(list(PARTS["status"]["properties"]), id="fields of status"),
        pytest.param(
            list(PARTS["status"]["properties"]["failedNodes"]["items"]["properties"]),
            id="fields of a failed node",
        ),
        pytest.param(
            list(PARTS["status"]["properties"]["blockedNodes"]["items"]["properties"]),
            id="fields of a blocked node",
        ),
        pytest.param(
            list(PARTS["spec"]["properties"]["results"]["items"]["properties"]), id="fields of a result"
        ),
        pytest.param(
            list(PARTS["status"]["properties"]["results"]["items"]["properties"]), id="figures of a result"
        ),
        pytest.param(
            list(PARTS["status"]["properties"]["resultErrors"]["items"]["properties"]),
            id="fields of an error",
        ),
        pytest.param(list(PARTS["spec"]["properties"]["ecs"]["properties"]), id="fields of ecs"),
        pytest.param(
            list(PARTS["spec"]["properties"]["ecs"]["properties"]["aws"]["properties"]),
            id="fields of ecs.aws",
        ),
        pytest.param(
            list(PARTS["status"]["properties"]["ecs"]["items"]["properties"]), id="fields of a cluster"
        ),
        pytest.param(constants(EcsReason), id="reasons of the ECS target"),
        pytest.param(constants(Reason), id="reasons"),
        pytest.param(
            [n for n in constants(names) if "/" in n and n != names.API_VERSION], id="labels and annotations"
        ),
        pytest.param(constants(names, "ENV_"), id="environment variables"),
        pytest.param([path.stem for path in examples_of(DAEMON_TASK)], id="examples"),
    ],
)
def test_the_page_tells_all(words: list[str], request: pytest.FixtureRequest) -> None:
    assert words
    what = request.node.callspec.id
    assert [
        w for w in words if w not in CODE and f"examples/{w}.yaml" not in PAGE and f"name: {w}" not in PAGE
    ] == [], f"docs/spec/daemontask.md: a row for these {what}, each in backticks"
