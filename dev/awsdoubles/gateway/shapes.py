"""Check a request against a botocore shape, in the words of AWS.

botocore's own validation knows required members and minima, but no maxima, patterns or enums, so its
clients send what AWS refuses. Pure: shapes and values in, sentences out.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
    "blob": (str,),
}


def type_errors(shape: Any, value: Any, path: str = "") -> list[str]:
    """What AWS cannot even decode (its SerializationException): wrong JSON types, unknown members."""
    if not _is(shape.type_name, value):
        return [f"{path or 'the request'} must be a {shape.type_name}, not {type(value).__name__}"]
    found: list[str] = []
    if shape.type_name == "structure":
        # AWS ignores unknown members; a double that did would hide a misspelt one.
        found += [
            f"unknown member {name!r} in {path or 'the request'}" for name in value.keys() - shape.members
        ]
    for inner, item, name in _children(shape, value, path):
        if item is not None:  # null means absent in JSON 1.1
            found += type_errors(inner, item, name)
    return found


def constraint_errors(shape: Any, value: Any, path: str = "") -> list[str]:
    """What AWS refuses as a ValidationException: required members, lengths, ranges, patterns, enums."""
    found = [
        f"Value {_shown(value)} at '{path}' failed to satisfy constraint: {text}"
        for text in _broken(shape, value)
    ]
    if shape.type_name == "structure":
        found += [
            f"Value null at '{_join(path, name)}' failed to satisfy constraint: Member must not be null"
            for name in shape.required_members
            if value.get(name) is None
        ]
    for inner, item, name in _children(shape, value, path):
        if item is not None:
            found += constraint_errors(inner, item, name)
    return found


def summary(errors: list[str]) -> str:
    """AWS's sentence around the errors."""
    return f"{len(errors)} validation error{'s' * (len(errors) > 1)} detected: {'; '.join(errors)}"


def _is(type_name: str, value: Any) -> bool:
    """Unlike Python, JSON has no booleans among its numbers."""
    expected = _TYPES[type_name]
    return isinstance(value, expected) and (not isinstance(value, bool) or type_name == "boolean")


def _children(shape: Any, value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    if shape.type_name == "structure":
        for name, item in value.items():
            if name in shape.members:
                yield shape.members[name], item, _join(path, name)
    elif shape.type_name == "list":
        for number, item in enumerate(value, start=1):
            yield shape.member, item, f"{path}.{number}.member"
    elif shape.type_name == "map":
        for key, item in value.items():
            yield shape.key, key, f"{path}.key"
            yield shape.value, item, f"{path}.{key}.member"


def _join(path: str, member: str) -> str:
    """AWS writes members in lower camel case in its messages: fileShareARN."""
    name = member[:1].lower() + member[1:]
    return f"{path}.{name}" if path else name


def _broken(shape: Any, value: Any) -> Iterator[str]:
    limits: Mapping[str, Any] = shape.metadata
    if shape.type_name in {"string", "list", "map"}:
        yield from _outside(limits, len(value), "have length")
    elif shape.type_name in {"integer", "long", "float", "double"}:
        yield from _outside(limits, value, "have value")
    if "enum" in limits and value not in limits["enum"]:
        yield f"Member must satisfy enum value set: [{', '.join(limits['enum'])}]"
    if "pattern" in limits and not _fits(limits["pattern"])(value):
        yield f"Member must satisfy regular expression pattern: {limits['pattern']}"


def _outside(limits: Mapping[str, Any], size: float, what: str) -> Iterator[str]:
    if "min" in limits and size < limits["min"]:
        yield f"Member must {what} greater than or equal to {limits['min']}"
    if "max" in limits and size > limits["max"]:
        yield f"Member must {what} less than or equal to {limits['max']}"


def _fits(pattern: str) -> Callable[[str], Any]:
    try:
        return re.compile(pattern).search
    except re.error:  # the models are written for Java, which has classes such as \p{L}
        return lambda _: True


def _shown(value: Any) -> str:
    text = str(value)
    return f"'{text[:200]}{'...' if len(text) > 200 else ''}'"
