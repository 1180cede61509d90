"""Requests told apart as RBAC does, and the rules that pick them."""

import json
from typing import Any

import pytest

from testing.apicalls import Ledger, Target, classify
from testing.faults import Answer, Match, Rule

TASKS = "/apis/caretaker.dev/v1alpha1"
POD = {"metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("request_line", "body", "verb", "target"),
    [
        ("GET /api/v1/nodes", None, "list", Target("", "nodes")),
        ("GET /api/v1/nodes?watch=true", None, "watch", Target("", "nodes")),
        ("GET /api/v1/nodes?watch=false", None, "list", Target("", "nodes")),
        ("GET /api/v1/nodes/n", None, "get", Target("", "nodes", "", "n")),
        ("PATCH /api/v1/nodes/n/status", {}, "patch", Target("", "nodes", "", "n", "status")),
        ("GET /api/v1/namespaces", None, "list", Target("", "namespaces")),
        ("GET /api/v1/namespaces/ns", None, "get", Target("", "namespaces", "", "ns")),
        ("PUT /api/v1/namespaces/ns/finalize", {}, "update", Target("", "namespaces", "", "ns", "finalize")),
        ("POST /api/v1/namespaces/ns/pods", POD, "create", Target("", "pods", "ns", "p")),
        ("POST /api/v1/namespaces/ns/pods", None, "create", Target("", "pods", "ns")),
        ("DELETE /api/v1/namespaces/ns/pods/p", None, "delete", Target("", "pods", "ns", "p")),
        ("DELETE /api/v1/namespaces/ns/pods", None, "deletecollection", Target("", "pods", "ns")),
        (
            "POST /api/v1/namespaces/ns/pods/p/eviction",
            {"metadata": {"name": "other"}},
            "create",
            Target("", "pods", "ns", "p", "eviction"),
        ),
        (f"GET {TASKS}/daemontasks", None, "list", Target("caretaker.dev", "daemontasks")),
        (
            f"PATCH {TASKS}/namespaces/ns/daemontasks/t/status",
            {},
            "patch",
            Target("caretaker.dev", "daemontasks", "ns", "t", "status"),
        ),
        ("GET /version", None, "get", Target()),
        ("GET /apis", None, "get", Target()),
        ("GET /api/v1", None, "get", Target()),
        (f"GET {TASKS}", None, "get", Target()),
    ],
)
def test_a_request_is_told(request_line: str, body: Any, verb: str, target: Target) -> None:
    method, _, url = request_line.partition(" ")
    path, _, query = url.partition("?")
    pairs = dict(pair.split("=") for pair in query.split("&") if pair)
    raw = json.dumps(body).encode() if body is not None else b""
    call = classify("c", method, path, pairs, "agent", raw)
    assert (call.verb, call.target) == (verb, target)
    assert call.request_bytes == len(raw)


CREATE = classify("a", "POST", "/api/v1/namespaces/ns/pods", {}, "caretaker/1", json.dumps(POD).encode())
STATUS = classify("a", "PATCH", f"{TASKS}/namespaces/ns/daemontasks/t/status", {}, "caretaker/1", b"{}")


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        pytest.param(Match(), (True, True), id="without conditions everything fits"),
        pytest.param(Match(verb="create"), (True, False), id="by verb"),
        pytest.param(Match(verb={"create", "patch"}), (True, True), id="by any of some verbs"),
        pytest.param(Match(resource="daemontasks"), (False, True), id="by resource"),
        pytest.param(Match(subresource="status"), (False, True), id="by subresource"),
        pytest.param(Match(subresource=""), (True, False), id="the object itself only"),
        pytest.param(Match(namespace="other"), (False, False), id="by namespace"),
        pytest.param(Match(name="^p$"), (True, False), id="by a name's pattern"),
        pytest.param(Match(user_agent="kopf"), (False, False), id="by user agent"),
        pytest.param(Match(client="a"), (True, True), id="by client"),
        pytest.param(Match(where=lambda c: c.request_bytes > 2), (True, False), id="by a function"),
    ],
)
def test_a_match_picks_calls(match: Match, fits: tuple[bool, bool]) -> None:
    assert (match.fits(CREATE), match.fits(STATUS)) == fits


@pytest.mark.parametrize(
    ("match", "taken"),
    [
        pytest.param(Match(nth=2), [False, True, False, False], id="the second only"),
        pytest.param(Match(times=2), [True, True, False, False], id="the first two"),
        pytest.param(Match(verb="list", nth=1), [False] * 4, id="others are not counted"),
    ],
)
def test_a_rule_counts_the_calls_that_fit(match: Match, taken: list[bool]) -> None:
    rule = Rule(match, Answer(500), lambda _: None)
    assert [rule.take(CREATE) for _ in taken] == taken


def test_waiting_for_what_does_not_come_ends() -> None:
    ledger = Ledger()
    ledger.add(CREATE)
    with pytest.raises(TimeoutError, match="1 of 2 expected calls"):
        ledger.wait(lambda c: c.verb == "create", count=2, timeout=0.01)
    with pytest.raises(TimeoutError, match="0 of 1 faults"):
        Rule(Match(), Answer(500), lambda _: None).wait(timeout=0.01)
