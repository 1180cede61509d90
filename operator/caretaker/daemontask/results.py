"""Results of runs: numbers and words that a task's program leaves in its termination message.

Pure. read(): (the declarations of spec.results, a finished Pod) -> the values of the node's ledger entry, or
why there are none; summarise(): the entries of many nodes -> the summary in status. A fault never changes a
run's outcome.

The message is a JSON object, field -> value. It is that of the first container, in the order of the spec,
that left one; a container that failed has left none. null stands for no value. Undeclared fields are skipped.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.daemontask import Result, ResultError, ResultStatus, ResultValue
from caretaker.api.objects import Pod
from caretaker.daemontask.ledger import Entry, Fault, Value

# Where the kubelet cuts: docs of Kubernetes, "Determine the Reason for Pod Failure".
MESSAGE_BYTES: Final = 4096
# In a ledger entry: a shard of 1,000 nodes stays below the 1 MiB of a ConfigMap.
VALUES_BYTES: Final = 216
FOUND_BYTES: Final = 24
TEXT_LENGTH: Final = 64
MAX_ERRORS: Final = 10
MAX_VALUES: Final = 10
STATISTICS: Final = ("count", "min", "median", "p95", "max")

# The fault and its remedy. {name}: the result; {found}: the value of the message.
WORDS: Final = {
    "NoMessage": "termination message: no container left one; write a JSON object to /dev/termination-log",
    "TooLong": f"termination message: it fills the {MESSAGE_BYTES} bytes where the kubelet cuts; write less",
    "NotAnObject": "termination message: it is {found}, not a JSON object; write nothing else there",
    "Missing": "{name}: it is not among the message's fields ({found}); add it, or null for none",
    "NotANumber": "{name}: it is {found}, not a number; write it without quotes and unit, or null",
    "NotText": "{name}: it is {found}, not a string of 1 to "
    f"{TEXT_LENGTH} printable characters; correct it, or write null",
    "NoRoom": f"{{name}}: all values together exceed the {VALUES_BYTES} bytes that a node has room for; "
    "declare fewer results, or write shorter values",
}


class Summary(msgspec.Struct, frozen=True):
    """The summary of all nodes for status; equal for equal entries."""

    results: tuple[ResultStatus, ...] = ()
    errors: tuple[ResultError, ...] = ()  # at most MAX_ERRORS, by node name
    faulty: int = 0  # nodes with an error, listed or not


def read(declared: Sequence[Result], pod: Pod) -> tuple[dict[str, Value] | None, Fault | None]:
    """(the values that are sound, the first fault in declared order) of a Pod that succeeded."""
    fields, fault = _fields(pod)
    if fault is not None:
        return None, fault
    values: dict[str, Value] = {}
    for result in declared:
        code, found = _check(result, fields, values)
        if code:
            fault = fault or Fault(result.name, code, _shown(found))
    return values or None, fault


def summarise(declared: Sequence[Result], runs: Iterable[tuple[str, Entry]]) -> Summary:
    """The figures over the nodes whose run succeeded, given as (node name, its entry)."""
    rows, errors = [], []
    names = {result.name for result in declared}
    for node, entry in runs:
        if entry.results:
            rows.append(entry.results)
        if entry.fault is not None and (not entry.fault.name or entry.fault.name in names):
            errors.append((node, entry.fault))
    first = heapq.nsmallest(MAX_ERRORS, errors, key=lambda error: error[0])
    return Summary(
        tuple(
            _result(result, [row[result.name] for row in rows if result.name in row]) for result in declared
        ),
        tuple(ResultError(node, words(fault)) for node, fault in first),
        len(errors),
    )


def words(fault: Fault) -> str:
    """The fault as a sentence with the field and the remedy. An unknown code, of another version of caretaker
    or from a foreign write to the ledger, is shown as it is."""
    text = WORDS.get(fault.code)
    return text.format(name=fault.name, found=_shown(fault.found)) if text is not None else _shown(fault.code)


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` % of all values do not exceed: always one that was measured.

    `ordered`: ascending, not empty.
    """
    return ordered[max(math.ceil(percent * len(ordered) / 100), 1) - 1]


def _fields(pod: Pod) -> tuple[dict[str, Any], Fault | None]:
    ends = (end for end in pod.ends if not end.init and end.exit_code == 0)
    message = next((end.message for end in ends if end.message.strip()), "")
    if not message:
        return {}, Fault("", "NoMessage")
    if len(message.encode(errors="replace")) >= MESSAGE_BYTES:
        return {}, Fault("", "TooLong")
    try:
        fields = msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        fields = None
    return (fields, None) if isinstance(fields, dict) else ({}, Fault("", "NotAnObject", _shown(message)))


def _check(result: Result, fields: dict[str, Any], values: dict[str, Value]) -> tuple[str, Any]:
    """Adds the result to `values`, or returns (code, the value of the message)."""
    if result.name not in fields:
        return "Missing", ", ".join(sorted(fields)) or "none"
    value = fields[result.name]
    if value is None:
        return "", None
    if result.type == "Number" and not _is_number(value):
        return "NotANumber", value
    if result.type == "Text" and not _is_text(value):
        return "NotText", value
    if len(msgspec.json.encode({**values, result.name: value})) > VALUES_BYTES:
        return "NoRoom", ""
    values[result.name] = value
    return "", None


def _is_number(value: Any) -> bool:
    """bool is none, though Python's is an int; nor is a number that no float64 holds: the API's are such."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_LENGTH and value.isprintable()


def _shown(found: Any) -> str:
    """The value's first characters: at most FOUND_BYTES as JSON."""
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    text = "".join(c if c.isprintable() else " " for c in text[:FOUND_BYTES]).strip()
    while len(msgspec.json.encode(text)) > FOUND_BYTES:
        text = text[:-1]
    return text


def _result(result: Result, values: list[Value]) -> ResultStatus:
    if result.type == "Text":
        return _texts(result, [value for value in values if isinstance(value, str) and _is_text(value)])
    # A declared type may have changed since: a value recorded under the other one does not count. Nor does
    # a value that read() would not have recorded: the ledger is writable for others.
    ordered = sorted(float(value) for value in values if _is_number(value))
    if not ordered:
        return ResultStatus(result.name, result.type, result.unit, 0)
    return ResultStatus(
        result.name,
        result.type,
        result.unit,
        count=len(ordered),
        min=ordered[0],
        median=nearest_rank(ordered, 50),
        p95=nearest_rank(ordered, 95),
        max=ordered[-1],
    )


def _texts(result: Result, values: list[str]) -> ResultStatus:
    """The most frequent first."""
    nodes = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    return ResultStatus(
        result.name,
        result.type,
        result.unit,
        count=len(values),
        values=tuple(ResultValue(value, count) for value, count in nodes[:MAX_VALUES]),
        values_omitted=max(len(nodes) - MAX_VALUES, 0),
    )


def figures(results: Iterable[ResultStatus]) -> dict[tuple[str, str, str], float]:
    """(result, unit, statistic) -> its value, of the numbers; texts are no figures."""
    found = {}
    for result in results:
        if result.type == "Number":
            for statistic in STATISTICS:
                value = getattr(result, statistic)
                if value is not None:
                    found[result.name, result.unit, statistic] = float(value)
    return found
