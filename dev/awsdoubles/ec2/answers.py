"""Answers of the EC2 and the query protocol, written by botocore's models. Pure.

A member that the model does not have is an error of the double, or of the test that put it there.
"""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4
from xml.sax.saxutils import escape

from awsdoubles.ec2.errors import AwsError

EC2_NAMESPACE: Final = "http://ec2.amazonaws.com/doc/2016-11-15/"
SCALING_NAMESPACE: Final = "http://autoscaling.amazonaws.com/doc/2011-01-01/"


def ec2_result(operation: str, shape: Any, result: dict[str, Any]) -> str:
    """An EC2 answer."""
    out = [
        f'<{operation}Response xmlns="{EC2_NAMESPACE}"><requestId>{uuid4()}</requestId>',
    ]
    _members(shape, result, out)
    out.append(f"</{operation}Response>")
    return "".join(out)


def ec2_error(error: AwsError) -> str:
    """An EC2 refusal."""
    return (
        f"<Response><Errors><Error><Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message>"
        f"</Error></Errors><RequestID>{uuid4()}</RequestID></Response>"
    )


def query_result(operation: str, shape: Any, result: dict[str, Any]) -> str:
    """An Auto Scaling answer; without a shape there is nothing to say but that it was done."""
    out = [f'<{operation}Response xmlns="{SCALING_NAMESPACE}">']
    if shape is not None:
        out.append(f"<{operation}Result>")
        _members(shape, result, out)
        out.append(f"</{operation}Result>")
    out.append(f"<ResponseMetadata><RequestId>{uuid4()}</RequestId></ResponseMetadata></{operation}Response>")
    return "".join(out)


def query_error(error: AwsError) -> str:
    """An Auto Scaling refusal."""
    side = "Sender" if error.status < 500 else "Receiver"
    return (
        f'<ErrorResponse xmlns="{SCALING_NAMESPACE}"><Error><Type>{side}</Type>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(str(error))}</Message></Error>"
        f"<RequestId>{uuid4()}</RequestId></ErrorResponse>"
    )


def fits(shape: Any, value: dict[str, Any]) -> None:
    """Raise ValueError unless `value` can be written: for what a test hands in as it should come out."""
    _members(shape, value, [])


def _members(shape: Any, value: dict[str, Any], out: list[str]) -> None:
    members = shape.members
    for name, item in value.items():
        if name not in members:
            raise ValueError(f"{shape.name} has no member {name!r}")
        if item is not None:
            inner = members[name]
            _element(inner, inner.serialization.get("name", name), item, out)


def _element(shape: Any, tag: str, value: Any, out: list[str]) -> None:
    kind = shape.type_name
    if kind == "structure":
        out.append(f"<{tag}>")
        _members(shape, value, out)
        out.append(f"</{tag}>")
    elif kind == "list":
        inner = shape.member
        item_tag = inner.serialization.get("name", "member")
        out.append(f"<{tag}>")
        for item in value:
            _element(inner, item_tag, item, out)
        out.append(f"</{tag}>")
    else:
        out.append(f"<{tag}>{_text(kind, value)}</{tag}>")


def _text(kind: str, value: Any) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "timestamp":
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return escape(str(value))
