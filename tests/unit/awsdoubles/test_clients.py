"""The tests' own boto3 clients."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from awsdoubles import clients
from awsdoubles.clients import client


def test_no_request_is_sent_on_a_connection_that_the_server_may_be_closing() -> None:
    """Each has a connection of its own."""
    peers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            peers.append(self.client_address[1])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            if self.close_connection:  # the request asked for it
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        sqs = client("sqs", f"http://127.0.0.1:{server.server_port}")
        try:
            for _ in range(3):
                sqs.list_queues()
        finally:
            sqs.close()
            server.shutdown()
    assert len(set(peers)) == 3


QUEUE = {"QueueUrl": "http://127.0.0.1/0/q"}
SET_UP: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CreateQueue": ("sqs", "create_queue", {"QueueName": "q"}),
    "CreateTopic": ("sns", "create_topic", {"Name": "t"}),
    "GetQueueAttributes": ("sqs", "get_queue_attributes", QUEUE),
    "PutBucketNotificationConfiguration": (
        *("s3", "put_bucket_notification_configuration"),
        {"Bucket": "b", "NotificationConfiguration": {}},
    ),
    "PutBucketVersioning": (
        *("s3", "put_bucket_versioning"),
        {"Bucket": "b", "VersioningConfiguration": {"Status": "Enabled"}},
    ),
    "PutRule": ("events", "put_rule", {"Name": "r"}),
    "PutTargets": ("events", "put_targets", {"Rule": "r", "Targets": [{"Id": "i", "Arn": "a"}]}),
    "SetQueueAttributes": ("sqs", "set_queue_attributes", {**QUEUE, "Attributes": {"Policy": "{}"}}),
}
# A second message, event or receipt would be another history.
ONCE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "DeleteMessage": ("sqs", "delete_message", {**QUEUE, "ReceiptHandle": "h"}),
    "PutEvents": ("events", "put_events", {"Entries": [{"Source": "s"}]}),
    "PutObject": ("s3", "put_object", {"Bucket": "b", "Key": "k"}),
    "ReceiveMessage": ("sqs", "receive_message", QUEUE),
    "SendMessage": ("sqs", "send_message", {**QUEUE, "MessageBody": "m"}),
}


@pytest.mark.parametrize("operation", sorted({*clients.REPEATED, *SET_UP, *ONCE}))
def test_without_a_reply_only_set_up_requests_are_sent_again_and_only_once(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.path)
            over.wait()

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    service, method, arguments = (SET_UP | ONCE)[operation]
    monkeypatch.setattr(clients, "READ_TIMEOUT", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        made = client(service, f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(ReadTimeoutError):
                getattr(made, method)(**arguments)
        finally:
            over.set()
            made.close()
            server.shutdown()
    assert len(sent) == (2 if operation in SET_UP else 1)
