"""The policy of calls to each service: timeouts, retries, rates, which operations are reads, and read-only
access to a service.

Pure. Inputs: boto3's names. A service that is not listed gets the defaults; an unknown operation counts as a
write.
"""

from typing import Any, Final, TypeVar, cast

import msgspec

# A write is sent only if the Lease outlives their sum: 10 s of its 15.
CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 7.0
# Read timeout of long polls: the longest WaitTimeSeconds of SQS (20 s) plus 10 s. The timeout belongs to the
# client, so it is the same for shorter waits.
POLL_READ_SECONDS: Final = 30.0


class Rate(msgspec.Struct, frozen=True):
    """A token bucket: `per_second` tokens flow in, at most `burst` are kept."""

    per_second: float
    burst: float


class Policy(msgspec.Struct, frozen=True):
    """How one service is called.

    attempts    requests sent for one call, botocore's "standard" retries included
    rate        of calls, for each identity and region; reads and writes each have it
    answer_mib  the largest answer, headers included
    """

    attempts: int = 3
    rate: Rate = Rate(50, 100)
    answer_mib: int = 4


_POLICIES: Final = {
    # A refresh that botocore repeats takes both of the gateway's slots and restarts its 60 s.
    "storagegateway": Policy(attempts=1, rate=Rate(5, 10)),
    # Its limits are not published. A refresh has a backoff of its own.
    "cloudfront": Policy(attempts=1, rate=Rate(5, 10)),
    # Its limits are not published. Its reader has a backoff of its own.
    "s3control": Policy(attempts=1, rate=Rate(5, 10)),
    # A message that botocore sends again arrives twice.
    "sns": Policy(attempts=1),
    "events": Policy(attempts=1),
    "lambda": Policy(attempts=1),
    # Standard queues have no limit that one process reaches (Amazon SQS developer guide, "Quotas").
    # Ten messages of 1 MiB, whose characters JSON may double.
    "sqs": Policy(rate=Rate(1000, 2000), answer_mib=24),
    # Non-mutating actions: 100 at once, 20 a second (Amazon EC2 developer guide, "Request throttling").
    # A page has 1,000 instances, each with up to 50 tags.
    "ec2": Policy(rate=Rate(20, 100), answer_mib=32),
    # Each look has its number of calls, and a backoff of its own. Of clusters 50 reads at once, 20 a second,
    # of services more (Amazon ECS API reference, "Request throttling").
    "ecs": Policy(attempts=1, rate=Rate(20, 50)),
    # Each reader has a backoff of its own, and each metric that is asked for is charged for. 50 a second
    # (Amazon CloudWatch user guide, "CloudWatch service quotas"), shared with every dashboard of the account.
    "cloudwatch": Policy(attempts=1, rate=Rate(5, 10)),
    # Its limits are not published, and are shared with the autoscalers of the groups.
    "autoscaling": Policy(rate=Rate(5, 20)),
}
_DEFAULT: Final = Policy()

_READS: Final = ("Get", "List", "Describe", "Head")
# Safe without the Lease: a received message becomes visible again, and a session of a role expires.
_HARMLESS: Final = frozenset(("ReceiveMessage", "AssumeRole", "AssumeRoleWithWebIdentity"))


def policy(service: str) -> Policy:
    """How to call a service."""
    return _POLICIES.get(service, _DEFAULT)


def api_name(operation: str) -> str:
    """DescribeInstances for describe_instances. Only a client knows exceptions such as
    DescribeNFSFileShares."""
    return "".join(part.capitalize() for part in operation.split("_"))


def is_write(operation: str) -> bool:
    """Whether an operation (`DeleteMessageBatch`) may change something, and so needs the Lease."""
    return not (operation.startswith(_READS) or operation in _HARMLESS)


# Batch operations are permitted by the action of one (Service Authorization Reference, Amazon SQS).
_ACTIONS: Final = {
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "lambda:Invoke": "lambda:InvokeFunction",
    "s3control:GetAccessPoint": "s3:GetAccessPoint",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
}


def iam_action(service: str, operation: str) -> str:
    """The IAM action that permits an operation: sqs:DeleteMessage for DeleteMessageBatch."""
    action = f"{service}:{operation}"
    return _ACTIONS.get(action, action)


S = TypeVar("S")


class ReadOnlyError(AssertionError):
    """Our code called a write operation of a read-only service: a bug."""


def read_only(service: S) -> S:
    """The same service, for reading."""
    return cast(S, _ReadOnly(service))


class _ReadOnly:
    """Passes on reads and refuses writes."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, operation: str) -> Any:
        if is_write(api_name(operation)):
            raise ReadOnlyError(f"{api_name(operation)} is refused: nothing may be changed here")
        return getattr(self._service, operation)
