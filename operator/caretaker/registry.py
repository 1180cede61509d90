"""The kinds, one line each. Handlers, RBAC tests, metrics labels, the docs index and the end-to-end smoke
test are driven from here."""

from typing import Final

import msgspec


class KindInfo(msgspec.Struct, frozen=True):
    """A custom resource that this operator keeps."""

    kind: str
    plural: str
    namespaced: bool
    short: str  # as kubectl knows it


DAEMON_TASK: Final = KindInfo("DaemonTask", "daemontasks", namespaced=True, short="dtask")
S3_AGGREGATED_REFRESH: Final = KindInfo(
    "S3AggregatedRefresh", "s3aggregatedrefreshes", namespaced=True, short="s3ar"
)

IMDS_POLICY: Final = KindInfo("IMDSPolicy", "imdspolicies", namespaced=False, short="imdsp")

KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY)


def named(text: str) -> tuple[KindInfo, ...]:
    """The kinds whose plurals these are, by comma. Raises ValueError for one that is none, and for none."""
    wanted = {part.strip() for part in text.split(",")} - {""}
    plurals = [kind.plural for kind in KINDS]
    strange = sorted(wanted.difference(plurals))
    if strange or not wanted:
        raise ValueError(f"{strange[0] if strange else text!r}: must be of {', '.join(plurals)}, by comma")
    return tuple(kind for kind in KINDS if kind.plural in wanted)
