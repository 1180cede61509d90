"""What an observation of the metadata service means: each row of the table, and what looks like it."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from caretaker_probe.classify import (
    REFUSED,
    SERVER,
    TIMEOUT,
    Answer,
    Finding,
    NoAnswer,
    Observation,
    Verdict,
    classify,
)

ID = "i-0123456789abcdef0"
SILENT = NoAnswer(TIMEOUT)


def answer(status: int = 200, body: str = "", server: str = SERVER, ms: float = 2.0) -> Answer:
    return Answer(status, body, server, ms)


GOOD = Observation(
    connect_milliseconds=1.0,
    needed_hops=2,
    token=answer(body="token"),
    instance=answer(body=ID),
    without=answer(401),
    expected=ID,
)
LIMITED = replace(GOOD, token=SILENT, instance=None)
DISABLED = replace(GOOD, token=answer(403), instance=None, without=answer(403))

CASES = [
    pytest.param(
        GOOD, "Reachable", {"latency_ms": 5.0, "needed_hops": 2, "imdsv1": "Closed"}, id="all is well"
    ),
    pytest.param(
        replace(GOOD, without=answer(200, ID)), "Reachable", {"imdsv1": "Open"}, id="IMDSv1 is open"
    ),
    pytest.param(replace(GOOD, without=SILENT), "Reachable", {"imdsv1": None}, id="IMDSv1 was not learned"),
    pytest.param(replace(GOOD, expected=""), "Reachable", {"instance_id": ID}, id="any instance will do"),
    pytest.param(
        replace(GOOD, needed_hops=None), "Reachable", {"needed_hops": None}, id="the scan found nothing"
    ),
    pytest.param(
        LIMITED, "HopLimited", {"needed_hops": 2, "imdsv1": "Closed"}, id="fast connect, silent PUT"
    ),
    pytest.param(
        replace(LIMITED, without=answer(200, ID)), "HopLimited", {"imdsv1": "Open"}, id="slow and open"
    ),
    pytest.param(
        replace(LIMITED, needed_hops=None),
        "HopLimited",
        {"needed_hops": None},
        id="limited, and no TTL connects",
    ),
    pytest.param(
        replace(LIMITED, needed_hops=1), "Silent", {"needed_hops": 1}, id="one hop needs no larger limit"
    ),
    pytest.param(replace(LIMITED, without=SILENT), "Silent", {}, id="nothing is answered at all"),
    pytest.param(Observation(failure=TIMEOUT), "Blocked", {"imdsv1": None}, id="the connect times out"),
    pytest.param(Observation(failure="EHOSTUNREACH"), "Blocked", {}, id="a router says that there is no way"),
    pytest.param(Observation(failure="EPERM"), "Blocked", {}, id="the node's own firewall says no"),
    pytest.param(Observation(failure=REFUSED), "Refused", {}, id="nobody listens"),
    pytest.param(DISABLED, "EndpointDisabled", {"imdsv1": None}, id="everything is forbidden"),
    pytest.param(
        replace(DISABLED, without=SILENT),
        "Unexpected",
        {"imdsv1": None},
        id="a token is forbidden, and silence",
    ),
    pytest.param(
        replace(DISABLED, without=None),
        "Forbidden",
        {"imdsv1": None},
        id="a token is forbidden, not asked without one",
    ),
    pytest.param(
        replace(DISABLED, without=answer(200, ID)),
        "Proxied",
        {"imdsv1": "Open"},
        id="only a token is forbidden",
    ),
    pytest.param(
        replace(DISABLED, token=answer(403, server="nginx")),
        "EndpointDisabled",
        {},
        id="a 403 may be anybody's",
    ),
    pytest.param(
        replace(GOOD, instance=answer(body="i-1")),
        "Emulated",
        {"instance_id": "i-1"},
        id="another instance's id",
    ),
    pytest.param(
        replace(GOOD, token=answer(body="token", server="kube2iam")),
        "Emulated",
        {"imdsv1": None},
        id="a server",
    ),
    pytest.param(
        replace(LIMITED, without=answer(200, ID, "")),
        "Emulated",
        {},
        id="a silent PUT, and a server without name",
    ),
    pytest.param(
        Observation(token=answer(404, server="gunicorn")), "Emulated", {}, id="a server that knows no tokens"
    ),
    pytest.param(replace(GOOD, without=None), "Reachable", {"imdsv1": None}, id="not asked without a token"),
    pytest.param(
        replace(LIMITED, without=None, needed_hops=2),
        *("HopLimited", {"needed_hops": 2, "imdsv1": None}),
        id="a silent PUT behind two hops, not asked without a token",
    ),
    pytest.param(replace(LIMITED, without=None, needed_hops=1), "Silent", {}, id="the same behind one hop"),
    pytest.param(
        replace(LIMITED, without=None, needed_hops=None), "Silent", {}, id="the same without a scan"
    ),
    pytest.param(replace(GOOD, token=answer(500), instance=None), "Unexpected", {}, id="EC2 has trouble"),
    pytest.param(replace(GOOD, instance=answer(404)), "Unexpected", {}, id="a token, and no id"),
    pytest.param(replace(GOOD, instance=SILENT), "Unexpected", {}, id="a token, and silence"),
    pytest.param(
        replace(GOOD, token=NoAnswer("ECONNRESET"), instance=None), "Unexpected", {}, id="the PUT is cut off"
    ),
]


@pytest.mark.parametrize(("seen", "verdict", "more"), CASES)
def test_verdict(seen: Observation, verdict: Verdict, more: dict[str, Any]) -> None:
    found = classify(seen)
    assert found.verdict == verdict
    assert {field: getattr(found, field) for field in more} == more
    assert found.detail
    assert (found.latency_ms is not None) == (verdict == "Reachable")


def test_the_table_has_every_verdict() -> None:
    assert {case.values[1] for case in CASES} == set(get_args(Verdict))


def test_the_words_name_what_was_seen() -> None:
    assert classify(LIMITED).detail.endswith("this place needs at least 2")
    assert "ECONNRESET" in classify(replace(GOOD, token=NoAnswer("ECONNRESET"), instance=None)).detail
    assert "HTTP 500" in classify(replace(GOOD, token=answer(500), instance=None)).detail
    assert "EPERM" in classify(Observation(failure="EPERM")).detail


def test_the_json_has_every_field_whatever_was_measured() -> None:
    assert Finding("Blocked", "no").as_json() == {
        "verdict": "Blocked",
        "latencyMs": None,
        "neededHops": None,
        "imdsv1": None,
        "instanceId": None,
        "detail": "no",
    }
