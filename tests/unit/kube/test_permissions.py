"""Which refusals are RBAC's, what they lack, and when they are over."""

import pytest

from caretaker.kube.errors import ApiError
from caretaker.kube.permissions import FORGET_SECONDS, Permissions

RBAC = (
    'pods "a" is forbidden: User "system:serviceaccount:x:y" cannot {} resource "{}" in API group "" in "n"'
)


def forbidden(message: str, path: str = "") -> ApiError:
    return ApiError(403, "Forbidden", message, path=path)


MESSAGES = {
    "RBAC, a resource": (403, RBAC.format("create", "pods"), ("create", "pods")),
    "RBAC, a subresource": (403, RBAC.format("patch", "daemontasks/status"), ("patch", "daemontasks/status")),
    "a quota": (403, 'pods "a" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2', None),
    "Pod Security": (
        403,
        'pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged',
        None,
    ),
    "the same words with another status": (500, RBAC.format("create", "pods"), None),
}


@pytest.mark.parametrize(("status", "message", "expected"), MESSAGES.values(), ids=MESSAGES.keys())
def test_what_a_refusal_says_of_our_role(status: int, message: str, expected: tuple[str, str] | None) -> None:
    assert ApiError(status, "Forbidden", message).missing_permission == expected


PATHS = {
    "/api/v1/nodes": "nodes",
    "/api/v1/nodes/a": "nodes",
    "/api/v1/namespaces/n/pods": "pods",
    "/api/v1/namespaces/n/pods/p": "pods",
    "/api/v1/namespaces/n/pods/p/log": "pods/log",
    "/api/v1/namespaces/n": "namespaces",
    "/apis/caretaker.dev/v1alpha1/namespaces/n/daemontasks/t/status": "daemontasks/status",
    "/apis/coordination.k8s.io/v1/namespaces/n/leases/l": "leases",
}


@pytest.mark.parametrize(("path", "resource"), PATHS.items())
def test_a_path_is_named_as_roles_name_it(path: str, resource: str) -> None:
    permissions = Permissions()
    permissions.refused(
        ApiError(403, "Forbidden", f'cannot get resource "{resource}"', verb="get", path=path)
    )
    assert [key[1] for key in permissions.missing] == [resource]
    permissions.granted("get", path)
    assert permissions.missing == {}


def test_a_missing_permission_is_told_once_and_told_again_when_it_works() -> None:
    told: list[tuple[str, str, bool]] = []
    permissions = Permissions()
    permissions.on_change = lambda *change: told.append(change)
    status = "/apis/caretaker.dev/v1alpha1/namespaces/n/daemontasks/t/status"
    for _ in range(3):
        permissions.refused(forbidden(RBAC.format("patch", "daemontasks/status"), status))
    permissions.granted("get", status)
    permissions.granted("patch", status.removesuffix("/status"))
    assert told == [("patch", "daemontasks/status", True)]
    permissions.granted("patch", status)
    permissions.granted("patch", status)
    assert told[1:] == [("patch", "daemontasks/status", False)]
    assert not permissions.missing


STILL = {
    "what was asked for is not there": (404, False),
    "somebody was faster": (409, False),
    "the object is invalid": (422, False),
    "a quota": (403, True),
    "we are not known at all": (401, True),
    "too many requests": (429, True),
    "the server fails": (500, True),
    "no answer": (0, True),
}


@pytest.mark.parametrize(("status", "missing"), STILL.values(), ids=STILL.keys())
def test_an_error_that_comes_after_authorization_shows_the_permission(status: int, missing: bool) -> None:
    permissions = Permissions()
    path = "/api/v1/namespaces/n/configmaps/c"
    permissions.refused(forbidden(RBAC.format("get", "configmaps"), path))
    permissions.refused(ApiError(status, "Any", "exceeded quota", verb="get", path=path))
    assert bool(permissions.missing) == missing


def test_without_a_listener_nothing_breaks() -> None:
    permissions = Permissions()
    permissions.refused(forbidden(RBAC.format("list", "pods")))
    permissions.granted("list", "/api/v1/pods")
    assert not permissions.missing


class Told:
    """Permissions with a clock that stands still, and what they have told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changes: list[tuple[str, bool]] = []
        self.permissions = Permissions(lambda: self.now)
        self.permissions.on_change = self._note

    def _note(self, verb: str, resource: str, missing: bool) -> None:
        self.changes.append((f"{verb} {resource}", missing))

    def refuse(self, namespace: str, verb: str = "get", resource: str = "secrets") -> None:
        path = f"/api/v1/namespaces/{namespace}/{resource}/x"
        self.permissions.refused(forbidden(RBAC.format(verb, resource), path))

    def grant(self, namespace: str) -> None:
        self.permissions.granted("get", f"/api/v1/namespaces/{namespace}/secrets/y")

    def lease(self) -> None:
        """A request that has nothing to do with it."""
        self.permissions.granted("patch", "/apis/coordination.k8s.io/v1/namespaces/system/leases/l")


def test_what_one_namespace_grants_is_still_missing_in_another() -> None:
    told = Told()
    told.refuse("a")
    told.refuse("b")
    assert told.changes == [("get secrets", True)], "no more series for more namespaces"
    told.grant("a")
    told.grant("c")
    assert told.changes[1:] == []
    told.grant("b")
    assert told.changes[1:] == [("get secrets", False)]


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    told = Told()
    told.refuse("a")
    told.now += FORGET_SECONDS / 2
    told.refuse("b")
    told.refuse("b", "create", "jobs")
    told.now += FORGET_SECONDS / 2 + 1
    told.lease()
    assert told.changes == [("get secrets", True), ("create jobs", True)], "b was refused later"
    told.now += FORGET_SECONDS / 2
    told.lease()
    assert sorted(told.changes[2:]) == [("create jobs", False), ("get secrets", False)]
    told.refuse("a")
    assert told.changes[4:] == [("get secrets", True)]


def test_what_goes_on_being_refused_is_told_once() -> None:
    told = Told()
    for _ in range(10):
        told.refuse("a")
        told.refuse("b")
        told.now += FORGET_SECONDS - 1
        told.lease()
    assert told.changes == [("get secrets", True)]


def test_whoever_no_longer_leads_takes_back_what_was_missing_and_tells_what_is_refused_from_then_on() -> None:
    told = Told()
    told.refuse("a")
    told.refuse("b")
    told.permissions.clear()
    assert told.changes == [("get secrets", True), ("get secrets", False)]
    told.refuse("a")
    assert told.changes[2:] == [("get secrets", True)]
