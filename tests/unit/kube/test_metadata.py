"""What kopf is given of lists and watches can be read, and holds what it reads."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from caretaker.kube.metadata import RECURSION_LIMIT, PurePythonDecoder, decode_json, without_managed_fields

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
from caretaker.daemontask.ecs import envelope as notices
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


def test_managed_fields_are_left_out_and_nothing_else() -> None:
    meta = {"name": "a", "resourceVersion": "7", "annotations": {"managedFields": "mine"}}
    one = {"kind": "PartialObjectMetadata", "metadata": {**meta, "managedFields": [{"manager": "kubectl"}]}}
    assert (
        without_managed_fields({"type": "ADDED", "object": json.loads(json.dumps(one))})["object"]["metadata"]
        == meta
    )
    found = without_managed_fields(
        {"metadata": {"resourceVersion": "9"}, "items": [one, {"metadata": {"name": "b"}}]}
    )
    assert [item["metadata"] for item in found["items"]] == [meta, {"name": "b"}]
    assert without_managed_fields({"metadata": {}, "items": None}) == {"metadata": {}, "items": None}
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    assert without_managed_fields(dict(status)) == status
