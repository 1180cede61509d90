"""boto3 clients for the doubles: dummy keys, one attempt, nothing from the user's own configuration.

One attempt, because a retry inside the client would hide a fault or make it happen twice. Only requests that
set up queues and notifications are sent a second time when no reply comes: MiniStack left one CreateQueue
unanswered for 30 s. One request a connection, because MiniStack closes what was idle for 75 s: a request that
is sent at that moment fails.
"""

import sys
import threading
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError

REGION: Final = "eu-west-1"
ACCOUNT: Final = "000000000000"  # what MiniStack makes of the key below
KEY: Final = "test"
READ_TIMEOUT: Final = 30  # above SQS's longest wait of 20 s
# Sent twice, each of these has the effect of one.
REPEATED: Final = (
    "CreateQueue",
    "CreateTopic",
    "GetQueueAttributes",
    "PutBucketNotificationConfiguration",
    "PutBucketVersioning",
    "PutRule",
    "PutTargets",
    "SetQueueAttributes",
)

_making = threading.Lock()  # a session may make one client at a time; a client serves many threads
_session: list[boto3.session.Session] = []


def client(service: str, url: str, *, region: str = REGION, connections: int = 10) -> Any:
    """A client of `service` at `url`; close it when done."""
    with _making:
        if not _session:
            # Neither the user's profile nor their endpoints: those could lead to the real AWS.
            core = botocore.session.Session(
                session_vars={
                    "profile": (None, None, None, None),
                    "config_file": (None, None, "/dev/null", None),
                    "credentials_file": (None, None, "/dev/null", None),
                }
            )
            _session.append(boto3.session.Session(botocore_session=core))
        made = _session[0].client(
            service,
            region_name=region,
            endpoint_url=url,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
            config=Config(
                retries={"total_max_attempts": 1},
                connect_timeout=5,
                read_timeout=READ_TIMEOUT,
                max_pool_connections=connections,
                tcp_keepalive=True,
                proxies={},
                s3={"addressing_style": "path"},
            ),
        )
    made.meta.events.register("before-send", _not_kept)
    for operation in REPEATED:
        made.meta.events.register(f"needs-retry.*.{operation}", _again)
    return made


def _not_kept(request: Any, **_: Any) -> None:
    request.headers["Connection"] = "close"


def _again(operation: Any, attempts: int, caught_exception: Exception | None, **_: Any) -> float | None:
    """How many seconds to wait before the request is made again; None: it is not."""
    if attempts > 1 or not isinstance(caught_exception, ReadTimeoutError):
        return None
    print(f"{operation.name}: {caught_exception} Sending it again.", file=sys.stderr)
    return 0.0
