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

KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH)
