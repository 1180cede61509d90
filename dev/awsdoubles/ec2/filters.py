"""EC2's filters: values of one filter are alternatives, all filters must match, * and ? are wildcards.

Source: "Find your Amazon EC2 resources", and the errors that users report (FilterLimitExceeded). A filter
that EC2 knows and the double does not is refused: to ignore it would find too much. Pure.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from awsdoubles.ec2.errors import AwsError, invalid_value

MAX_FILTERS: Final = 50
MAX_VALUES: Final = 200  # of all filters of a call together
MAX_LENGTH: Final = 255

Read = Callable[[Any], Iterable[str]]  # a thing's values under a filter's name
Tags = Callable[[Any], Mapping[str, str]]


def matcher(filters: list[dict[str, Any]], fields: Mapping[str, Read], tags: Tags) -> Callable[[Any], bool]:
    """A predicate. AwsError when a filter is no filter."""
    _check(filters)
    tests = [(_reader(one["Name"], fields, tags), _alternatives(one["Values"])) for one in filters]
    return lambda thing: all(any(map(wanted, read(thing))) for read, wanted in tests)


def _check(filters: list[dict[str, Any]]) -> None:
    if len(filters) > MAX_FILTERS:
        raise AwsError("FilterLimitExceeded", f"The maximum number of filters on a call is {MAX_FILTERS}")
    for number, one in enumerate(filters, start=1):
        if not one.get("Name"):
            raise invalid_value("The filter 'null' is invalid")
        if not one.get("Values"):
            raise AwsError(
                "MissingParameter", f"The request must contain the parameter Filter.{number}.Value"
            )
    values = [value for one in filters for value in one["Values"]]
    if len(values) > MAX_VALUES:
        raise AwsError(
            "FilterLimitExceeded",
            f"The maximum number of filter values specified on a single call is {MAX_VALUES}",
        )
    if any(len(value) > MAX_LENGTH for value in values):
        raise AwsError(
            "FilterLimitExceeded", f"The maximum length for a filter value is {MAX_LENGTH} characters"
        )


def _reader(name: str, fields: Mapping[str, Read], tags: Tags) -> Read:
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda thing: [tags(thing)[key]] if key in tags(thing) else []
    if name not in fields:
        raise invalid_value(f"The filter '{name}' is invalid (or none of the double's: {', '.join(fields)})")
    return fields[name]


def _alternatives(values: list[str]) -> Callable[[str], bool]:
    plain = frozenset(value for value in values if not re.search(r"[*?\\]", value))
    patterns = [_pattern(value) for value in values if value not in plain]
    return lambda found: found in plain or any(one.fullmatch(found) for one in patterns)


def _pattern(value: str) -> re.Pattern[str]:
    """A backslash takes a wildcard's meaning away."""
    parts = re.findall(r"\\.|.", value, flags=re.DOTALL)
    wild = {"*": ".*", "?": ".?"}
    return re.compile(
        "".join(wild.get(part) or re.escape(part[-1]) for part in parts), flags=re.DOTALL | re.ASCII
    )
