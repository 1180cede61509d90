"""Retry-After: the forms that are parsed, and the bound of the wait."""

import msgspec
import pytest

from caretaker.s3refresh import debounce
from caretaker.s3refresh.debounce import UNKNOWN, Backoff, CallError, Claim, TargetState
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.targets.headers import seconds_of

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
OPTIONS = DebounceOptions(min_interval=60.0, retry_initial=30.0, retry_max=900.0)
CLAIMED = TargetState("bucket", claim=Claim("c1", "me", NOW, Request(("a",), recursive=False), NOW))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("999999999", 999999999.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("", 0.0),
        ("-1", 0.0),
        ("1.5", 0.0),
        ("1e9", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("9" * 10, 0.0),
        ("9" * 10_000, 0.0),
        ("\u0661\u0662", 0.0),
        ("soon", 0.0),
        ("Sun, 99 Nov 1994 08:50:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:50:37 +0000", 0.0),
        ("Sun, 06 Nov 1994 99:99:99 GMT", 0.0),
    ],
)
def test_seconds_and_dates(header: str, seconds: float) -> None:
    assert seconds_of(header, NOW) == seconds


@pytest.mark.parametrize(
    ("retry_after", "jitter", "wait"),
    [
        pytest.param(0.0, 0.1, 60.0, id="none asks"),
        pytest.param(30.0, 0.1, 60.0, id="less than our floor"),
        pytest.param(120.0, 0.1, 120.0, id="more than our backoff"),
        pytest.param(1e9, 0.1, 900.0, id="more than the spec's longest wait"),
    ],
)
def test_it_lengthens_the_backoff_up_to_the_longest(retry_after: float, jitter: float, wait: float) -> None:
    found = debounce.failed(
        CLAIMED, "c1", CallError("HTTP429", "", retry_after), Backoff(OPTIONS, NOW, jitter)
    )
    assert found.failure is not None
    assert found.failure.next_attempt_at == NOW + wait
    kept = debounce.unanswered(
        CLAIMED, "c1", CallError(debounce.UNKNOWN, "", retry_after), Backoff(OPTIONS, NOW, jitter)
    )
    assert kept.failure is not None
    assert kept.failure.next_attempt_at == NOW + wait
    assert (kept.claim, kept.failure.code) == (CLAIMED.claim, UNKNOWN)


def test_it_never_shortens_it() -> None:
    target = msgspec.structs.replace(CLAIMED, failure=debounce.Failure(3, "HTTP503", "", NOW))
    found = debounce.failed(target, "c1", CallError("HTTP503", "", 120.0), Backoff(OPTIONS, NOW, 1.0))
    assert found.failure is not None
    assert found.failure.next_attempt_at == NOW + 240.0
