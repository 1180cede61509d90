"""Every name that caretaker writes into a cluster: group, labels, annotations, environment.

Pure data. One constant per name, so that the chart, the docs and the tests can be compared with it.
"""

from typing import Final

GROUP: Final = "caretaker.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "caretaker"

# Labels (values at most 63 characters).
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "caretaker"
LABEL_TASK: Final = f"{GROUP}/daemontask"  # task name, on Pods and ledger shards
LABEL_NODE_HASH: Final = f"{GROUP}/node-hash"  # h10(node name): a name of 253 characters is no label value
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_LEDGER: Final = f"{GROUP}/ledger"  # shard index, on ledger ConfigMaps
LABEL_REFRESH: Final = f"{GROUP}/s3aggregatedrefresh"  # its name, on Jobs
LABEL_CLAIM: Final = f"{GROUP}/claim"  # id of the claim that a Job executes

# On a Secret whose values may be sent as headers: the label is "true"; the annotation lists the hosts,
# separated by commas, with a port unless it is the default of the scheme.
SECRET_HEADERS: Final = f"{GROUP}/headers"
SECRET_HOSTS: Final = f"{GROUP}/hosts"

# Annotation on a node that a DaemonTask has cordoned: its namespace, name, UID and the time, joined by "/".
CORDONED_BY: Final = f"{GROUP}/cordoned-by"

# Annotations on Pods: the purpose of a run.
POD_NODE_NAME: Final = f"{GROUP}/node-name"
POD_NODE_UID: Final = f"{GROUP}/node-uid"
POD_RUN_KEY: Final = f"{GROUP}/run-key"
POD_NONCE: Final = f"{GROUP}/nonce"
POD_BOOT_ID: Final = f"{GROUP}/boot-id"
POD_TRIGGER: Final = f"{GROUP}/trigger"
POD_ATTEMPT: Final = f"{GROUP}/attempt"
POD_SEQ: Final = f"{GROUP}/seq"
POD_EXCLUSIVE: Final = (
    f"{GROUP}/exclusive"  # the group of spec.exclusive that it counts for, once its task is gone
)
POD_SCHEDULED_AT: Final = f"{GROUP}/scheduled-at"  # RFC 3339: the tick of a schedule that the run is for

# Annotations on a DaemonTask: requests of a user.
RERUN_AT: Final = f"{GROUP}/rerun-at"  # RFC 3339 time: run again on every node
RERUN_NODES: Final = f"{GROUP}/rerun-nodes"  # JSON {node name: RFC 3339 time}: run again on these
RESUME_AT: Final = f"{GROUP}/resume-at"  # RFC 3339 time: failures before it no longer pause the rollout
LEDGER_DECISION: Final = f"{GROUP}/ledger"  # rerun | assume-done [: nodes], when a ledger is lost

# Annotations on an S3AggregatedRefresh: requests of a user.
REFRESH_AT: Final = f"{GROUP}/refresh-at"  # RFC 3339 time: refresh everything
REFRESH_FOLDERS: Final = f"{GROUP}/refresh-folders"  # JSON {folder: RFC 3339 time}: refresh these

# Annotations on ledger ConfigMaps: they reveal an older copy, and one that lacks entries.
LEDGER_WRITES: Final = f"{GROUP}/ledger-writes"  # number of the write that made it, growing for ever
LEDGER_RECORDS: Final = f"{GROUP}/ledger-records"  # how many nodes that write left in it

# Environment of a run's containers.
ENV_NODE_NAME: Final = "NODE_NAME"
ENV_RUN_KEY: Final = "DAEMONTASK_RUN_KEY"
ENV_ATTEMPT: Final = "DAEMONTASK_ATTEMPT"

# Environment of a refresh Job's containers.
ENV_PAYLOAD: Final = "CARETAKER_PAYLOAD"
