"""Events on a bus of Amazon EventBridge."""

from typing import ClassVar, Final

import msgspec

from caretaker.api import names
from caretaker.api.s3refresh import Spec
from caretaker.aws.errors import AwsError, ErrorClass, word
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.resource import KIND, user_of
from caretaker.s3refresh.targets import Tools
from caretaker.s3refresh.targets.messages import Messages, MessageTarget


class EventBridgeTarget(MessageTarget, frozen=True):
    """PutEvents, in the bus's own region."""

    member: ClassVar[str] = "eventBridge"

    event_bus_arn: str = msgspec.field(name="eventBusARN")
    prefix: str = ""

    def called(self, region: str) -> dict[str, str]:  # noqa: ARG002 - the ARN names it
        return {"spec.target.eventBridge.eventBusARN": self.event_bus_arn}


TARGET_TYPE: Final = EventBridgeTarget


def make(meant: EventBridgeTarget, spec: Spec, tools: Tools) -> "EventBus":
    """The target."""
    return EventBus(meant, spec, tools)


class EventBus(Messages):
    """One bus."""

    def __init__(self, meant: EventBridgeTarget, spec: Spec, tools: Tools) -> None:
        super().__init__(spec.filter.buckets, meant.prefix)
        region = meant.event_bus_arn.split(":")[3]
        key = ClientKey.of(spec.aws, "events", tools.keys, region=region, user=user_of(tools.resource))
        self._client = tools.aws.events(key)
        self._arn = meant.event_bus_arn

    async def send(self, payload: str, claim: Claim) -> None:  # noqa: ARG002 - the payload has its id
        answer = await self._client.put_events(
            Entries=[
                {
                    "Source": names.GROUP,
                    "DetailType": KIND,
                    "Detail": payload,
                    "EventBusName": self._arn,
                }
            ]
        )
        if answer["FailedEntryCount"]:
            (entry, *_) = (*answer["Entries"], {})
            code = word(entry.get("ErrorCode"))
            internal = code.startswith("Internal")  # it may have been accepted
            raise AwsError(
                ErrorClass.UNKNOWN_OUTCOME if internal else ErrorClass.TRANSIENT,
                code,
                str(entry.get("ErrorMessage", "")),
                status=400,
                service="events",
                operation="PutEvents",
            )
