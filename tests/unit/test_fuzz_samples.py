"""The samples of specs that `make fuzz` changes have each field: one that they lack is never fuzzed."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from caretaker.api import daemontask, imds, s3refresh
from fuzz import s3samples, samples

# Older fields that the samples lack. A field that is added to a sample leaves its line here.
LACKS = {
    "TASK of dev/fuzz/samples.py": {
        "ecs",  # ECS_TASK has it
        *("concurrencyPolicy", "rebootsNode", "minSuccessSeconds", "activeDeadlineSeconds", "nodeGate"),
        *("progressDeadlineSeconds", "ttlSecondsAfterFinished", "drain"),
        "podFailurePolicy.rules.onPodConditions.status",
    },
    "REFRESH of dev/fuzz/s3samples.py": {
        *("aws.roleARN", "aws.externalID", "aws.credentialsSecretRef", "aws.endpointURLs"),
        *("source.sqs.envelope", "source.sqs.waitTime", "source.sqs.visibilityTimeout"),
        *("source.sqs.malformed", "suspend", "filter.excludePrefixes", "filter.suffixes"),
        *("resync.onStart", "onDelete"),
    },
    "POLICY of dev/fuzz/samples.py": {
        *("options.httpEndpoint", "options.httpProtocolIpv6", "options.instanceMetadataTags", "suspend"),
        *("aws.externalID", "selector.exclude.matchExpressions.values", "safety.maxHopLimit"),
        *("safety.canary.onFailure", "safety.maxChangesPerMinute", "safety.maxDriftPercent"),
        *("safety.stopAfterConsecutiveFailures", "verification.probe", "verification.nodesPerGroup"),
        *("verification.expect", "verification.maxLatencyMilliseconds", "tokenGate", "pendingTimeout"),
    },
}


def inner(found: inspect.Type) -> inspect.Type:
    """The type of an item of a list, and of an optional value."""
    if isinstance(found, inspect.UnionType):
        return next(one for one in found.types if not isinstance(one, inspect.NoneType))
    return inner(found.item_type) if isinstance(found, inspect.VarTupleType) else found


def missing(found: inspect.Type, sample: Any, path: str = "") -> Iterator[str]:
    """The paths of fields that the sample lacks."""
    if not isinstance(found := inner(found), inspect.StructType):
        return
    sample = sample[0] if isinstance(sample, list | tuple) else sample
    for field in found.fields:
        below = f"{path}.{field.encode_name}".lstrip(".")
        if field.encode_name not in sample:
            yield below
        else:
            yield from missing(field.type, sample[field.encode_name], below)


@pytest.mark.parametrize(
    ("where", "spec", "sample"),
    [
        ("TASK of dev/fuzz/samples.py", daemontask.Spec, samples.TASK),
        ("REFRESH of dev/fuzz/s3samples.py", s3refresh.Spec, s3samples.REFRESH),
        ("POLICY of dev/fuzz/samples.py", imds.Spec, samples.POLICY),
    ],
    ids=["DaemonTask", "S3AggregatedRefresh", "IMDSPolicy"],
)
def test_the_sample_has_every_field(where: str, spec: type[msgspec.Struct], sample: dict[str, Any]) -> None:
    found = set(missing(inspect.type_info(spec), sample))
    assert sorted(found - LACKS[where]) == [], f"fields that {where} lacks: `make fuzz` does not try them"
    assert sorted(LACKS[where] - found) == [], (
        f"{where} has them: remove them from LACKS of tests/unit/test_fuzz_samples.py"
    )
