"""Wrong types in the parts of a template that caretaker reads."""

from typing import Any

import pytest

from caretaker.api.template import MAX_CONTAINERS, wrong_type


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"affinity": 3}, "`spec.template.spec.affinity`", id="a number for a mapping"),
        pytest.param({"nodeSelector": {"a": 1}}, "nodeSelector", id="a label value that is a number"),
        pytest.param(
            {"tolerations": [{"key": True}]}, "tolerations[0].key", id="a key that is a truth value"
        ),
        pytest.param({"containers": [{"env": "A=b"}]}, "containers[0].env", id="variables as text"),
        pytest.param({"containers": [{"env": [{"value": "b"}]}]}, "env[0]", id="a variable without a name"),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": 1}
                    }
                }
            },
            "nodeSelectorTerms",
            id="terms that are a number",
        ),
    ],
)
def test_a_wrong_type_is_named_by_its_path(spec: dict[str, Any], path: str) -> None:
    assert path in wrong_type({"spec": spec})


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"spec": {"containers": [{"name": "a", "image": "b"}]}}, id="the least"),
        pytest.param({"metadata": None, "spec": {"affinity": None, "tolerations": None}}, id="nulls"),
        pytest.param({"spec": {"volumes": "what the dry run will tell"}}, id="what is not ours to read"),
    ],
)
def test_what_caretaker_can_read_passes(template: dict[str, Any]) -> None:
    assert wrong_type(template) == ""


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_more_containers_than_a_pod_can_have_are_refused(field: str) -> None:
    """A Pod of as many as fit into 256 KiB has 26 MB, because each gets variables of its own."""
    message = f"spec.template.spec.{field}: has {MAX_CONTAINERS + 1} items, more than {MAX_CONTAINERS}"
    assert wrong_type({"spec": {field: [{}] * (MAX_CONTAINERS + 1)}}) == message
    assert wrong_type({"spec": {field: [{}] * MAX_CONTAINERS}}) == ""
