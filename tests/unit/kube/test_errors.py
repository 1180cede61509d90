"""The errors made from refusing responses, also from other servers."""

import json

import pytest

from caretaker.kube.errors import error_from

GOES = ("metadata.namespace", "namespace a is being terminated")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"details": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="one that nests deep"),
        pytest.param(b'{"message": "\xff"}', id="no UTF-8"),
        pytest.param(b"<html>" + b"x" * 1_000_000, id="a page of a proxy"),
        pytest.param(b'{"code": "x"}', id="another type"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_like_others(body: bytes) -> None:
    error = error_from(503, body)
    assert (error.status, error.reason, error.transient) == (503, "", True)
    assert len(error.message) <= 500


@pytest.mark.parametrize(
    ("status", "causes", "terminating"),
    [
        pytest.param(403, [GOES], True, id="as the API server says it"),
        pytest.param(403, [("spec", "no"), GOES], True, id="among other causes"),
        pytest.param(403, [], False, id="another refusal"),
        pytest.param(403, [("metadata.namespace", "not here")], False, id="another cause"),
        pytest.param(403, [("metadata.name", GOES[1])], False, id="another field"),
        pytest.param(409, [GOES], False, id="no refusal"),
    ],
)
def test_a_namespace_that_is_being_deleted_is_known_by_its_cause(
    status: int, causes: list[tuple[str, str]], terminating: bool
) -> None:
    details = {"causes": [{"field": field, "message": message} for field, message in causes]}
    assert error_from(status, json.dumps({"details": details}).encode()).terminating is terminating
