"""What kopf is given of lists and watches can be read, and holds what it reads."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from caretaker.kube.metadata import RECURSION_LIMIT, PatientDecoder, read, shallow

DEPTH = 9_999  # of what the API server takes


@pytest.fixture
def as_operator() -> Iterator[None]:
    """As serve() does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("as_operator")
@pytest.mark.parametrize("decode", [read, PatientDecoder().decode])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
def test_whatever_the_api_server_lets_in_can_be_read(
    decode: Callable[[str], Any], opening: str, closing: str
) -> None:
    found = decode('{"b": "\\u00e9\\n", "deep": ' + opening * DEPTH + "1.5" + closing * DEPTH + "}")
    assert found["b"] == "é\n"
    deep = found["deep"]
    for _ in range(DEPTH):
        (deep,) = deep.values() if isinstance(deep, dict) else deep
    assert deep == 1.5


@pytest.mark.parametrize(
    "text", ["{}", '{"a": [1, -2e3, true, null, "\\ud83d\\ude00"], "b": {"c": ""}}', " [ ] "]
)
def test_the_patient_decoder_reads_as_json_does(text: str) -> None:
    assert PatientDecoder().decode(text) == json.loads(text)


def test_managed_fields_are_left_out_and_nothing_else() -> None:
    meta = {"name": "a", "resourceVersion": "7", "annotations": {"managedFields": "mine"}}
    one = {"kind": "PartialObjectMetadata", "metadata": {**meta, "managedFields": [{"manager": "kubectl"}]}}
    assert shallow({"type": "ADDED", "object": json.loads(json.dumps(one))})["object"]["metadata"] == meta
    found = shallow({"metadata": {"resourceVersion": "9"}, "items": [one, {"metadata": {"name": "b"}}]})
    assert [item["metadata"] for item in found["items"]] == [meta, {"name": "b"}]
    assert shallow({"metadata": {}, "items": None}) == {"metadata": {}, "items": None}
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    assert shallow(dict(status)) == status
