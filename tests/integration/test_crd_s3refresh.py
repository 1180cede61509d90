"""Specs of S3AggregatedRefresh that a real API server refuses: each with the field and the words that a user
reads."""

from collections.abc import Iterator
from typing import Any

import pytest

from caretaker.registry import S3_AGGREGATED_REFRESH
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.s3refreshes import ACCOUNT, GATEWAY, QUEUE, SHARE, aws, completion, gateway, refresh, shares, sqs

SQS = "spec.source.sqs"
TARGET = "spec.target.storageGateway"
ONE_OF_SHARES = "needs exactly one of discover and fileShareARNs; remove one, or set discover to {}"


@pytest.fixture(scope="module")
def refreshes(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, S3_AGGREGATED_REFRESH) as own:
        yield own


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        # As whom AWS is called.
        pytest.param({}, "spec.aws", "Required value", id="an empty spec"),
        pytest.param(
            refresh(aws={}), "spec.aws.region", "is missing; set the region of the queue", id="no region"
        ),
        pytest.param(
            aws(region=""), "spec.aws.region", "is missing; set the region of the queue", id="an empty region"
        ),
        pytest.param(
            aws(region="Ireland"), "spec.aws.region", "must be", id="a region by its name for people"
        ),
        pytest.param(
            aws(roleARN="arn:aws:iam::123456789012:user/a"),
            "spec.aws.roleARN",
            "must be",
            id="a user in place of a role",
        ),
        pytest.param(
            aws(externalID="abc"),
            "spec.aws.externalID",
            "set roleARN as well, or remove externalID",
            id="an external ID without a role",
        ),
        pytest.param(
            aws(credentialsSecretRef={"name": "My_Keys"}),
            "spec.aws.credentialsSecretRef.name",
            "must be",
            id="a Secret of an impossible name",
        ),
        pytest.param(
            aws(endpointURLs={"SQS": "http://127.0.0.1:4566"}),
            "spec.aws.endpointURLs",
            "keyed by service: cloudfront, events, lambda, sns, sqs, storagegateway or sts",
            id="an endpoint of a service in upper case",
        ),
        pytest.param(
            aws(endpointURLs={"sqs": "127.0.0.1:4566"}),
            "spec.aws.endpointURLs[sqs]",
            "must be",
            id="an endpoint without a scheme",
        ),
        # The queue.
        pytest.param(refresh(source={}), SQS, "Required value", id="no queue"),
        pytest.param(sqs(queueURL=None), f"{SQS}.queueURL", "Required value", id="a queue without URL"),
        pytest.param(
            sqs(queueURL=f"arn:aws:sqs:eu-west-1:{ACCOUNT}:events"),
            f"{SQS}.queueURL",
            "must be",
            id="a queue's ARN in place of its URL",
        ),
        pytest.param(
            sqs(queueURL="https://sqs.eu-west-1.amazonaws.com/events"),
            f"{SQS}.queueURL",
            "must be",
            id="a queue's URL without the account",
        ),
        pytest.param(
            sqs(queueURL=f"{QUEUE}?Action=PurgeQueue"),
            f"{SQS}.queueURL",
            "must be",
            id="a queue's URL with a query",
        ),
        pytest.param(
            sqs(queueURL=f"{QUEUE}.fifo"),
            f"{SQS}.queueURL",
            "is a FIFO queue, which S3 cannot send to; use a Standard queue",
            id="a FIFO queue",
        ),
        pytest.param(
            sqs(queueURL=QUEUE.replace("eu-west-1", "us-east-1")),
            f"{SQS}.queueURL",
            "another region than spec.aws.region; set spec.aws.region to the region in the URL",
            id="a queue of another region",
        ),
        pytest.param(
            sqs(queueURL=f"https://us-east-1.queue.amazonaws.com/{ACCOUNT}/events"),
            f"{SQS}.queueURL",
            "another region than spec.aws.region",
            id="a queue of another region by its old host",
        ),
        pytest.param(
            sqs(queueURL=f"https://vpce-1a-2b.sqs.us-gov-west-1.vpce.amazonaws.com/{ACCOUNT}/events"),
            f"{SQS}.queueURL",
            "another region than spec.aws.region",
            id="a queue of another region by a private endpoint",
        ),
        pytest.param(
            sqs(envelope="Json"),
            f"{SQS}.envelope",
            'supported values: "Auto", "S3", "SNS", "EventBridge"',
            id="an envelope that does not exist",
        ),
        pytest.param(
            sqs(waitTime="21s"), f"{SQS}.waitTime", "a duration from 0s to 20s", id="a wait longer than SQS's"
        ),
        pytest.param(
            sqs(waitTime=20), f"{SQS}.waitTime", "must be of type string", id="a duration without a unit"
        ),
        pytest.param(
            sqs(waitTime="1500ms"),
            f"{SQS}.waitTime",
            "a duration from 0s to 20s",
            id="a wait in milliseconds",
        ),
        pytest.param(
            sqs(visibilityTimeout="29s"),
            f"{SQS}.visibilityTimeout",
            "a duration from 30s to 12h",
            id="messages hidden for less than a pass",
        ),
        pytest.param(
            sqs(visibilityTimeout="12h1s"),
            f"{SQS}.visibilityTimeout",
            "a duration from 30s to 12h",
            id="messages hidden for longer than SQS does",
        ),
        pytest.param(
            sqs(waitTime="1m", visibilityTimeout="60s"),
            f"{SQS}.visibilityTimeout",
            "must be longer than waitTime; raise visibilityTimeout or lower waitTime",
            id="messages hidden for no longer than a receive",
        ),
        pytest.param(
            sqs(malformed="Ignore"),
            f"{SQS}.malformed",
            'supported values: "DeadLetter", "RefreshAll", "Discard"',
            id="an answer to malformed messages that does not exist",
        ),
        # Which events count.
        pytest.param(
            refresh(filter={"events": []}),
            "spec.filter.events",
            "at least 1 items",
            id="no kind of event at all",
        ),
        pytest.param(
            refresh(filter={"events": ["ObjectRestored"]}),
            "spec.filter.events[0]",
            'supported values: "ObjectCreated", "ObjectRemoved", "LifecycleExpiration"',
            id="a kind of event that does not exist",
        ),
        pytest.param(
            refresh(filter={"buckets": ["s3://media"]}),
            "spec.filter.buckets[0]",
            "must be",
            id="a bucket's URL",
        ),
        pytest.param(
            refresh(filter={"excludePrefixes": [""]}),
            "spec.filter.excludePrefixes[0]",
            "at least 1 chars",
            id="an empty prefix, which would exclude all",
        ),
        pytest.param(
            refresh(filter={"prefixes": ["a" * 1025]}),
            "spec.filter.prefixes[0]",
            "may not be more than 1024",
            id="a prefix longer than any key",
        ),
        pytest.param(
            refresh(filter={"suffixes": [f".{n}" for n in range(101)]}),
            "spec.filter.suffixes",
            "must have at most 100 items",
            id="101 suffixes",
        ),
        pytest.param(
            refresh(filter={"prefixes": ["a", "a"]}),
            "spec.filter.prefixes[1]",
            "Duplicate value",
            id="a prefix twice",
        ),
        # What it costs.
        pytest.param(
            refresh(cost={"listPrice": "free"}),
            "spec.cost.listPrice",
            'must be an amount such as "0.005"',
            id="a price that is no amount",
        ),
        pytest.param(
            refresh(cost={"maxEstimatedCostPerDay": "-1"}),
            "spec.cost.maxEstimatedCostPerDay",
            'must be an amount such as "2.50"',
            id="a budget below nothing",
        ),
        pytest.param(
            refresh(cost={"maxEstimatedCostPerDay": 2}),
            "spec.cost.maxEstimatedCostPerDay",
            "must be of type string",
            id="a budget that is no text",
        ),
        # When.
        pytest.param(
            refresh(debounce={"quietPeriod": "11m"}),
            "spec.debounce.quietPeriod",
            "must not be longer than maxDelay; lower quietPeriod or raise maxDelay",
            id="a quiet period longer than the longest delay",
        ),
        pytest.param(
            refresh(debounce={"minInterval": "30s"}),
            "spec.debounce.minInterval",
            "must be at least 60s with spec.target.storageGateway",
            id="the gateway asked again within a minute",
        ),
        pytest.param(
            refresh(debounce={"maxDelay": "1d"}),
            "spec.debounce.maxDelay",
            "must be a duration from 0s to 24h",
            id="a duration in days",
        ),
        pytest.param(
            refresh(debounce={"quietPeriod": ""}),
            "spec.debounce.quietPeriod",
            "must be a duration from 0s to 24h, such as 30s or 1m30s",
            id="an empty duration",
        ),
        pytest.param(
            refresh(debounce={"quietPeriod": "-30s"}),
            "spec.debounce.quietPeriod",
            "must be a duration from 0s to 24h",
            id="a negative duration",
        ),
        pytest.param(
            refresh(resync={"interval": "9000h"}),
            "spec.resync.interval",
            "must be a duration from 0s (none) to 8760h",
            id="a resync less than once a year",
        ),
        pytest.param(
            refresh(retry={"initial": "20m"}),
            "spec.retry.initial",
            "must not be longer than max; lower initial or raise max",
            id="a first retry later than the last",
        ),
        pytest.param(
            refresh(retry={"initial": "0s"}),
            "spec.retry.initial",
            "must be a duration from 1s to 1h",
            id="retries without a pause",
        ),
        # What is refreshed.
        pytest.param(
            refresh(target={}), "spec.target", "must have exactly one member; set", id="nothing to refresh"
        ),
        pytest.param(
            refresh(target={"storageGateway": {}}), f"{TARGET}.shares", "Required value", id="no shares named"
        ),
        pytest.param(shares(), f"{TARGET}.shares", ONE_OF_SHARES, id="neither discovered nor listed shares"),
        pytest.param(
            shares(fileShareARNs=[]), f"{TARGET}.shares", ONE_OF_SHARES, id="an empty list of shares"
        ),
        pytest.param(
            shares(discover={}, fileShareARNs=[SHARE]),
            f"{TARGET}.shares",
            ONE_OF_SHARES,
            id="shares both discovered and listed",
        ),
        pytest.param(
            shares(fileShareARNs=[GATEWAY]),
            f"{TARGET}.shares.fileShareARNs[0]",
            "must be",
            id="a gateway's ARN in place of a share's",
        ),
        pytest.param(
            shares(fileShareARNs=[f"{SHARE}{n}" for n in range(65)]),
            f"{TARGET}.shares.fileShareARNs",
            "must have at most 64 items",
            id="65 shares",
        ),
        pytest.param(
            shares(discover={"gatewayARNs": [SHARE]}),
            f"{TARGET}.shares.discover.gatewayARNs[0]",
            "must be",
            id="a share's ARN in place of a gateway's",
        ),
        pytest.param(
            shares(discover={"protocols": []}),
            f"{TARGET}.shares.discover.protocols",
            "at least 1 items",
            id="shares of no protocol",
        ),
        pytest.param(
            gateway(regions=["*"]), f"{TARGET}.regions[0]", "must be", id="every region by a wildcard"
        ),
        pytest.param(
            gateway(accessPointBuckets={"media-ap": "s3://media"}),
            f"{TARGET}.accessPointBuckets[media-ap]",
            "must be",
            id="an access point of a bucket's URL",
        ),
        pytest.param(
            gateway(scope="Bucket"),
            f"{TARGET}.scope",
            'supported values: "Folders", "Share"',
            id="a scope that does not exist",
        ),
        pytest.param(
            gateway(maxFolders=0), f"{TARGET}.maxFolders", "greater than or equal to 1", id="no folder a call"
        ),
        pytest.param(
            gateway(maxFolders=51), f"{TARGET}.maxFolders", "less than or equal to 50", id="51 folders a call"
        ),
        pytest.param(
            gateway(concurrencyPerGateway=3),
            f"{TARGET}.concurrencyPerGateway",
            "less than or equal to 2",
            id="three refreshes at a time",
        ),
        pytest.param(
            gateway(rediscoverEvery="0s"),
            f"{TARGET}.rediscoverEvery",
            "must be a duration from 10s to 24h",
            id="discovery without a pause",
        ),
        # How its end is learnt.
        pytest.param(
            completion(timeout="15m", queueURL=QUEUE),
            f"{TARGET}.completion.timeout",
            "must be longer than assumeAfter; raise timeout or lower assumeAfter",
            id="given up on no later than assumed",
        ),
        pytest.param(
            completion(timeout="5m", assumeAfter="5m"),
            f"{TARGET}.completion.timeout",
            "must be longer than assumeAfter; raise timeout or lower assumeAfter",
            id="given up on no later than it asks to be assumed",
        ),
        pytest.param(
            completion(queueURL=f"{QUEUE}.fifo"),
            f"{TARGET}.completion.queueURL",
            "is a FIFO queue, whose messages must be taken in order; use a Standard queue",
            id="completions by a FIFO queue",
        ),
        pytest.param(
            completion(queueURL=QUEUE.replace("eu-west-1", "us-east-1")),
            f"{TARGET}.completion.queueURL",
            "another region than spec.aws.region; use a queue of spec.aws.region",
            id="completions by a queue of another region",
        ),
        pytest.param(
            completion(onTimeout="Forget"),
            f"{TARGET}.completion.onTimeout",
            'supported values: "RefreshAgain", "Assume"',
            id="an answer to a lost completion that does not exist",
        ),
        pytest.param(
            refresh(onDelete="Keep"),
            "spec.onDelete",
            'supported values: "Discard", "Flush"',
            id="an answer to deletion that does not exist",
        ),
    ],
)
def test_refused(refreshes: Objects, spec: Spec, field: str, message: str) -> None:
    status, _, causes = refreshes.refusal(spec)
    assert status == 422
    assert [said for at, said in causes if at == field and message in said], causes


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param(
            refresh(debounce={"quietPeriod": "soon"}), {"spec.debounce.quietPeriod"}, id="no duration"
        ),
        pytest.param(refresh(retry={"initial": "1 s"}), {"spec.retry.initial"}, id="a duration with a space"),
        pytest.param(sqs(queueURL="events"), {"spec.source.sqs.queueURL"}, id="a queue's name"),
        pytest.param(
            {**refresh(debounce={"quietPeriod": "1h"}, retry={"max": "1s"}), "onDelete": "Discard"},
            {"spec.debounce.quietPeriod", "spec.retry.initial"},
            id="two faults that have nothing to do with each other",
        ),
    ],
)
def test_only_what_is_wrong_is_complained_of(refreshes: Objects, spec: Spec, fields: set[str]) -> None:
    """Rules that compare two fields keep silent about one that cannot be read."""
    _, _, causes = refreshes.refusal(spec)
    assert {at for at, _ in causes} == fields
    assert not [said for _, said in causes if "evaluating rule" in said]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param(sqs(queueUrl=QUEUE), "spec.source.sqs.queueUrl", id="another spelling of URL"),
        pytest.param(refresh(debounce={"window": "30s"}), "spec.debounce.window", id="the article's window"),
        pytest.param(refresh(target={"kinesis": {}}), "spec.target.kinesis", id="a target of the future"),
    ],
)
def test_unknown_fields_are_refused(refreshes: Objects, spec: Spec, path: str) -> None:
    status, message, _ = refreshes.refusal(spec)
    assert status in (400, 422)
    assert f'unknown field "{path}"' in message
