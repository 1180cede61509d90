"""What the chart has of every kind: its line in files/kinds.yaml, its switch in the schema of the values.

Pure: text in, text out.
"""

import re
from collections.abc import Iterable
from typing import Final

from caretaker.registry import KINDS, KindInfo

_HEAD: Final = """\
# Made of operator/caretaker/registry.py by `make chart`. `switch`: the kind's name in the value `kinds`.
kinds:
"""
_FIRST_WORD: Final = re.compile(r"^([A-Z0-9]+(?![a-z])|[A-Z])")
_SCHEMA: Final = re.compile(r'(\n    "kinds": \{\n).*?(\n    \},)', re.DOTALL)
_SWITCH: Final = (
    '{"type": "object", "additionalProperties": false, "required": ["enabled"], '
    '"properties": {"enabled": {"type": "boolean"}}}'
)


def switch(kind: str) -> str:
    """imdsPolicy for IMDSPolicy."""
    return _FIRST_WORD.sub(lambda first: first[0].lower(), kind)


def listed(kinds: Iterable[KindInfo] = KINDS) -> str:
    """files/kinds.yaml, which the templates loop over."""
    return _HEAD + "".join(
        f"  - {{plural: {kind.plural}, switch: {switch(kind.kind)}, "
        f"namespaced: {'true' if kind.namespaced else 'false'}}}\n"
        for kind in kinds
    )


def with_switches(schema: str, kinds: Iterable[KindInfo] = KINDS) -> str:
    """values.schema.json with the switch of every kind. Raises ValueError if it has no value `kinds`."""
    names = [switch(kind.kind) for kind in kinds]
    required = ", ".join(f'"{name}"' for name in names)
    properties = ",\n".join(f'        "{name}": {_SWITCH}' for name in names)
    body = (
        '      "type": "object",\n      "additionalProperties": false,\n'
        f'      "required": [{required}],\n      "properties": {{\n{properties}\n      }}'
    )
    made, count = _SCHEMA.subn(lambda found: found[1] + body + found[2], schema)
    if count != 1:
        raise ValueError("values.schema.json: no value kinds")
    return made
