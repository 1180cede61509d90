"""Bodies as a kube-apiserver answers them; tests/integration/kube/test_contract.py compares them with those
of a real one.

Pure. A test that scripts an answer takes it from here. Of 5xx there is only `failure`: a real server gives
none on demand.
"""

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

RETRY_SECONDS = 1


def failure(code: int, reason: str, message: str = "", **details: Any) -> Json:
    """The Status of a refusal: the body of an answer, the object of an ERROR event."""
    body: Json = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return body | ({"details": details} if details else {})


def not_found(resource: str, name: str) -> Json:
    """404. `resource` is the plural, with its group if it has one: daemontasks.caretaker.dev."""
    return failure(404, "NotFound", f'{resource} "{name}" not found', **_details(resource, name))


def already_exists(resource: str, name: str) -> Json:
    """409 of a create."""
    return failure(409, "AlreadyExists", f'{resource} "{name}" already exists', **_details(resource, name))


def conflict(resource: str, name: str) -> Json:
    """409 of a write with an old resourceVersion."""
    message = (
        f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return failure(409, "Conflict", message, **_details(resource, name))


def page_expired() -> Json:
    """410 of a continue token. The one in the answer reads on without consistency."""
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new "
        "list without the continue parameter, or use the continue token in this response to retrieve the "
        "remainder of the results. Continuing with the provided token results in an inconsistent list - "
        "objects that were created, modified, or deleted between the time the first chunk was returned and "
        "now may show up in the list."
    )
    return failure(410, "Expired", message) | {"metadata": {"continue": "inconsistent"}}


def version_expired(asked: int, oldest: int) -> Json:
    """410 in the stream of a watch from a resourceVersion before the oldest known."""
    return failure(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_many_requests(seconds: int = RETRY_SECONDS) -> Json:
    """429 with the seconds to wait."""
    return failure(429, "TooManyRequests", "storage is (re)initializing", retryAfterSeconds=seconds)


def unauthorized() -> Json:
    """401."""
    return failure(401, "Unauthorized", "Unauthorized")


def forbidden(verb: str, resource: str, user: str = "operator", namespace: str = "") -> Json:
    """403 of a collection."""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    plural, _, group = resource.partition(".")
    message = (
        f'{resource} is forbidden: User "{user}" cannot {verb} resource "{plural}" '
        f'in API group "{group}" {where}'
    )
    return failure(403, "Forbidden", message, **_details(resource))


def deleted(resource: str, name: str, uid: str) -> Json:
    """200 of a delete, Pods excepted."""
    details = {**_details(resource, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def listing(
    version: int | str,
    *items: Json,
    token: str = "",
    left: int = 0,
    kind: str = "Node",
    api_version: str = "v1",
) -> Json:
    """200 of a list; with `token` a page of it, and `left` items follow."""
    meta: Json = {"resourceVersion": str(version)}
    if token:
        meta |= {"continue": token, "remainingItemCount": left}
    return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": meta, "items": list(items)}


def event(kind: str, item: Json) -> Json:
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    return {"type": kind, "object": item}


def bookmark(version: int | str, kind: str = "Node", api_version: str = "v1") -> Json:
    """The object of a BOOKMARK."""
    return {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": str(version)}}


def _details(resource: str, name: str = "") -> Json:
    plural, _, group = resource.partition(".")
    return {key: text for key, text in (("name", name), ("group", group), ("kind", plural)) if text}
