"""A status is written as a merge patch (RFC 7396): the API server keeps what an object in it leaves out."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from caretaker.api import daemontask, imds, s3refresh


def objects(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Those of a status that are in no list, which is replaced as a whole."""
    if get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from objects(one)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from objects(field.type)


@pytest.mark.parametrize("module", [daemontask, s3refresh, imds])
def test_what_is_empty_again_replaces_what_was_there(module: Any) -> None:
    every = list(objects(module.Status))
    assert len(every) > 1
    omitting = [
        kind.__name__
        for kind in every
        if kind.__struct_config__.omit_defaults
        and any(not one.required for one in msgspec.structs.fields(kind))
    ]
    assert omitting == []
