"""The errors made from refusing responses, also from other servers."""

import pytest

from caretaker.kube.errors import error_from


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
