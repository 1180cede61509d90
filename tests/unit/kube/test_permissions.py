"""Which refusals are RBAC's, what they lack, and when they are over."""

import pytest

from caretaker.kube.errors import ApiError
from caretaker.kube.permissions import Permissions, named_resource

RBAC = (
    'pods "a" is forbidden: User "system:serviceaccount:x:y" cannot {} resource "{}" in API group "" in "n"'
)


def forbidden(message: str) -> ApiError:
    return ApiError(403, "Forbidden", message)


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
    "/apis/caretaker.dev/v1alpha1": "",
}


@pytest.mark.parametrize(("path", "resource"), PATHS.items())
def test_a_path_is_named_as_roles_name_it(path: str, resource: str) -> None:
    assert named_resource(path) == resource


def test_a_missing_permission_is_told_once_and_told_again_when_it_works() -> None:
    told: list[tuple[str, str, bool]] = []
    permissions = Permissions()
    permissions.on_change = lambda *change: told.append(change)
    status = "/apis/caretaker.dev/v1alpha1/namespaces/n/daemontasks/t/status"
    for _ in range(3):
        permissions.refused(forbidden(RBAC.format("patch", "daemontasks/status")))
    permissions.granted("get", status)
    permissions.granted("patch", status.removesuffix("/status"))
    assert told == [("patch", "daemontasks/status", True)]
    permissions.granted("patch", status)
    permissions.granted("patch", status)
    assert told[1:] == [("patch", "daemontasks/status", False)]
    assert permissions.missing == set()


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
    permissions.refused(forbidden(RBAC.format("get", "configmaps")))
    path = "/api/v1/namespaces/n/configmaps/c"
    permissions.refused(ApiError(status, "Any", "exceeded quota", verb="get", path=path))
    assert bool(permissions.missing) == missing


def test_without_a_listener_nothing_breaks() -> None:
    permissions = Permissions()
    permissions.refused(forbidden(RBAC.format("list", "pods")))
    permissions.granted("list", "/api/v1/pods")
    assert permissions.missing == set()
