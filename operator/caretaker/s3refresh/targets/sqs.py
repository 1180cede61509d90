"""Messages to a queue of Amazon SQS."""

from typing import ClassVar, Final

import msgspec

from caretaker.api.aws import queue_arn
from caretaker.api.s3refresh import Spec
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.resource import user_of
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.messages import Messages, MessageTarget, attributes_of, order_of


class SqsTarget(MessageTarget, frozen=True):
    """SendMessage, in the region of spec.aws."""

    member: ClassVar[str] = "sqs"

    queue_url: str = msgspec.field(name="queueURL")
    prefix: str = ""

    def called(self, region: str) -> dict[str, str]:
        try:
            arn = queue_arn(self.queue_url, region)
        except ValueError:  # no grant is for such a URL
            arn = self.queue_url
        return {"spec.target.sqs.queueURL": arn}


TARGET_TYPE: Final = SqsTarget


def make(meant: SqsTarget, spec: Spec, tools: Tools) -> "Queue":
    """The target."""
    return Queue(meant, spec, tools)


class Queue(Messages):
    """One queue. If its MaximumMessageSize is smaller than the payload, calls have fewer folders."""

    refusals: ClassVar[frozenset[str]] = frozenset(("InvalidParameterValue", "InvalidMessageContents"))

    def __init__(self, meant: SqsTarget, spec: Spec, tools: Tools) -> None:
        super().__init__(spec.filter.buckets, meant.prefix)
        key = ClientKey.of(spec.aws, "sqs", tools.keys, user=user_of(tools.resource))
        self._client = tools.aws.sqs(key)
        self._url = meant.queue_url
        self._group = tools.resource.uid

    async def send(self, payload: str, claim: Claim) -> None:
        await self._client.send_message(
            QueueUrl=self._url,
            MessageBody=payload,
            MessageAttributes=attributes_of(claim),
            **order_of(self._url, self._group, claim),
        )
