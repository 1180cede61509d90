"""The parts of `plan` and `status` that a kind provides, and the options that it gets. Data alone."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from caretaker.cli.common import Session
from caretaker.cli.manifest import Document
from caretaker.cli.propose import Planned
from caretaker.registry import KindInfo


class PlanOptions(msgspec.Struct, frozen=True):
    """The flags of `plan`. A kind ignores those that mean nothing to it."""

    wide: bool = False
    samples: tuple[str, ...] = ()  # s3://BUCKET/KEY


class KindCommands(msgspec.Struct, frozen=True):
    """The commands of one kind.

    key     of the kind's resources in the JSON of `plan`
    check   raises UsageError for options that make no sense with these documents
    plan    the plan of a document
    status  prints the state of the resource of this name (name, -o, --watch); returns the exit code
    """

    kind: KindInfo
    key: str
    check: Callable[[PlanOptions, Sequence[Document]], None]
    plan: Callable[[Session, Document, PlanOptions], Awaitable[Planned]]
    status: Callable[[Session, str, str | None, bool], Awaitable[int]]
