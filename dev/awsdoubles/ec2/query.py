"""Requests of the EC2 and the query protocol, read by botocore's models.

Input: the form's fields. A field that the operation does not know is refused, as EC2 does it: a double that
took it would hide a misspelt one. botocore's clients check types and required members, and no enums. Pure.
"""

from collections.abc import Iterator
from typing import Any, Final

from awsdoubles.ec2.errors import AwsError, invalid_value

Tree = dict[str, Any]
ENVELOPE: Final = ("Action", "Version")


def decode(shape: Any, fields: dict[str, str], *, ec2: bool) -> dict[str, Any]:
    """The operation's input, typed; `ec2` tells the two protocols apart."""
    tree: Tree = {}
    for name, value in fields.items():
        if name not in ENVELOPE:
            _plant(tree, name, value)
    found: dict[str, Any] = _structure(shape, tree, "", ec2=ec2)
    return found


def check(shape: Any, value: Any, path: str = "") -> None:
    """Refuse missing members and values outside of an enum, in EC2's words."""
    if shape.type_name == "structure":
        for name in shape.required_members:
            if value.get(name) is None:
                raise AwsError("MissingParameter", f"The request must contain the parameter {path}{name}")
        for name, item in value.items():
            check(shape.members[name], item, name)
    elif shape.type_name == "list":
        for item in value:
            check(shape.member, item, path)
    elif shape.type_name == "string" and shape.enum and value not in shape.enum:
        known = " or ".join(f"'{one}'" for one in shape.enum)
        raise invalid_value(
            f"A value of '{value}' is not valid for {path}. Specify either {known} and try again."
        )


def _plant(tree: Tree, name: str, value: str) -> None:
    """Put Filter.1.Value.2=x where it belongs."""
    *parents, last = name.split(".")
    for parent in parents:
        below = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            raise AwsError("InvalidQueryParameter", f"The parameter {name} is both a value and a structure")
        tree = below
    tree[last] = value


def _structure(shape: Any, tree: Any, path: str, *, ec2: bool) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise AwsError("UnknownParameter", f"The parameter {path} is not recognized")
    members = {_wire_name(inner, name, ec2=ec2): (name, inner) for name, inner in shape.members.items()}
    found = {}
    for field, below in tree.items():
        where = f"{path}.{field}" if path else field
        if field not in members:
            raise AwsError("UnknownParameter", f"The parameter {where} is not recognized")
        name, inner = members[field]
        found[name] = _value(inner, below, where, ec2=ec2)
    return found


def _wire_name(shape: Any, name: str, *, ec2: bool) -> str:
    if not ec2:
        return str(shape.serialization.get("name", name))
    if "queryName" in shape.serialization:
        return str(shape.serialization["queryName"])
    given = str(shape.serialization.get("name", name))
    return given[0].upper() + given[1:]


def _value(shape: Any, below: Any, where: str, *, ec2: bool) -> Any:
    if shape.type_name == "structure":
        return _structure(shape, below, where, ec2=ec2)
    if shape.type_name == "list":
        return [_value(shape.member, item, at, ec2=ec2) for at, item in _items(below, where, ec2=ec2)]
    if not isinstance(below, str):
        raise AwsError("UnknownParameter", f"The parameter {where}.{next(iter(below))} is not recognized")
    return _scalar(shape.type_name, below, where)


def _items(below: Any, where: str, *, ec2: bool) -> Iterator[tuple[str, Any]]:
    if below == "":  # how the query protocol writes an empty list
        return
    if not ec2 and isinstance(below, dict):
        below, where = below.get("member"), f"{where}.member"
    if not isinstance(below, dict) or not all(number.isdecimal() for number in below):
        raise AwsError("UnknownParameter", f"The parameter {where} is not recognized")
    for number in sorted(below, key=int):
        yield f"{where}.{number}", below[number]


def _scalar(kind: str, text: str, where: str) -> Any:
    if kind in {"integer", "long"}:
        try:
            return int(text)
        except ValueError:
            raise invalid_value(f"Invalid value '{text}' for {where}. It must be an integer.") from None
    if kind == "boolean":
        if text.lower() not in {"true", "false"}:
            raise invalid_value(f"Invalid value '{text}' for {where}. It must be true or false.")
        return text.lower() == "true"
    return text
