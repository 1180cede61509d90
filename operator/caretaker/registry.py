"""The kinds, one line each. The wiring, handlers, commands, RBAC tests, metrics labels, the docs index and
the end-to-end smoke test are driven from here.

It imports no code of a kind: commands that only read would have to load every controller and boto3.
"""

from typing import Final

import msgspec

from caretaker.api.names import API_VERSION

# Users of a wheel or an image have no manifests.
INSTALL_CRDS: Final = "install the CRDs of this version: crds.yaml of its release, or the Helm chart"


class KindInfo(msgspec.Struct, frozen=True):
    """A custom resource that this operator keeps.

    short     its name for kubectl
    package   of its modules: caretaker.<package>.wiring has its WIRING, caretaker.cli.<package> its views
    plan_key  of its resources in the JSON of `caretaker plan`
    """

    kind: str
    plural: str
    namespaced: bool
    short: str
    package: str
    plan_key: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """The API path of one resource; without a name that of all in the namespace; without both of all."""
        scope = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        collection = f"/apis/{API_VERSION}{scope}/{self.plural}"
        return f"{collection}/{name}" if name else collection


DAEMON_TASK: Final = KindInfo(
    "DaemonTask", "daemontasks", namespaced=True, short="dtask", package="daemontask", plan_key="tasks"
)
S3_AGGREGATED_REFRESH: Final = KindInfo(
    "S3AggregatedRefresh",
    "s3aggregatedrefreshes",
    namespaced=True,
    short="s3ar",
    package="s3refresh",
    plan_key="refreshes",
)
IMDS_POLICY: Final = KindInfo(
    "IMDSPolicy", "imdspolicies", namespaced=False, short="imdsp", package="imds", plan_key="policies"
)

KINDS: Final = (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY)


def named(text: str) -> tuple[KindInfo, ...]:
    """The kinds whose plurals these are, by comma. Raises ValueError for an unknown one, and for none."""
    wanted = {part.strip() for part in text.split(",")} - {""}
    plurals = [kind.plural for kind in KINDS]
    unknown = sorted(wanted.difference(plurals))
    if unknown or not wanted:
        raise ValueError(f"{unknown[0] if unknown else text!r}: must be of {', '.join(plurals)}, by comma")
    return tuple(kind for kind in KINDS if kind.plural in wanted)
