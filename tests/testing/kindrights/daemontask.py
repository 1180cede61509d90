"""Rights of an operator with DaemonTask alone."""

from typing import Final

RIGHTS: Final = {
    "daemontasks": "get list watch",
    "daemontasks/status": "patch",
    "nodes": "get list watch",
    "pods": "get list watch create delete",
    "configmaps": "get list create patch",
    "events": "create",
}
