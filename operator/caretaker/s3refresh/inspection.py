"""A look at a source queue: its attributes, and how many messages lie in its dead-letter queue.

Inputs: SQS. It must not judge: queue_view.py does.
"""

import msgspec

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.s3refresh import advice
from caretaker.s3refresh.queue_view import (
    ATTRIBUTES,
    QueueView,
    dead_letter_queue,
    no_dead_letter_queue,
    view_of,
)

DEPTH = "ApproximateNumberOfMessages"


async def inspect(sqs: Sqs, source: SQSSource, before: QueueView) -> QueueView:
    """The present attributes; `before`, with the problem, when SQS does not answer."""
    try:
        answer = await sqs.get_queue_attributes(QueueUrl=source.queue_url, AttributeNames=ATTRIBUTES)
    except AwsError as error:
        return msgspec.structs.replace(
            before, problem=advice.describe(error, advice.QUEUE), code=str(error.error_class)
        )
    found = answer.get("Attributes", {})
    view = view_of(found, source, None)
    place = dead_letter_queue(found)
    if place is None:
        return view
    try:
        return msgspec.structs.replace(view, dead_letters=await _dead_letters(sqs, *place))
    except AwsError as error:
        # Not being allowed to look at it is no fault: it carries nothing.
        lost = error.not_found and not view.fault and source.malformed == "DeadLetter"
        return msgspec.structs.replace(view, fault=no_dead_letter_queue(source, place[1])) if lost else view


async def _dead_letters(sqs: Sqs, account: str, name: str) -> int:
    url = (await sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account))["QueueUrl"]
    answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=(DEPTH,))
    return int(answer.get("Attributes", {}).get(DEPTH, 0))
