"""Samples of S3AggregatedRefreshes."""

from typing import Any, Final

from fuzz.samples import CONDITION

REFRESH: Final[dict[str, Any]] = {
    "aws": {"region": "eu-west-1"},
    "source": {"sqs": {"queueURL": "https://sqs.eu-west-1.amazonaws.com/1/q"}},
    "target": {"storageGateway": {"shares": {"discover": {}}}},
    "filter": {
        "events": ["ObjectCreated"],
        "buckets": ["media"],
        "prefixes": ["in/"],
        "excludeSuffixes": [".tmp"],
        "ignorePrincipals": ["AWS:*:gateway"],
    },
    "debounce": {"quietPeriod": "10s", "maxDelay": "2m", "minInterval": "1m"},
    "retry": {"initial": "30s", "max": "10m"},
    "resync": {"interval": "24h"},
    "cost": {"listPrice": "0.005", "headPrice": "0.0004", "maxEstimatedCostPerDay": "2.50"},
}
_WAITS: Final[dict[str, Any]] = {
    "since": "2027-01-15T07:59:00.000001Z",
    "all": False,
    "folders": ["in", "in/2026"],
    "trees": ["out"],
    "requested": True,
}
REFRESH_STATUS: Final[dict[str, Any]] = {
    "observedGeneration": 1,
    "conditions": [CONDITION],
    "queue": {
        "visible": 1,
        "inFlight": 1,
        "dlqVisible": 1,
        "dlqCovered": 1,
        "checkedAt": "2027-01-15T07:59:00Z",
        "dlqARN": "arn:aws:sqs:eu-west-1:111122223333:dead",
    },
    "requests": {
        "refreshAt": "2027-01-15T07:59:00Z",
        "foldersAt": "2027-01-15T07:59:00Z",
        "doneAt": "2027-01-15T07:59:00Z",
    },
    "cost": {
        "refreshCost": "0.4050",
        "refreshSeconds": 182,
        "minInterval": "4h52m",
        "buckets": [
            {
                "bucket": "media",
                "region": "eu-west-1",
                "targets": 1,
                "objects": 1000000,
                "countedAt": "2027-01-14T00:00:00Z",
                "askedAt": "2027-01-15T07:00:00Z",
                "failures": 1,
                "problem": "why",
            }
        ],
    },
    "targets": [
        {
            "id": "share-1",
            "phase": "Backoff",
            "location": "arn:aws:s3:::media/in/",
            "dirty": {**_WAITS, "closed": True, "later": _WAITS, "maxFolders": 25},
            "claim": {
                "id": "c",
                "owner": "o",
                "startedAt": "2027-01-15T07:59:00Z",
                "since": "2027-01-15T07:58:00Z",
                "folders": ["in"],
                "recursive": True,
                "attempt": 2,
                "requested": True,
            },
            "inFlight": {
                "notificationID": "n",
                "acceptedAt": "2027-01-15T07:57:00Z",
                "folders": ["in"],
                "recursive": True,
                "requested": True,
            },
            "last": {
                "requestedAt": "2027-01-15T07:57:00Z",
                "acceptedAt": "2027-01-15T07:57:00Z",
                "completedAt": "2027-01-15T07:57:30Z",
                "fullAt": "2027-01-15T07:00:00Z",
                "fullSeconds": 30,
                "durationSeconds": 30,
                "folders": 1,
                "result": "Succeeded",
                "endpoint": "https://gateways.example",
            },
            "failure": {"count": 2, "code": "c", "message": "m", "nextAttemptAt": "2027-01-15T08:00:00Z"},
        }
    ],
}
