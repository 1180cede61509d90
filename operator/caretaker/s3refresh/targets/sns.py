"""Messages to a topic of Amazon SNS."""

from typing import ClassVar, Final

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.resource import user_of
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.messages import Messages, MessageTarget, attributes_of, order_of


class SnsTarget(MessageTarget, frozen=True):
    """Publish, in the topic's own region."""

    member: ClassVar[str] = "sns"

    topic_arn: str = msgspec.field(name="topicARN")
    prefix: str = ""

    def called(self, region: str) -> dict[str, str]:  # noqa: ARG002 - the ARN names it
        return {"spec.target.sns.topicARN": self.topic_arn}


TARGET_TYPE: Final = SnsTarget


def make(meant: SnsTarget, spec: Spec, tools: Tools) -> "Topic":
    """The target."""
    return Topic(meant, spec, tools)


class Topic(Messages):
    """One topic."""

    def __init__(self, meant: SnsTarget, spec: Spec, tools: Tools) -> None:
        super().__init__(spec.filter.buckets, meant.prefix)
        region = meant.topic_arn.split(":")[3]
        key = ClientKey.of(spec.aws, "sns", tools.keys, region=region, user=user_of(tools.resource))
        self._client = tools.aws.sns(key)
        self._arn = meant.topic_arn
        self._group = tools.resource.uid

    async def send(self, payload: str, claim: Claim) -> None:
        await self._client.publish(
            TopicArn=self._arn,
            Message=payload,
            MessageAttributes=attributes_of(claim),
            **order_of(self._arn, self._group, claim),
        )
