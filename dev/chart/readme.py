"""The table of values in the chart's README, from the comments of values.yaml. Pure.

A comment that begins with `# --`, and the comment lines that go on from it, tell of the key below them.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

BEGIN: Final = "<!-- begin values -->\n"
END: Final = "<!-- end values -->\n"
_KEY: Final = re.compile(r"^( *)([A-Za-z]\w*):")
_TEXT: Final = re.compile(r"^ *# ?(.*)$")
_INDENT: Final = 2


class Value(NamedTuple):
    """One value: its path with dots, its default, and what it means."""

    path: str
    default: Any
    about: str


def values(source: str) -> list[Value]:
    """What values.yaml documents, in its order. Raises ValueError for a value that no comment tells of."""
    content = yaml.safe_load(source)
    found = [Value(path, _at(content, path), about) for path, about in _told(source)]
    told = [value.path for value in found]
    silent = [
        leaf for leaf in _leaves(content) if not any(f"{leaf}.".startswith(f"{path}.") for path in told)
    ]
    if silent:
        raise ValueError(f"values.yaml: no comment `# -- ...` tells of {', '.join(silent)}")
    return found


def table(source: str) -> str:
    """The table, in Markdown."""
    rows = [f"| `{v.path}` | `{json.dumps(v.default)}` | {v.about} |\n" for v in values(source)]
    return "".join(["| Value | Default | Meaning |\n", "|---|---|---|\n", *rows])


def filled(page: str, source: str) -> str:
    """The page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(source) + END + rest.partition(END)[2]


def _told(source: str) -> Iterator[tuple[str, str]]:
    path: list[str] = []
    about: list[str] = []
    for line in source.splitlines():
        key, comment = _KEY.match(line), _TEXT.match(line)
        if comment:
            if comment[1].startswith("-- "):
                about = [comment[1].removeprefix("-- ")]
            elif about:
                about.append(comment[1])
        elif key:
            path = [*path[: len(key[1]) // _INDENT], key[2]]
            if about:
                yield ".".join(path), " ".join(about).replace("|", "\\|")
            about = []
        else:
            about = []


def _at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content[key]
    return content


def _leaves(content: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key
