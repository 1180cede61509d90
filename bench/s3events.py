"""Object events as S3 sends them, sent to a queue; and the least that a consumer of it can do.

`python -m bench.s3events QUEUE_URL THREADS` is that consumer: bare boto3, a loop of receive, parse and delete
on each thread, until the queue is empty. It prints {events, requests, cpu, seconds}: CPU seconds of the
process since its loops began.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote_plus, unquote_plus, urlsplit

import msgspec

from awsdoubles.clients import client
from testbed.paths import CHECKOUT

BATCH: Final = 10  # of one receive, one deletion, one sending (SQS's own limit)
SENDERS: Final = 4
OWNER: Final = "A3NL1KOZZKExample"


class Bare(msgspec.Struct, frozen=True):
    """What the bare loop did."""

    events: int
    requests: int
    cpu: float
    seconds: float


def body(bucket: str, key: str, number: int) -> str:
    """One message: version 2.1, every field that S3 fills in (Amazon S3 user guide, "Event message
    structure")."""
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-west-1",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:AROAEXAMPLEID:writer"},
        "requestParameters": {"sourceIPAddress": "192.0.2.3"},
        "responseElements": {
            "x-amz-request-id": f"{number:016X}",
            "x-amz-id-2": f"FMyUVURIY8{number:060d}",
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "caretaker",
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": OWNER},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": {
                "key": quote_plus(key, safe="/"),
                "size": 1024,
                "eTag": f"{number:032x}",
                "sequencer": f"{number:018X}",
            },
        },
    }
    return json.dumps({"Records": [record]})


def send(queue_url: str, bodies: Iterable[str]) -> None:
    """All of them, in full batches; blocks."""
    batches: list[list[dict[str, str]]] = [[]]
    for text in bodies:
        if len(batches[-1]) == BATCH:
            batches.append([])
        batches[-1].append({"Id": str(len(batches[-1])), "MessageBody": text})
    sqs = _sqs(queue_url)
    with ThreadPoolExecutor(SENDERS) as pool:
        for answer in pool.map(
            lambda some: sqs.send_message_batch(QueueUrl=queue_url, Entries=some), batches
        ):
            assert not answer.get("Failed"), answer["Failed"]
    sqs.close()


def bare(queue_url: str, threads: int) -> Bare:
    """Empty the queue by the bare loop, in a process of its own."""
    command = [sys.executable, "-m", "bench.s3events", queue_url, str(threads)]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return msgspec.json.decode(done.stdout, type=Bare)


def _sqs(queue_url: str) -> Any:
    address = urlsplit(queue_url)
    return client("sqs", f"{address.scheme}://{address.netloc}")


def _consume(sqs: Any, queue_url: str) -> tuple[int, int]:
    """(events, requests) of one thread."""
    events = requests = 0
    while True:
        answer = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=0)
        found = answer.get("Messages", [])
        requests += 1
        if not found:
            return events, requests
        for message in found:
            for record in json.loads(message["Body"])["Records"]:
                events += bool(unquote_plus(record["s3"]["object"]["key"]))
        entries = [{"Id": str(at), "ReceiptHandle": m["ReceiptHandle"]} for at, m in enumerate(found)]
        assert not sqs.delete_message_batch(QueueUrl=queue_url, Entries=entries).get("Failed")
        requests += 1


def _main(queue_url: str, threads: int) -> None:
    sqs = _sqs(queue_url)
    started, cpu = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(lambda _: _consume(sqs, queue_url), range(threads)))
    found = Bare(
        events=sum(events for events, _ in done),
        requests=sum(requests for _, requests in done),
        cpu=time.process_time() - cpu,
        seconds=time.monotonic() - started,
    )
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
