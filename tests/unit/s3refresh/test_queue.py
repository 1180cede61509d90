"""Whether a queue can carry S3 events without losing any."""

import json

import pytest

from caretaker.api.s3refresh import SQSSource
from caretaker.s3refresh.queue import fault_of

URL = "https://sqs.eu-west-1.amazonaws.com/111122223333/events"
REDRIVE = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": "arn:dlq", "maxReceiveCount": 5})}


@pytest.mark.parametrize(
    ("url", "found", "malformed", "words"),
    [
        pytest.param(URL, REDRIVE, "DeadLetter", "", id="as it should be"),
        pytest.param(URL, {}, "Discard", "", id="no dead-letter queue, and none is needed"),
        pytest.param(
            f"{URL}.fifo", REDRIVE, "DeadLetter", "FIFO queue, which S3 cannot send to", id="FIFO by name"
        ),
        pytest.param(URL, {**REDRIVE, "FifoQueue": "true"}, "DeadLetter", "use a Standard queue", id="FIFO"),
        pytest.param(
            URL, {**REDRIVE, "MaximumMessageSize": "1024"}, "DeadLetter", "set it to 65536", id="too small"
        ),
        pytest.param(
            URL, {**REDRIVE, "MessageRetentionPeriod": "60"}, "DeadLetter", "set it to 86400", id="too short"
        ),
        pytest.param(URL, {}, "DeadLetter", "has no dead-letter queue", id="no dead-letter queue"),
        pytest.param(
            URL,
            {"RedrivePolicy": json.dumps({"maxReceiveCount": "2"})},
            "DeadLetter",
            "maxReceiveCount is 2",
            id="dead letters too soon",
        ),
        pytest.param(
            URL,
            {"RedrivePolicy": "[]"},
            "DeadLetter",
            "has no dead-letter queue",
            id="a policy of another form",
        ),
    ],
)
def test_fault_of(url: str, found: dict[str, str], malformed: str, words: str) -> None:
    source = SQSSource(queue_url=url, malformed=malformed)  # type: ignore[arg-type]
    fault = fault_of(found, source)
    assert words in fault
    assert bool(fault) == bool(words)
