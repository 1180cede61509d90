"""What a termination message says, what is wrong with it, and the figures over many nodes."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api import conditions as c
from caretaker.api.daemontask import Result, Status
from caretaker.api.objects import ContainerEnd, Pod
from caretaker.daemontask.events import transitions
from caretaker.daemontask.ledger import Entry, Fault, decode_entry, encode_entry
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pod_failure_policy import entry_for
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.results import (
    MESSAGE_BYTES,
    VALUES_BYTES,
    WORDS,
    Summary,
    figures,
    nearest_rank,
    read,
    summarise,
    words,
)
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import decision_input, entry, failed, node, snapshot, succeeded, task

A, B = node("a"), node("b")
MS, OS = Result("ms", unit="ms"), Result("os", "Text")
NOBODY = {"ms": 1, "os": "x"}


def run(*messages: str, **changes: Any) -> Pod:
    """A Pod that succeeded, whose containers left these messages."""
    ends = tuple(ContainerEnd(f"c{place}", 0, message=text) for place, text in enumerate(messages))
    return succeeded(A, ends=changes.pop("ends", ends), **changes)


@pytest.mark.parametrize(
    ("message", "values"),
    [
        pytest.param('{"ms": 1.5, "os": "one"}', {"ms": 1.5, "os": "one"}, id="both"),
        pytest.param(' \n{"ms":0,"os":"a b"}\n', {"ms": 0, "os": "a b"}, id="space around it, zero"),
        pytest.param('{"ms": -3e2, "os": "é"}', {"ms": -300.0, "os": "é"}, id="a negative number"),
        pytest.param('{"ms": null, "os": "one"}', {"os": "one"}, id="null is nothing to tell"),
        pytest.param('{"ms": null, "os": null}', None, id="nothing to tell at all"),
        pytest.param('{"ms": 1, "os": "x", "more": [{}]}', NOBODY, id="what is not declared is passed over"),
        pytest.param('{"ms": 9, "os": "x", "ms": 1}', NOBODY, id="the last of two fields of one name"),
    ],
)
def test_what_is_told(message: str, values: dict[str, Any] | None) -> None:
    assert read((MS, OS), run(message)) == (values, None)


@pytest.mark.parametrize(
    ("message", "values", "said"),
    [
        pytest.param("", None, "termination message: no container left one", id="no message"),
        pytest.param("  \n", None, "termination message: no container left one", id="an empty line"),
        pytest.param("3 ms", None, "termination message: it is 3 ms, not a JSON object", id="no JSON"),
        pytest.param("[1]", None, "termination message: it is [1], not a JSON object", id="a list"),
        pytest.param('{"ms": NaN}', None, 'it is {"ms": NaN}, not a JSON object', id="NaN is no JSON"),
        pytest.param('{"ms": 1, "os"', None, "not a JSON object", id="JSON that was cut"),
        pytest.param("[" * 4000, None, "not a JSON object", id="nested without end"),
        pytest.param(
            json.dumps(NOBODY | {"more": "x" * 4096})[:4096], None, "fills the 4096 bytes", id="too long"
        ),
        pytest.param(
            '{"os": "x"}', {"os": "x"}, "ms: it is not among the message's fields (os)", id="missing"
        ),
        pytest.param(
            '{"ms": "1", "os": "x"}', {"os": "x"}, "ms: it is 1, not a number", id="a quoted number"
        ),
        pytest.param('{"ms": true, "os": "x"}', {"os": "x"}, "ms: it is true, not a number", id="true"),
        pytest.param(
            '{"ms": [1], "os": "x"}', {"os": "x"}, "ms: it is [1], not a number", id="a number in a list"
        ),
        pytest.param('{"ms": 1, "os": 3}', {"ms": 1}, "os: it is 3, not a string", id="a number as text"),
        pytest.param('{"ms": 1, "os": ""}', {"ms": 1}, "os: it is , not a string", id="an empty text"),
        pytest.param(
            json.dumps({"ms": 1, "os": "x" * 65}), {"ms": 1}, "os: it is xxxx", id="a text of 65 characters"
        ),
        pytest.param('{"ms": 1, "os": "a\\nb"}', {"ms": 1}, "os: it is a b, not", id="a text of two lines"),
        pytest.param('{"ms": "x", "os": 3}', None, "ms: it is x", id="of two faults the first declared"),
        pytest.param(
            '{"ms": 1' + "0" * 400 + ', "os": "x"}', {"os": "x"}, "ms: it is 10000", id="more than a float64"
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_mend(message: str, values: Any, said: str) -> None:
    found, fault = read((MS, OS), run(message))
    assert fault is not None
    assert found == values
    assert said in words(fault)
    assert len(msgspec.json.encode(fault)) < 130


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        pytest.param("", Fault("", "NoMessage"), id="none"),
        pytest.param("[1]", Fault("", "NotAnObject", "[1]"), id="no object"),
        pytest.param('{"b": 1, "a": 2}', Fault("ms", "Missing", "a, b"), id="other fields, in order"),
        pytest.param("{}", Fault("ms", "Missing", "none"), id="no fields"),
        pytest.param('{"ms": "fast"}', Fault("ms", "NotANumber", "fast"), id="a text"),
        pytest.param(
            '{"ms": "' + "x" * 22 + '"}', Fault("ms", "NotANumber", "x" * 22), id="as long as is shown"
        ),
        pytest.param('{"ms": "' + "x" * 23 + '"}', Fault("ms", "NotANumber", "x" * 22), id="one more is cut"),
    ],
)
def test_a_fault_is_stored_with_what_was_found(message: str, fault: Fault) -> None:
    assert read((MS,), run(message)) == (None, fault)


def test_a_text_has_64_characters_at_most() -> None:
    assert read((OS,), run(json.dumps({"os": "x" * 64}))) == ({"os": "x" * 64}, None)


@pytest.mark.parametrize(("name", "room"), [("ccc", True), ("cccc", False)])
def test_the_values_of_a_node_have_216_bytes(name: str, room: bool) -> None:
    """Three texts of 64 characters as JSON: 211 bytes and the names."""
    values = dict.fromkeys(("a", "b", name), "x" * 64)
    found, fault = read([Result(field, "Text") for field in values], run(json.dumps(values)))
    assert found == (values if room else {"a": "x" * 64, "b": "x" * 64})
    assert fault == (None if room else Fault(name, "NoRoom"))


def test_every_fault_tells_what_mends_it() -> None:
    assert [code for code, said in WORDS.items() if not any(verb in said for verb in (";",))] == []
    assert words(Fault("ms", "OfALaterVersion")) == "OfALaterVersion"


def test_together_the_values_of_a_node_are_bounded() -> None:
    declared = tuple(Result(f"{letter}" * 32, "Text") for letter in "abcdefgh")
    values, fault = read(declared, run(json.dumps({result.name: "x" * 60 for result in declared})))
    assert values is not None
    assert list(values) == [result.name for result in declared[:2]]
    assert len(msgspec.json.encode(values)) <= VALUES_BYTES
    assert fault is not None
    assert words(fault).startswith("c" * 32)


@pytest.mark.parametrize(
    ("ends", "values"),
    [
        pytest.param(
            (ContainerEnd("a", 0, message=" "), ContainerEnd("b", 0, message='{"ms": 2}')),
            {"ms": 2},
            id="the first that left one",
        ),
        pytest.param(
            (ContainerEnd("a", 0, message='{"ms": 1}'), ContainerEnd("b", 0, message='{"ms": 2}')),
            {"ms": 1},
            id="the first of two",
        ),
        pytest.param(
            (ContainerEnd("i", 0, message='{"ms": 1}', init=True), ContainerEnd("b", 0, message='{"ms": 2}')),
            {"ms": 2},
            id="an init container's is none",
        ),
    ],
)
def test_which_container(ends: tuple[ContainerEnd, ...], values: dict[str, Any]) -> None:
    assert read((MS,), run(ends=ends)) == (values, None)


def recorded(pod: Pod, *results: Result, before: Entry | None = None) -> Entry:
    return entry_for(decision_input(results=results), pod, A, before)


def test_a_run_is_recorded_with_what_it_told() -> None:
    assert recorded(run('{"ms": 3}'), MS).results == {"ms": 3}
    assert (recorded(run('{"ms": 3}')).results, recorded(run("no JSON")).fault) == (None, None)


def test_a_fault_does_not_change_the_outcome() -> None:
    found = recorded(run("no JSON"), MS)
    assert (found.result, found.attempts, found.results) == ("Succeeded", 0, None)
    assert found.fault == Fault("", "NotAnObject", "no JSON")


def test_a_run_that_failed_tells_nothing() -> None:
    ends = (ContainerEnd("main", 1, "Error", '{"ms": 3}'),)
    found = recorded(failed(A, ends=ends), MS)
    assert (found.results, found.fault, found.message) == (None, None, '{"ms": 3}')


def test_results_are_no_part_of_the_revision() -> None:
    assert revision_of(task(results=(MS,)).spec) == revision_of(task().spec)
    of = task(results=(MS,))
    assert plan(snapshot(of, [A], entries={"a": entry(A)})).launch.starts == ()


@pytest.mark.parametrize(
    ("values", "median", "p95"),
    [
        ([7], 7, 7),
        ([1, 2], 1, 2),
        ([1, 2, 3], 2, 3),
        (range(1, 21), 10, 19),
        (range(1, 22), 11, 20),
        (range(1, 101), 50, 95),
        (range(1, 102), 51, 96),
    ],
)
def test_nearest_rank(values: Any, median: float, p95: float) -> None:
    assert (nearest_rank(list(values), 50), nearest_rank(list(values), 95)) == (median, p95)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.sampled_from([50, 95, 100]))
def test_nearest_rank_is_what_its_words_say(values: list[float], percent: int) -> None:
    """The smallest of the values that at least `percent` % do not exceed."""
    found = nearest_rank(sorted(values), percent)
    enough = [v for v in values if sum(w <= v for w in values) * 100 >= percent * len(values)]
    assert found == min(enough)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)


@given(st.lists(NUMBERS, max_size=50))
def test_the_figures_of_numbers(values: list[float]) -> None:
    runs = [(f"n{place}", entry(A, results={"ms": value})) for place, value in enumerate(values)]
    (told,) = summarise((MS,), [*runs, ("late", entry(A))]).results
    assert told.count == len(values)
    assert (told.min, told.max) == (
        (min(map(float, values)), max(map(float, values))) if values else (None, None)
    )
    if values:
        assert told.min <= told.median <= told.p95 <= told.max  # type: ignore[operator]
        assert all(math.isfinite(figure) for figure in figures([told]).values())


def test_texts_are_counted_by_value_the_most_frequent_first() -> None:
    words = ["b", "b", "a", *(f"x{n:02d}" for n in range(12))]
    (told,) = summarise((OS,), [(w, entry(A, results={"os": w})) for w in words]).results
    assert [(v.value, v.nodes) for v in told.values[:3]] == [("b", 2), ("a", 1), ("x00", 1)]
    assert (len(told.values), told.values_omitted, told.count) == (10, 4, 15)
    assert figures([told]) == {}


def test_texts_of_as_many_nodes_are_sorted() -> None:
    (told,) = summarise((OS,), [(w, entry(A, results={"os": w})) for w in "ba"]).results
    assert ([v.value for v in told.values], told.values_omitted) == (["a", "b"], 0)


def test_the_figures_of_a_hundred_nodes() -> None:
    (told,) = summarise((MS,), [(f"n{n}", entry(A, results={"ms": n})) for n in range(100, 0, -1)]).results
    assert (told.count, told.min, told.median, told.p95, told.max) == (100, 1, 50, 95, 100)


def test_what_was_told_under_another_type_counts_no_more() -> None:
    runs = [("a", entry(A, results={"ms": "fast"})), ("b", entry(A, results={"ms": 2}))]
    (number,) = summarise((MS,), runs).results
    (text,) = summarise((Result("ms", "Text"),), runs).results
    assert (number.count, text.count) == (1, 1)


def test_errors_are_bounded_and_sorted_by_node() -> None:
    bad = entry(A, fault=Fault("", "NoMessage"))
    summary = summarise((MS,), [(f"n{number:02d}", bad) for number in reversed(range(30))])
    assert [error.node_name for error in summary.errors] == [f"n{number:02d}" for number in range(10)]
    assert summary.faulty == 30


@pytest.mark.parametrize(
    ("fault", "declared", "told"),
    [
        pytest.param(Fault("ms", "Missing"), (MS, OS), 1, id="of a result that is declared"),
        pytest.param(Fault("ms", "Missing"), (OS,), 0, id="of one that is declared no more"),
        pytest.param(Fault("", "NoMessage"), (OS,), 1, id="of the message as a whole"),
    ],
)
def test_an_error_lasts_as_long_as_its_declaration(fault: Fault, declared: Any, told: int) -> None:
    assert summarise(declared, [("a", entry(A, fault=fault))]).faulty == told


def looked_at(entries: dict[str, Entry], status: Status | None = None, *results: Result) -> Status:
    of = snapshot(task(results=results, status=status), [A, B], entries=entries)
    return status_of(of, plan(of), Outcome())


def test_status_has_the_figures_of_nodes_whose_run_is_current() -> None:
    entries = {"a": entry(A, results={"ms": 5}), "b": entry(B, results={"ms": 9}, revision="earlier")}
    found = looked_at(entries, None, MS)
    assert [(told.name, told.count, told.max) for told in found.results] == [("ms", 1, 5.0)]
    replaced = looked_at({**entries, "a": entry(A, results={"ms": 5}, node_uid="another")}, None, MS)
    assert replaced.results[0].count == 0


def test_a_run_that_has_just_ended_counts() -> None:
    of = snapshot(task(results=(MS,)), [A], [run('{"ms": 7}')])
    assert status_of(of, plan(of), Outcome()).results[0].max == 7


def test_nothing_is_said_of_results_that_nobody_declares() -> None:
    found = looked_at({"a": entry(A, results={"ms": 5}, fault=Fault("", "NoMessage")), "b": entry(B)})
    assert (found.results, found.result_errors, c.find(found.conditions, c.DEGRADED)) == ((), (), None)


def test_nothing_changed_means_the_same_status() -> None:
    entries = {"a": entry(A, results={"ms": 5}), "b": entry(B, fault=Fault("ms", "Missing", "none"))}
    before = looked_at(entries, None, MS)
    written = msgspec.json.decode(msgspec.json.encode(before), type=Status)
    assert looked_at(entries, written, MS) == written


def test_a_fault_degrades_and_leaves_ready_and_is_one_event() -> None:
    entries = {"a": entry(A, results={"ms": 5}), "b": entry(B, fault=Fault("ms", "Missing", "none"))}
    good = looked_at({"a": entry(A), "b": entry(B)}, None, MS)
    bad = looked_at(entries, good, MS)
    ready, degraded = (c.find(bad.conditions, kind) for kind in (c.READY, c.DEGRADED))
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "Succeeded")
    assert degraded is not None
    assert (degraded.reason, "first b: ms: it is not among" in degraded.message) == ("InvalidResults", True)
    told = [event for event in transitions(good, bad) if event.type == "Warning"]
    assert [event.reason for event in told] == ["InvalidResults"]
    worse = looked_at({**entries, "a": entry(A, fault=Fault("", "NoMessage"))}, bad, MS)
    assert worse.result_errors_omitted == 0
    assert transitions(bad, worse) == []


def test_a_message_of_the_kubelets_full_length_is_told_as_cut() -> None:
    assert read((MS,), run("é" * (MESSAGE_BYTES // 2)))[1] == Fault("", "TooLong")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ms", "os", "x"]), inner),
    max_leaves=6,
)


@given(JSON.map(json.dumps) | st.text(max_size=200))
def test_whatever_the_message_is_the_entry_can_be_stored_and_status_says_it(message: str) -> None:
    made = recorded(run(message), MS, OS)
    assert decode_entry(encode_entry(made)) == made
    if made.results is not None:
        assert len(msgspec.json.encode(made.results)) <= VALUES_BYTES
    summary = summarise((MS, OS), [("a", made)])
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    assert figures(summary.results).get(("ms", "ms", "count")) == float("ms" in (made.results or {}))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"results": {"latency": int("9" * 400)}}, id="a number that no float64 holds"),
        pytest.param({"fault": {"name": "latency", "code": "{0}"}}, id="a code that asks for an argument"),
        pytest.param({"fault": {"name": "", "code": "{"}}, id="a code that is no format"),
        pytest.param({"fault": {"name": "", "code": "x" * 100_000}}, id="a code without end"),
        pytest.param({"fault": {"name": "", "code": "NotAnObject", "found": "x" * 100_000}}, id="a find"),
        pytest.param({"results": {"os": "x" * 100_000}}, id="a text without end"),
    ],
)
def test_an_entry_that_somebody_else_has_written_fails_no_pass(entry: dict[str, Any]) -> None:
    stored = {"nodeUID": "u", "revision": "r", "runKey": "k", "result": "Succeeded", "seq": 1, **entry}
    found = decode_entry(msgspec.json.encode(stored).decode())
    assert isinstance(found, Entry), found
    told = summarise([Result("latency"), OS], [("a", found)])
    assert told.results[0].count == 0
    assert len(msgspec.json.encode(told)) < 1000
