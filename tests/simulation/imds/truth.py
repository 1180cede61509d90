"""What the documents say, written down a second time: who wins a field, what a change opens or tightens, how
long a canary stands. The judge must not learn it from the code that it judges."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api import durations

Group = tuple[str, str]
# EC2's names -> (the field, its word in allowLoosening and allowTightening)
FIELDS: Final = {
    "HttpPutResponseHopLimit": ("httpPutResponseHopLimit", "HopLimit"),
    "HttpTokens": ("httpTokens", "Tokens"),
    "HttpEndpoint": ("httpEndpoint", "Endpoint"),
    "HttpProtocolIpv6": ("httpProtocolIpv6", "IPv6"),
}
WORDS: Final = [word for _, word in FIELDS.values()]
LABELS: Final = {
    "EKSManagedNodegroup": "eks.amazonaws.com/nodegroup",
    "KarpenterNodePool": "karpenter.sh/nodepool",
}
TEAM: Final = "team"
WATCH_SECONDS: Final = 300.0
# Of tightening changes: what has credentials in hand shows no damage before.
FLOORS: Final = {
    "HttpTokens": 900.0,
    "HttpPutResponseHopLimit": 900.0,
    "HttpEndpoint": 1800.0,
    "HttpProtocolIpv6": 300.0,
}


class Asked(msgspec.Struct):
    """A policy as it stands. `uid` tells it from one of the same name before."""

    name: str
    uid: str
    spec: Mapping[str, Any]

    def safety(self, field: str, default: Any) -> Any:
        """One of spec.safety."""
        return self.spec.get("safety", {}).get(field, default)

    @property
    def canary(self) -> int:
        """How many instances of a group come first; 0 = the promise is given up."""
        return int(self.safety("canary", {}).get("instances", 1))

    @property
    def enforces(self) -> bool:
        """Whether it may change anything."""
        return self.spec.get("mode", "Audit") == "Enforce" and not self.spec.get("suspend", False)

    @property
    def verification(self) -> Mapping[str, Any]:
        """Whether and what is to be proved."""
        found: Mapping[str, Any] = self.spec.get("verification", {})
        return found

    @property
    def expect(self) -> str:
        """What a probe is to find; "" = there is none."""
        verification = self.verification
        return str(verification.get("expect", "PodReachable")) if verification.get("probe") else ""

    def soak(self, name: str, before: Any, after: Any) -> float:
        """For how long this change has to stand."""
        told = durations.seconds(self.safety("canary", {}).get("soak", "2m"))
        return max(told, FLOORS[name] if tightens(name, before, after) else 0.0)

    def allows(self, name: str, before: Any, after: Any) -> bool:
        """Whether its author lets it make this change."""
        twins = ("allowTightening", tightens), ("allowLoosening", loosens)
        return all(
            FIELDS[name][1] in self.safety(field, ()) for field, is_so in twins if is_so(name, before, after)
        )

    def options(self) -> dict[str, Any]:
        """By EC2's names."""
        return {ec2_name(field): value for field, value in self.spec["options"].items()}


def ec2_name(field: str) -> str:
    """HttpTokens for httpTokens."""
    return field[0].upper() + field[1:]


def tightens(name: str, before: Any, after: Any) -> bool:
    """Whether it closes an instance further."""
    if isinstance(after, int):
        return bool(after < before)
    return after != before and after in ("required", "disabled")


def loosens(name: str, before: Any, after: Any) -> bool:
    """Whether it opens it."""
    return bool(before != after and not tightens(name, before, after))


def group_of(labels: Mapping[str, str], asg: str) -> Group:
    """The first of a node's groups."""
    return groups_of(labels, asg)[0]


def groups_of(labels: Mapping[str, str], asg: str) -> list[Group]:
    """All; ("", "") where there is none."""
    found = [(kind, labels[label]) for kind, label in LABELS.items() if labels.get(label)]
    return found + ([("AutoScalingGroup", asg)] if asg else []) or [("", "")]


def meant(selector: Mapping[str, Any], labels: Mapping[str, str], groups: Iterable[Group]) -> bool:
    """Of the selectors that the histories use."""
    wanted = selector.get("nodeSelector", {}).get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    excluded = selector.get("exclude", {}).get("matchLabels", {})
    if excluded and all(labels.get(key) == value for key, value in excluded.items()):
        return False
    terms = [(term["kind"], name) for term in selector.get("groups", ()) for name in term["names"]]
    return not terms or any(group in terms for group in groups)


def winners(
    policies: Iterable[Asked], labels: Mapping[str, str], groups: Iterable[Group]
) -> dict[str, tuple[Asked, Any]]:
    """EC2's name of a field -> the policy that decides it, and the value. A suspended one goes on winning;
    two that contradict each other leave it to nobody."""
    groups, claims = list(groups), dict[str, list[tuple[int, str, Asked, Any]]]()
    for one in policies:
        if one.spec.get("mode") == "Enforce" and meant(one.spec.get("selector", {}), labels, groups):
            for name, value in one.options().items():
                claims.setdefault(name, []).append((-one.spec.get("priority", 100), one.name, one, value))
    found = {}
    for name, claimed in claims.items():
        first = [one for one in sorted(claimed, key=lambda c: c[:2]) if one[0] == min(c[0] for c in claimed)]
        if len({value for *_, value in first}) == 1:
            found[name] = first[0][2:]
    return found
