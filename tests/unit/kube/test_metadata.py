"""What kopf is given of lists and watches can be read, and holds what it reads."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from caretaker.kube.metadata import (
    RECURSION_LIMIT,
    PurePythonDecoder,
    decode_json,
    event_of,
    page_of,
    without_unread,
)

DEPTH = 9_999  # of what the API server takes


@pytest.fixture
def as_operator() -> Iterator[None]:
    """As serve() does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("as_operator")
@pytest.mark.parametrize(
    ("decode", "depth"),
    [
        pytest.param(decode_json, DEPTH, id="as it is read"),
        pytest.param(PurePythonDecoder().decode, min(DEPTH, RECURSION_LIMIT * 2 // 5), id="pure-python"),
    ],
)
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
def test_whatever_the_api_server_lets_in_can_be_read(
    decode: Callable[[str], Any], depth: int, opening: str, closing: str
) -> None:
    found = decode('{"b": "\\u00e9\\n", "deep": ' + opening * depth + "1.5" + closing * depth + "}")
    assert found["b"] == "é\n"
    deep = found["deep"]
    for _ in range(depth):
        (deep,) = deep.values() if isinstance(deep, dict) else deep
    assert deep == 1.5


DEEP: Final = """
import json, sys, threading
from caretaker.daemontask.ecs import instances as notices
from caretaker.kube.metadata import RECURSION_LIMIT
from caretaker.s3refresh import envelope as events

sys.setrecursionlimit(RECURSION_LIMIT)
BODIES = ('%s', '{"Records":[{"eventVersion":%s}]}', '{"Records":[{"userIdentity":{"principalId":%s}}]}',
          '{"detail-type":"ECS Container Instance State Change","detail":%s}')

def read():
    for levels in (9_000, 11_990, 24_000, 200_000):
        for opening, closing in (('{"a":', "}"), ("[", "]")):
            for body in BODIES:
                text = body % (opening * levels + "1" + closing * levels)
                assert events.parse(text).malformed, text[:80]
                notices.parse(text)
                try:
                    repr(json.loads(text))
                except RecursionError:
                    pass

read()
thread = threading.Thread(target=read)
thread.start()
thread.join()
print("read")
"""


@pytest.mark.slow
def test_no_message_ends_the_process_however_deep_it_nests() -> None:
    ended = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr[-500:]


@pytest.mark.parametrize(
    "text", ["{}", '{"a": [1, -2e3, true, null, "\\ud83d\\ude00"], "b": {"c": ""}}', " [ ] "]
)
def test_the_patient_decoder_reads_as_json_does(text: str) -> None:
    assert PurePythonDecoder().decode(text) == json.loads(text)


ONE: Final = {
    "kind": "PartialObjectMetadata",
    "metadata": {
        "name": "a",
        "resourceVersion": "7",
        "labels": {"l": "x"},
        "annotations": {"a": "1"},
        "managedFields": [{"manager": "kubectl"}],
    },
}


def changed(one: dict[str, Any], kind: str = "ADDED") -> Any:
    return json.loads(event_of(json.dumps({"type": kind, "object": one}).encode()))


def annotated(**annotations: str) -> dict[str, Any]:
    return {**ONE, "metadata": {**ONE["metadata"], "annotations": annotations}}  # type: ignore[dict-item]


def digest(one: dict[str, Any]) -> str:
    found: str = changed(one)["object"]["metadata"]["annotations"]["digest"]
    return found


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_of_a_change_what_is_read_is_kept(kind: str) -> None:
    found = changed(ONE, kind)
    assert len(found["object"]["metadata"].pop("annotations")["digest"]) == 32
    meta = {"name": "a", "resourceVersion": "7"}
    assert found == {"type": kind, "object": {"kind": "PartialObjectMetadata", "metadata": meta}}


def test_the_digest_is_that_of_all_annotations() -> None:
    assert digest(annotated(a="1", b="2")) == digest(annotated(a="1", b="2"))
    assert len({digest(annotated(**{key: value})) for key in "ab" for value in "12"}) == 4


def test_a_page_has_the_same_objects_as_the_watch() -> None:
    items = [ONE, {"metadata": {"name": "b", "generation": 2, "deletionTimestamp": "t", "uid": "u"}}]
    page = {"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": "c"}}
    found = page_of(json.dumps({**page, "items": items}).encode())
    assert found == {**page, "items": [changed(one)["object"] for one in items]}
    assert page_of(b'{"metadata": {}, "items": null}') == {"metadata": {}, "items": []}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"type": "ERROR", "object": {"kind": "Status", "metadata": null}}', id="an error"),
        pytest.param(b'{"type": "BOOKMARK", "object": {"metadata": {"name": ""}}}', id="a bookmark"),
        pytest.param(b'{"type": "ADDED", "object": {"metadata": null}}', id="no metadata"),
        pytest.param(b"<html>", id="a page of a proxy"),
    ],
)
def test_what_is_no_change_stays_as_it_is(line: bytes) -> None:
    assert event_of(line) == line


@pytest.mark.usefixtures("as_operator")
def test_managed_fields_that_nest_deep_are_left_out() -> None:
    deep = f"[{'[' * (DEPTH - 10)}{']' * (DEPTH - 10)}]"
    text = json.dumps(ONE).replace('[{"manager": "kubectl"}]', deep)
    event, page = f'{{"type": "ADDED", "object": {text}}}', f'{{"metadata": {{}}, "items": [{text}]}}'
    expected = changed(ONE)
    assert json.loads(event_of(event.encode())) == expected
    assert page_of(page.encode()) == {"metadata": {}, "items": [expected["object"]]}
    assert json.loads(event_of(without_unread(event.encode()))) == expected
    # From Python 3.12 on, the decoder does not read it. With other objects it is not read in the slow way.
    assert page_of(page.encode(), alone=False) in (None, page_of(page.encode()))
