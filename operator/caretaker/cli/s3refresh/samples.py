"""`--sample s3://BUCKET/KEY`: the targets that an event of an object would make stale. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import Filter, Spec
from caretaker.cli.common import UsageError
from caretaker.s3refresh import match
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import Scope
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import target_type_of

_SCHEME: Final = "s3://"


class Sample(msgspec.Struct, frozen=True):
    """An object and the effect of its event.

    left_out  fields of spec.filter that keep it out
    scopes    target id -> the folders that become stale
    """

    bucket: str
    key: str
    left_out: tuple[str, ...]
    scopes: Mapping[str, Scope]

    @property
    def text(self) -> str:
        """As it was given."""
        return f"{_SCHEME}{self.bucket}/{self.key}"


def objects_in(texts: Iterable[str]) -> list[tuple[str, str]]:
    """(bucket, key) of each; UsageError for an invalid one. The key is taken literally, not URL-encoded."""
    found = []
    for text in texts:
        bucket, _, key = text.removeprefix(_SCHEME).partition("/")
        if not text.startswith(_SCHEME) or not bucket or not key:
            raise UsageError(f"--sample {text}: write an object as s3://BUCKET/KEY")
        found.append((bucket, key))
    return found


def samples_of(spec: Spec, shares: Discovery, objects: Iterable[tuple[str, str]]) -> list[Sample]:
    """Each object with the effect of its event."""
    whole, by_bucket = target_type_of(spec).whole, match.by_bucket(shares.shares)
    # Any kind of event that counts: only the key matters.
    kind = spec.filter.events[0] if spec.filter.events else "ObjectCreated"
    found = []
    for bucket, key in objects:
        event = ObjectEvent(kind, bucket, key)
        left_out = () if match.wanted(spec.filter, event) else tuple(_against(spec.filter, event))
        matcher = match.EventMatcher(spec.filter, by_bucket, whole=whole)
        matcher.add([event])
        found.append(Sample(bucket, key, left_out, matcher.matches().found))
    return found


def _against(given: Filter, event: ObjectEvent) -> Iterable[str]:
    """The fields of the filter, each tried alone."""
    every = Filter()
    for field in msgspec.structs.fields(Filter):
        alone = msgspec.structs.replace(every, **{field.name: getattr(given, field.name)})
        if not match.wanted(alone, event):
            yield field.encode_name


def as_json(sample: Sample) -> dict[str, Any]:
    """For programs."""
    return {
        "object": sample.text,
        "leftOutBy": list(sample.left_out),
        "targets": [
            {
                "id": name,
                "all": scope.all,
                "folders": sorted(scope.folders),
                "trees": sorted(scope.trees),
            }
            for name, scope in sorted(sample.scopes.items())
        ],
    }
