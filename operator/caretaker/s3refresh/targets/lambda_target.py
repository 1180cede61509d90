"""Asynchronous invocations of a function of AWS Lambda."""

from typing import ClassVar, Final

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.resource import user_of
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.messages import Messages, MessageTarget


class LambdaTarget(MessageTarget, frozen=True):
    """Invoke, in the function's own region."""

    member: ClassVar[str] = "lambda"

    function_arn: str = msgspec.field(name="functionARN")
    prefix: str = ""

    def called(self, region: str) -> dict[str, str]:  # noqa: ARG002 - the ARN names it
        return {"spec.target.lambda.functionARN": self.function_arn}


TARGET_TYPE: Final = LambdaTarget


def make(meant: LambdaTarget, spec: Spec, tools: Tools) -> "Function":
    """The target."""
    return Function(meant, spec, tools)


class Function(Messages):
    """One function."""

    def __init__(self, meant: LambdaTarget, spec: Spec, tools: Tools) -> None:
        super().__init__(spec.filter.buckets, meant.prefix)
        region = meant.function_arn.split(":")[3]
        key = ClientKey.of(spec.aws, "lambda", tools.keys, region=region, user=user_of(tools.resource))
        self._client = tools.aws.lambda_(key)
        self._arn = meant.function_arn

    async def send(self, payload: str, claim: Claim) -> None:  # noqa: ARG002 - the payload has its id
        await self._client.invoke(FunctionName=self._arn, InvocationType="Event", Payload=payload.encode())
