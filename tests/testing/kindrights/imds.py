"""Rights of an operator with IMDSPolicy alone."""

from typing import Final

RIGHTS: Final = {
    "imdspolicies": "get list watch",
    "imdspolicies/status": "patch",
    "nodes": "list watch",
    "ec2nodeclasses": "list",
    "events": "create",
}
