"""What roles grant and what an account used of it, in the same words: the rights of RBAC.

Inputs: roles as bodies, the audit log of a test's control plane. Pure but for reading that log; it grants
nothing and asks nobody.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from testbed.admin import Json
from testbed.cluster import Cluster

# The authorizer's decision, which a 403 alone does not tell: admission says 403 as well (a quota, a namespace
# that is being deleted). k8s.io/apiserver/pkg/endpoints/filters/authorization.go
DECISION = "authorization.k8s.io/decision"


class Right(NamedTuple):
    """One verb on one resource (with its subresource, `pods/log`).

    namespace  where it is granted or was used; "" = everywhere, and for what has no namespace
    name       of the one object that it is about; "" = of any
    """

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""

    def covers(self, used: "Right") -> bool:
        """Whether this, granted, is enough for that, used."""
        return (
            self.namespace in ("", used.namespace) and self[1:4] == used[1:4] and self.name in ("", used.name)
        )

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        named = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{named}{where}"


def granted(roles: Iterable[Json]) -> frozenset[Right]:
    """What ClusterRoles, bound everywhere, and Roles, bound where they stand, grant. A star is no right that
    could be compared: ValueError."""
    found = frozenset(right for role in roles for rule in role["rules"] for right in _rights(role, rule))
    if stars := [right for right in found if "*" in right]:
        raise ValueError(f"a star grants what nobody asked for: {', '.join(map(str, stars))}")
    return found


def _rights(role: Json, rule: Json) -> Iterator[Right]:
    where = role["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
    return (
        Right(where, group, resource, verb, name)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    )


def used(cluster: Cluster, user: str) -> tuple[frozenset[Right], frozenset[Right]]:
    """(What the user was allowed to do, what RBAC refused) so far. Discovery, which every authenticated user
    may read, is left out where it was allowed. The log is a moment behind."""
    allowed, refused = set[Right](), set[Right]()
    for event in _events(cluster, user):
        forbidden = (event.get("annotations") or {}).get(DECISION) == "forbid"
        about = event.get("objectRef")
        if about is None:
            if forbidden:
                refused.add(Right("", "", event["requestURI"], event["verb"]))
            continue
        (refused if forbidden else allowed).add(_right(event["verb"], about))
    return frozenset(allowed), frozenset(refused)


def refused(cluster: Cluster, user: str) -> list[str]:
    """What RBAC refused the user so far."""
    return sorted(map(str, used(cluster, user)[1]))


def _right(verb: str, about: dict[str, Any]) -> Right:
    sub = about.get("subresource")
    resource = f"{about['resource']}/{sub}" if sub else about["resource"]
    return Right(about.get("namespace", ""), about.get("apiGroup", ""), resource, verb, about.get("name", ""))


def _events(cluster: Cluster, user: str) -> Iterator[dict[str, Any]]:
    lines = cluster.audit_log.read_text().splitlines(keepends=True)
    events = (json.loads(line) for line in lines if f'"{user}"' in line and line.endswith("\n"))
    return (event for event in events if event["user"].get("username") == user)


def unused(grants: Iterable[Right], uses: Iterable[Right]) -> list[str]:
    """Rights that were granted and not needed by any of these uses."""
    known = frozenset(uses)
    return sorted(str(right) for right in grants if not any(right.covers(one) for one in known))


def uncovered(grants: Iterable[Right], uses: Iterable[Right]) -> list[str]:
    """Uses that none of these rights covers: something else has granted them."""
    known = frozenset(grants)
    return sorted(str(one) for one in set(uses) if not any(right.covers(one) for right in known))
