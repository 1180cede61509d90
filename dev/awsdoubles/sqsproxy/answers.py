"""Answers that the proxy gives by itself, in both of SQS's protocols."""

import json as codec
from typing import Any, Final
from uuid import uuid4
from xml.sax.saxutils import escape

from aiohttp import web

JSON: Final = "application/x-amz-json-1.0"


def ok(body: dict[str, Any]) -> web.Response:
    """A result, JSON."""
    return web.Response(
        body=codec.dumps(body).encode(), headers={"Content-Type": JSON, "x-amzn-RequestId": str(uuid4())}
    )


def relayed(status: int, headers: dict[str, str], body: bytes) -> web.Response:
    """What came from behind, unchanged."""
    return web.Response(status=status, headers=headers, body=body)


def error(operation: str, status: int, code: str, message: str, *, json: bool) -> web.Response:
    """An error as SQS words it."""
    fault = "Sender" if status < 500 else "Receiver"
    if json:
        body = codec.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": message})
        headers = {"Content-Type": JSON, "x-amzn-query-error": f"{code};{fault}"}
        return web.Response(status=status, text=body, headers=headers)
    text = (
        f"<ErrorResponse><Error><Type>{fault}</Type><Code>{escape(code)}</Code>"
        f"<Message>{escape(message)} ({escape(operation)})</Message></Error>"
        f"<RequestId>{uuid4()}</RequestId></ErrorResponse>"
    )
    return web.Response(status=status, text=text, content_type="text/xml")


def empty_receive(*, json: bool) -> web.Response:
    """No messages."""
    if json:
        return ok({})
    text = (
        "<ReceiveMessageResponse><ReceiveMessageResult/><ResponseMetadata>"
        f"<RequestId>{uuid4()}</RequestId></ResponseMetadata></ReceiveMessageResponse>"
    )
    return web.Response(text=text, content_type="text/xml")
