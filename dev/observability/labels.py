"""What the values of each label may be: a pattern that every value must match, and words for people.

Pure. A label is bounded when its values are words of the code (kinds, results, states), names of resources
(few, and written by people), or words from elsewhere of which the code lets a hundred through
(obs/series.py). What grows with the cluster or its traffic is never one: nodes, pods, instances,
folders, queues, messages.
"""

import re
from typing import Final

import msgspec

from caretaker.api import conditions
from caretaker.registry import KINDS


class Label(msgspec.Struct, frozen=True):
    """The values of one label."""

    pattern: re.Pattern[str]
    words: str
    values: tuple[str, ...] = ()  # all of them, where they can be listed

    def allows(self, value: str) -> bool:
        """Whether a series may have this value."""
        return self.pattern.fullmatch(value) is not None


def one_of(*values: str, words: str = "") -> Label:
    """Any of these."""
    listed = ", ".join(f"`{value}`" for value in values)
    return Label(re.compile("|".join(map(re.escape, values))), words or listed, values)


def constants(holder: object) -> set[str]:
    """The texts in upper-case names of a class or module."""
    return {v for k, v in vars(holder).items() if k.isupper() and isinstance(v, str)}


NAME: Final = Label(re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"), "the resource's name")
NAMESPACE: Final = Label(
    re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?"), "the resource's namespace; empty for an IMDSPolicy"
)
KIND: Final = one_of(*(info.kind for info in KINDS))
CONDITION: Final = one_of(
    *sorted(constants(conditions)), words="a condition's type, as in the pages of the kinds"
)
VERB: Final = one_of("get", "list", "watch", "create", "patch", "delete")
RESOURCE: Final = one_of(
    *("nodes", "pods", "configmaps", "events", "leases", "secrets", "jobs", "ec2nodeclasses"),
    "selfsubjectaccessreviews",
    *(info.plural for info in KINDS),
    "",
    words="the plural of the resource, such as `pods`; empty for discovery",
)
STATUS: Final = Label(re.compile(r"[1-5]\d\d|<error>"), "the HTTP status, or `<error>` without an answer")
# Words of a refusal or of an answer: bounded by obs/series.py.
WORD: Final = re.compile(r"other|[A-Za-z][\w./]{0,79}")
SERVICE: Final = one_of(
    "sqs",
    "sts",
    "ec2",
    "ecs",
    "autoscaling",
    "storagegateway",
    "cloudwatch",
    "cloudfront",
    "sns",
    "events",
    "lambda",
    "s3control",
)
OPERATION: Final = Label(re.compile(r"[A-Z][A-Za-z]{1,60}"), "the call's name, such as `ReceiveMessage`")
AWS_CODE: Final = Label(
    re.compile(rf"<error>|{WORD.pattern}"),
    "`OK`, AWS's error code, `<error>` without an answer, or `other` (beyond 100 values)",
)
