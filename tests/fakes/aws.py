"""A loopback AWS endpoint whose every answer a test writes down, and which counts its connections.

Inputs: an answer for each action (DeleteMessageBatch); what has none is answered with the least that is an
answer. It must not imitate a service: the doubles of dev/ do that. Runs in threads of its own, as its callers
do.
"""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

# The smallest valid response of each action.
LEAST: Final = {
    "GetQueueUrl": '{"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/q"}',
    "GetQueueAttributes": '{"Attributes": {}}',
    "DeleteMessageBatch": '{"Successful": [{"Id": "1"}]}',
    "ChangeMessageVisibilityBatch": '{"Successful": [{"Id": "1"}]}',
    "ListFileShares": '{"FileShareInfoList": []}',
    "DescribeNFSFileShares": '{"NFSFileShareInfoList": []}',
    "RefreshCache": '{"FileShareARN": "arn:aws:storagegateway:eu-west-1:123456789012:share/share-1"}',
    "SendMessage": '{"MessageId": "m-1"}',
    "Publish": "<PublishResponse><PublishResult><MessageId>m-1</MessageId></PublishResult></PublishResponse>",
    "PutEvents": '{"FailedEntryCount": 0, "Entries": [{"EventId": "e-1"}]}',
    "Invoke": "",
    "CreateInvalidation": "<Invalidation><Id>I1</Id><Status>InProgress</Status></Invalidation>",
    "GetAccessPoint": "<GetAccessPointResult><Bucket>media</Bucket></GetAccessPointResult>",
    "DescribeInstances": "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>",
    "GetCallerIdentity": "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>a</Arn>"
    "<Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>",
}
# Of the services that name an action by its path.
REST: Final = {
    "/invalidation": "CreateInvalidation",
    "/invocations": "Invoke",
    "/accesspoint/": "GetAccessPoint",
}
JSON_ERROR: Final = "application/x-amz-json-1.0"


@dataclass
class Call:
    """One request."""

    action: str
    headers: dict[str, str]
    body: str
    path: str

    @property
    def signer(self) -> str:
        """The access key ID that signed it."""
        return self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body).items()}


@dataclass
class Answer:
    """`body` None: LEAST; `cut`: the connection is closed instead."""

    body: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


Handler = Callable[[Call], Answer]


def error(code: str, message: str = "no", status: int = 400, **more: Any) -> Answer:
    """An error as the JSON protocols write it."""
    return Answer(json.dumps({"__type": code, "message": message, **more}), status)


def assumed(key: str, ends: str) -> Answer:
    """AssumeRole's answer: session keys that end at an ISO time."""
    return Answer(
        "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
        f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        f"<SessionToken>token-{key}</SessionToken><Expiration>{ends}</Expiration>"
        "</Credentials></AssumeRoleResult></AssumeRoleResponse>",
        headers={"Content-Type": "text/xml"},
    )


def query_error(code: str, message: str, status: int = 403) -> Answer:
    """An error as STS writes it."""
    body = (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
        "<RequestId>r-1</RequestId></ErrorResponse>"
    )
    return Answer(body, status, {"Content-Type": "text/xml"})


class FakeAws:
    """`with FakeAws() as fake`; fake.calls in order of arrival, fake.connections as many as were accepted."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.calls: list[Call] = []
        self.connections = 0
        self.url = ""
        self.port = 0
        self._answers: dict[str, Handler] = {}
        self._arrival = threading.Condition()
        self._released = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    def on(self, action: str, answer: Answer | Handler) -> None:
        """Answer an action so from now on."""
        self._answers[action] = answer if callable(answer) else lambda _: answer

    def hang(self, action: str, then: Answer | None = None) -> None:
        """Answer an action only after release()."""

        def wait(_: Call) -> Answer:
            self._released.wait(60)
            return then or Answer()

        self.on(action, wait)

    def release(self) -> None:
        """Let everything go that hangs."""
        self._released.set()

    def actions(self) -> list[str]:
        """The actions called, in order."""
        return [call.action for call in self.calls]

    async def received(self, count: int, action: str = "") -> None:
        """Wait until so many calls (of an action) have come in."""

        def there() -> bool:
            return sum(1 for c in self.calls if action in ("", c.action)) >= count

        def wait() -> bool:
            with self._arrival:
                return self._arrival.wait_for(there, 30)

        assert await asyncio.to_thread(wait), f"{self.actions()} came in, not {count} {action}"

    def __enter__(self) -> Self:
        fake = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def get_request(self) -> tuple[socket.socket, Any]:
                found = super().get_request()
                fake.connections += 1
                return found

            def handle_error(self, *_: Any) -> None:
                """A client that has gone away is no news."""

        self._server = Server(("127.0.0.1", 0), _handler(self))
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def serve(self, call: Call) -> Answer:
        """Note a call and say its answer."""
        with self._arrival:
            self.calls.append(call)
            self._arrival.notify_all()
        return self._answers.get(call.action, lambda _: Answer())(call)


def _handler(fake: FakeAws) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: else each answer waits 40 ms for an acknowledgement

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            named = self.headers.get("X-Amz-Target", "").rpartition(".")[2] or next(
                (action for part, action in REST.items() if part in self.path), ""
            )
            action = named or parse_qs(body).get("Action", [""])[0]
            call = Call(action or f"{self.command} {self.path}", dict(self.headers), body, self.path)
            answer = fake.serve(call)
            if answer.cut:
                self.close_connection = True
                return
            body = LEAST.get(action, "{}") if answer.body is None else answer.body
            content = body.encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": JSON_ERROR, **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST  # noqa: N815 - http.server's own names

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    return Requests
