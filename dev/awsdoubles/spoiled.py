"""Answers that are none: what a proxy, a lost connection or another service makes of a double's. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

ACTIONS: Final = {
    "cut_body": "act, then answer with the first half of the body as if it were all",
    "html": "act, then answer 200 with a page of HTML",
    "without": "act, then answer without `member` wherever it stands; with an empty one, without any",
}
PAGE: Final = "<html><head><title>Welcome</title></head><body>hunter2</body></html>"


class Spoiling(Protocol):
    """What a fault of a double has for it."""

    @property
    def member(self) -> str:
        """As it is spelt on the wire."""


def spoiled(body: str, taken: Mapping[str, Spoiling]) -> str:
    """The body of an answer, as these faults leave it. XML loses elements, JSON members."""
    if (lacking := taken.get("without")) is not None:
        body = _xml(body, lacking.member) if body.startswith("<") else _json(body, lacking.member)
    if "html" in taken:
        return PAGE
    return body[: len(body) // 2] if "cut_body" in taken else body


def _json(body: str, member: str) -> str:
    return json.dumps(_less(json.loads(body), member) if member else {})


def _less(value: Any, member: str) -> Any:
    if isinstance(value, dict):
        return {name: _less(one, member) for name, one in value.items() if name != member}
    return [_less(one, member) for one in value] if isinstance(value, list) else value


def _xml(body: str, member: str) -> str:
    if member:
        return re.sub(f"<{member}/>|<{member}>.*?</{member}>", "", body, flags=re.DOTALL)
    root = re.search(r"<(\w+)[^?>]*>", body)
    assert root is not None
    return f"<{root[1]}/>"
