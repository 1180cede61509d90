"""The comparison of granted and used rights finds what is missing and what is too much."""

import pytest

from testing.rights import Right, granted, uncovered, unused


def role(kind: str, *rules: dict[str, list[str]], namespace: str = "") -> dict[str, object]:
    return {"kind": kind, "metadata": {"name": "r", "namespace": namespace}, "rules": list(rules)}


def rule(*verbs: str, of: str = "pods", group: str = "", names: tuple[str, ...] = ()) -> dict[str, list[str]]:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [of], "verbs": list(verbs), **named}


EVERYWHERE = Right("", "", "pods", "get")
LEASE = Right("system", "coordination.k8s.io", "leases", "patch")


def test_roles_grant_where_they_stand_and_cluster_roles_everywhere() -> None:
    leases = rule("patch", of="leases", group="coordination.k8s.io")
    roles = [role("ClusterRole", rule("get")), role("Role", leases, namespace="system")]
    assert granted(roles) == {EVERYWHERE, LEASE}


@pytest.mark.parametrize("verb", ["*", "get"])
def test_a_star_is_refused(verb: str) -> None:
    with pytest.raises(ValueError, match="star"):
        granted([role("ClusterRole", rule(verb, of="*" if verb == "get" else "pods"))])


COVERED = {
    "everywhere covers any namespace": (EVERYWHERE, EVERYWHERE._replace(namespace="a", name="p"), True),
    "one namespace covers itself": (LEASE, LEASE._replace(name="caretaker"), True),
    "one namespace does not cover another": (LEASE, LEASE._replace(namespace="a"), False),
    "one namespace does not cover all": (LEASE, LEASE._replace(namespace=""), False),
    "a resource does not cover its subresource": (
        EVERYWHERE,
        EVERYWHERE._replace(resource="pods/log"),
        False,
    ),
    "another group is another resource": (LEASE, LEASE._replace(group=""), False),
    "a name covers itself": (EVERYWHERE._replace(name="p"), EVERYWHERE._replace(name="p"), True),
    "a name does not cover another": (EVERYWHERE._replace(name="p"), EVERYWHERE._replace(name="q"), False),
}


@pytest.mark.parametrize(("grant", "use", "covered"), COVERED.values(), ids=COVERED.keys())
def test_a_right_that_does_not_cover_a_use_is_unused_and_leaves_it_uncovered(
    grant: Right, use: Right, covered: bool
) -> None:
    assert (unused([grant], [use]) == []) == covered
    assert (uncovered([grant], [use]) == []) == covered
