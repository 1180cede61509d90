"""What annotations ask for; what cannot be read is told and nothing else is lost."""

import json
from collections.abc import Callable

import pytest

from caretaker.api.conditions import LONGEST, NAMED
from caretaker.daemontask.annotation_requests import AnnotationRequests, read_requests
from fuzz.cost import seconds
from unit.daemontask.build import task

ASKED = "2026-01-31T12:00:00Z"
PREFIX = "caretaker.dev"
NO_DECISION = (
    f"metadata.annotations[{PREFIX}/ledger]: 'forget' is neither rerun, nor assume-done, "
    'nor "assume-done: node-a,node-b"'
)
KNOWN = ", ".join(f"{PREFIX}/{name}" for name in ("rerun-at", "rerun-nodes", "resume-at", "ledger"))


def requests(**annotations: str) -> AnnotationRequests:
    """Of a task with these, without the prefix and with underscores."""
    marks = {f"{PREFIX}/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return read_requests(task(annotations={"example.com/rerun-at": "never", **marks}))


def test_without_annotations_nothing_is_asked() -> None:
    assert requests() == AnnotationRequests(rerun_at="", rerun_nodes={}, resume_at=0.0, ledger="", errors=())
    assert read_requests(task()) == AnnotationRequests()


def test_what_can_be_read() -> None:
    found = requests(
        rerun_at="2026-01-31T13:00:00+01:00",
        rerun_nodes=f'{{"a": "{ASKED}"}}',
        resume_at=ASKED,
        ledger="rerun",
    )
    at = "2026-01-31T12:00:00.000000+00:00"
    assert found == AnnotationRequests(
        rerun_at=at, rerun_nodes={"a": at}, resume_at=1769860800.0, ledger="rerun"
    )
    assert requests(ledger="assume-done") == AnnotationRequests(ledger="assume-done")
    named = AnnotationRequests(ledger="assume-done", assumed=frozenset({"a", "b"}))
    assert requests(ledger="assume-done: a, b,") == named


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("assume-done:", id="a list of no nodes is not all of them"),
        pytest.param("assume-done: ,", id="nor one of empty names"),
        pytest.param("rerun: a", id="rerun is of all nodes"),
    ],
)
def test_a_decision_on_named_nodes_names_them(text: str) -> None:
    found = requests(ledger=text)
    assert (found.ledger, found.assumed, len(found.errors)) == ("", frozenset(), 1)
    assert f"{text!r} is neither" in found.errors[0]


def no_time(key: str, text: str) -> str:
    return (
        f"metadata.annotations[{PREFIX}/{key}]: {text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z"
    )


def no_node_time(node: str, text: str) -> str:
    return f"metadata.annotations[{PREFIX}/rerun-nodes][{node!r}]: {text!r} is not an RFC 3339 time"


@pytest.mark.parametrize(
    ("annotations", "errors"),
    [
        pytest.param({"rerun_at": "now"}, [no_time("rerun-at", "now")], id="no time to rerun"),
        pytest.param({"resume_at": "noon"}, [no_time("resume-at", "noon")], id="no time to resume"),
        pytest.param({"rerun_at": "", "resume_at": ""}, [], id="empty is not asked"),
        pytest.param(
            {"rerun_nodes": '{"b": "x", "a": "y", "c": "2026-01-31T12:00:00Z"}'},
            [no_node_time("a", "y"), no_node_time("b", "x")],
            id="no times of nodes, in order",
        ),
        pytest.param(
            {"rerun_nodes": '{"a\\n\\u202e": "x"}'},
            [f"metadata.annotations[{PREFIX}/rerun-nodes]['a\\n\\u202e']: 'x' is not an RFC 3339 time"],
            id="a name with control characters",
        ),
        pytest.param(
            {"ledger": "forget"},
            [NO_DECISION],
            id="no decision on the ledger",
        ),
        pytest.param(
            {"rerun-att": ASKED},
            [f"metadata.annotations[{PREFIX}/rerun-att]: means nothing; did you mean {PREFIX}/rerun-at?"],
            id="a slip",
        ),
        pytest.param(
            {"pause": "true"},
            [f"metadata.annotations[{PREFIX}/pause]: means nothing; known are {KNOWN}"],
            id="no annotation of ours",
        ),
    ],
)
def test_what_cannot_be_read_is_told(annotations: dict[str, str], errors: list[str]) -> None:
    assert requests(**annotations).errors == tuple(errors)


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', "{", '"a"'])
def test_reruns_of_nodes_are_an_object_of_times(text: str) -> None:
    (error,) = requests(rerun_nodes=text).errors
    assert error.startswith(f"metadata.annotations[{PREFIX}/rerun-nodes]: want {{node name: time}}: ")


def test_every_fault_is_told_and_the_rest_is_done() -> None:
    found = requests(
        rerun_at="now",
        rerun_nodes=f'{{"a": "{ASKED}", "b": "x"}}',
        resume_at=ASKED,
        ledger="forget",
        pause="true",
    )
    assert list(found.errors) == [
        no_time("rerun-at", "now"),
        no_node_time("b", "x"),
        NO_DECISION,
        f"metadata.annotations[{PREFIX}/pause]: means nothing; known are {KNOWN}",
    ]
    assert (found.rerun_at, list(found.rerun_nodes), found.resume_at, found.ledger) == (
        "",
        ["a"],
        1769860800.0,
        "",
    )


def full(make: Callable[[int], tuple[str, str]]) -> dict[str, str]:
    """As many annotations as the API server lets through: 256 KiB."""
    found, size, number = dict[str, str](), 0, 0
    while size < 256 * 1024:
        key, value = make(number)
        found[key], size, number = value, size + len(key) + len(value), number + 1
    found.popitem()
    return found


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param(full(lambda number: (f"{PREFIX}/{number:x}", "")), id="short keys"),
        pytest.param(full(lambda number: (f"{PREFIX}/rerun-node{number:x}", "")), id="slips"),
        pytest.param(full(lambda number: (f"{PREFIX}/setaloc-nurre{number:x}", "")), id="the same letters"),
        pytest.param(
            {f"{PREFIX}/rerun-nodes": json.dumps({f"n{number}": "x" for number in range(20_000)})},
            id="times of nodes",
        ),
        pytest.param({f"{PREFIX}/rerun-nodes": json.dumps({"n" * 1000: "x" * 250_000})}, id="a long time"),
        pytest.param(
            {f"{PREFIX}/{name}": "x" * 80_000 for name in ("rerun-at", "resume-at")}, id="long times"
        ),
        pytest.param({f"{PREFIX}/ledger": "x" * 250_000}, id="a long decision"),
    ],
)
def test_as_many_errors_as_fit_are_counted_and_few_are_named(annotations: dict[str, str]) -> None:
    """A plan reads them in one turn of the event loop, and so do the plans of other tasks."""
    of = task(annotations=annotations)
    assert seconds(lambda: read_requests(of), 0.1) <= 0.1, "CPU; the longest took 1.5 s"
    errors = read_requests(of).errors
    assert 1 <= len(errors) <= NAMED + 1
    assert all(len(error) < 2 * LONGEST + 200 for error in errors)


def test_more_errors_than_are_named_are_counted() -> None:
    asked = json.dumps({f"n{number:02}": "x" for number in range(NAMED + 2)} | {"good": ASKED})
    unknown = {f"{PREFIX}/{number:02}": "" for number in range(NAMED + 1)}
    found = read_requests(task(annotations={f"{PREFIX}/rerun-nodes": asked, **unknown}))
    assert len(found.errors) == 2 * (NAMED + 1)
    assert found.errors[NAMED - 1 : NAMED + 1] == (
        no_node_time("n09", "x"),
        f"metadata.annotations[{PREFIX}/rerun-nodes]: 2 more are not RFC 3339 times",
    )
    assert found.errors[-2:] == (
        f"metadata.annotations[{PREFIX}/09]: means nothing; known are {KNOWN}",
        f"metadata.annotations: 1 more under {PREFIX}/ mean nothing",
    )
    assert list(found.rerun_nodes) == ["good"]
    few = read_requests(task(annotations=dict(list(unknown.items())[:NAMED])))
    assert len(few.errors) == NAMED
