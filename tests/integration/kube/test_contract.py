"""The scripted API server and a real one answer alike, and the operator's client raises the same errors."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from caretaker.kube.errors import ApiError, error_from
from fakes import answers
from fakes.answers import Json
from testing.apisides import MAP, TASK, Client, Side, real, scripted

KINDS = (
    "not_found",
    "conflict",
    "already_exists",
    "gone",
    "throttled",
    "forbidden",
    "invalid",
    "transient",
    "not_executed",
)
ABOUT_TASK = {"kind": "DaemonTask", "api_version": "caretaker.dev/v1alpha1"}


@pytest.fixture(params=["scripted", "real"])
async def side(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Side]:
    """Each test runs against both."""
    if request.param == "scripted":
        server = scripted(tmp_path)
    else:
        server = real(request.getfixturevalue("cluster"), tmp_path)
    async with server as made:
        yield made


def named(name: str, **more: Any) -> Json:
    return {"metadata": {"name": name}, **more}


def task(name: str, **more: Any) -> Json:
    container = {"name": "c", "image": "none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    about = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask"}
    return {**about, **named(name), "spec": {"template": template}, **more}


def plain(item: Json, version: bool = True) -> Json:
    """Without what differs from server to server: uid, versions, times, and who wrote which field."""
    meta = dict(item["metadata"])
    assert re.fullmatch(r"[0-9a-f-]{36}", meta.pop("uid"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta.pop("creationTimestamp"))
    assert meta.pop("namespace")
    assert ("resourceVersion" in meta) == version
    for key in ("resourceVersion", "managedFields", "generation"):
        meta.pop(key, None)
    return {**item, "metadata": meta}


def of_map(name: str, **more: Any) -> Json:
    return {"kind": "ConfigMap", "apiVersion": "v1", **named(name, **more)}


def check(client: Client, error: ApiError, expected: Json, *kinds: str) -> None:
    """The answer is the one of fakes.answers, and the client understood it."""
    code, details = expected["code"], expected.get("details", {})
    seconds = details.get("retryAfterSeconds")
    assert client.body == expected
    assert client.headers["Content-Type"].partition(";")[0] == "application/json"
    assert client.headers.get("Retry-After") == (None if seconds is None else str(seconds))
    assert (error.status, error.reason, error.message) == (code, expected["reason"], expected["message"])
    assert (client.code, error.retry_after) == (code, seconds)
    assert {kind for kind in KINDS if getattr(error, kind)} == set(kinds)


async def events(side: Side, collection: str, count: int, **params: str | int) -> list[Json]:
    """The first lines of a watch; each has a type and an object, and nothing else."""
    found: list[Json] = []
    query = {"watch": "1", "allowWatchBookmarks": "true", **params}
    async with asyncio.timeout(30), aclosing(side.client.stream(collection, query)) as lines:
        while len(found) < count:
            found.append(json.loads(await anext(lines)))
    assert [line for line in found if line.keys() != {"type", "object"}] == []
    return found


async def test_a_list_and_its_pages(side: Side) -> None:
    before = await side.client.ask("list", side.tasks)
    before["metadata"].pop(
        "continue", None
    )  # a custom resource has it always, a ConfigMap where it is needed
    assert before == answers.listing(before["metadata"]["resourceVersion"], **ABOUT_TASK)
    for name in "abc":
        await side.client.ask("create", side.tasks, task(name))
    first = await side.client.ask("list", side.tasks, limit=2)
    token, version = first["metadata"]["continue"], first["metadata"]["resourceVersion"]
    assert int(version) > int(before["metadata"]["resourceVersion"])
    assert first["metadata"] == {"resourceVersion": version, "continue": token, "remainingItemCount": 1}
    await side.client.ask("delete", f"{side.tasks}/c")
    rest = await side.client.ask("list", side.tasks, limit=2, **{"continue": token})
    assert [item["metadata"]["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert (rest["metadata"]["resourceVersion"], rest["metadata"].get("continue", "")) == (version, "")
    items, _ = await side.client.list(side.tasks, page=1)
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]


async def test_items_of_a_list_do_not_repeat_what_the_list_is_of(side: Side) -> None:
    await side.client.ask("create", side.maps, named("a", data={"k": "1"}))
    found = await side.client.ask("list", side.maps)
    version = found["metadata"]["resourceVersion"]
    items = [item for item in found["items"] if item["metadata"]["name"] == "a"]
    assert found == answers.listing(version, *found["items"], kind="ConfigMap")
    assert [plain(item) for item in items] == [named("a", data={"k": "1"})]


async def test_a_watch_shows_each_state(side: Side) -> None:
    version = (await side.client.list(side.maps))[1]
    await side.client.ask("create", side.maps, named("a", data={"k": "1"}))
    changed = await side.client.ask("patch", f"{side.maps}/a", {"data": {"k": "2"}})
    same = await side.client.ask("patch", f"{side.maps}/a", {"data": {"k": "2"}})
    assert same == changed, "a write that changes nothing makes no version"
    gone = await side.client.ask("delete", f"{side.maps}/a")
    assert gone == answers.deleted(MAP, "a", changed["metadata"]["uid"])
    found = await events(side, side.maps, 3, resourceVersion=version)
    versions = [int(line["object"]["metadata"]["resourceVersion"]) for line in found]
    assert [(line["type"], plain(line["object"])) for line in found] == [
        ("ADDED", of_map("a", data={"k": "1"})),
        ("MODIFIED", of_map("a", data={"k": "2"})),
        ("DELETED", of_map("a", data={"k": "2"})),
    ]
    assert versions == sorted(set(versions))


async def test_a_bookmark_has_a_version_and_no_object(side: Side) -> None:
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    await side.client.ask("create", side.tasks, task("a"))
    added, mark = await events(side, side.tasks, 2, **params)
    version = mark["object"]["metadata"]["resourceVersion"]
    expected = answers.bookmark(version, **ABOUT_TASK)
    expected["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    mark["object"]["metadata"].pop("creationTimestamp", None)
    assert mark == answers.event("BOOKMARK", expected)
    assert added["type"] == "ADDED"
    assert int(version) >= int(added["object"]["metadata"]["resourceVersion"])


async def test_an_object_that_does_not_exist(side: Side) -> None:
    for verb, body in (("get", None), ("patch", {"data": {}}), ("delete", None)):
        error = await side.client.refused(verb, f"{side.maps}/a", body)
        check(side.client, error, answers.not_found(MAP, "a"), "not_found", "not_executed")
    error = await side.client.refused("patch", f"{side.tasks}/a/status", {"status": {}})
    check(side.client, error, answers.not_found(TASK, "a"), "not_found", "not_executed")


async def test_a_create_answers_with_the_stored_object(side: Side) -> None:
    made = await side.client.ask("create", side.maps, named("a", data={"k": "1"}))
    assert side.client.code == 201
    assert plain(made) == of_map("a", data={"k": "1"})
    assert await side.client.ask("get", f"{side.maps}/a") == made
    error = await side.client.refused("create", side.maps, named("a"))
    check(side.client, error, answers.already_exists(MAP, "a"), "already_exists")


async def test_a_patch_holds_for_the_version_that_it_names(side: Side) -> None:
    made = await side.client.ask("create", side.maps, named("a", data={"k": "1", "l": "1"}))
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    changed = await side.client.ask("patch", f"{side.maps}/a", {**old, "data": {"k": "2", "l": None}})
    assert (side.client.code, plain(changed)) == (200, of_map("a", data={"k": "2"}))
    error = await side.client.refused("patch", f"{side.maps}/a", {**old, "data": {"k": "3"}})
    check(side.client, error, answers.conflict(MAP, "a"), "conflict", "not_executed")
    assert await side.client.ask("get", f"{side.maps}/a") == changed


async def test_a_dry_run_stores_nothing(side: Side) -> None:
    dry = await side.client.ask("create", side.maps, named("a"), dryRun="All")
    assert (side.client.code, plain(dry, version=False)) == (201, of_map("a"))
    assert (await side.client.refused("get", f"{side.maps}/a")).not_found
    made = await side.client.ask("create", side.maps, named("a"))
    error = await side.client.refused("create", side.maps, named("a"), dryRun="All")
    check(side.client, error, answers.already_exists(MAP, "a"), "already_exists")
    dry = await side.client.ask("patch", f"{side.maps}/a", {"data": {"k": "1"}}, dryRun="All")
    assert plain(dry) == of_map("a", data={"k": "1"})
    assert dry["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    uid = made["metadata"]["uid"]
    gone = await side.client.ask("delete", f"{side.maps}/a", dryRun="All")
    assert gone == answers.deleted(MAP, "a", uid)
    assert await side.client.ask("get", f"{side.maps}/a") == made


async def test_what_is_owned_goes_with_its_owner(side: Side) -> None:
    owner = await side.client.ask("create", side.maps, named("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned = named("owned")
    owned["metadata"]["ownerReferences"] = [reference]
    made = await side.client.ask("create", side.maps, owned)
    version = made["metadata"]["resourceVersion"]
    await side.client.ask("delete", f"{side.maps}/owner")
    gone = await events(side, side.maps, 2, resourceVersion=version)
    assert [(line["type"], line["object"]["metadata"]["name"]) for line in gone] == [
        ("DELETED", "owner"),
        ("DELETED", "owned"),
    ]
    assert (await side.client.refused("get", f"{side.maps}/owned")).not_found


async def test_the_status_is_written_at_its_own_path_and_nothing_else_there(side: Side) -> None:
    seen = {"observedGeneration": 1}
    made = await side.client.ask("create", side.tasks, task("a", status=seen))
    assert made.get("status") != seen
    one, status = f"{side.tasks}/a", f"{side.tasks}/a/status"
    wrote = await side.client.ask("patch", status, {"status": seen, "spec": {"suspend": True}})
    assert (wrote["status"], wrote["spec"]) == (seen, made["spec"])
    changed = await side.client.ask("patch", one, {"status": None, "spec": {"suspend": True}})
    assert (changed["status"], changed["spec"]) == (seen, {**made["spec"], "suspend": True})
    old = {"metadata": {"resourceVersion": wrote["metadata"]["resourceVersion"]}}
    for where in (one, status):
        error = await side.client.refused("patch", where, {**old, "status": {}, "spec": {"suspend": False}})
        check(side.client, error, answers.conflict(TASK, "a"), "conflict", "not_executed")


async def test_a_page_of_a_version_that_is_forgotten(side: Side) -> None:
    await side.client.ask("create", side.tasks, task("a"))
    await side.compact()
    params = {"continue": await side.token(), "limit": 1}
    error = await side.client.refused("list", side.tasks, **params)
    expected = answers.page_expired()
    assert side.client.body["metadata"].keys() == expected["metadata"].keys()
    side.client.body["metadata"] = expected["metadata"]
    check(side.client, error, expected, "gone", "not_executed")


async def test_a_watch_from_a_version_that_is_forgotten(side: Side) -> None:
    await side.client.ask("create", side.tasks, task("a"))
    await side.compact()
    (line,) = await events(side, side.tasks, 1, resourceVersion=1)
    oldest = int(line["object"]["message"].partition("(")[2].rstrip(")"))
    assert line == answers.event("ERROR", answers.version_expired(1, oldest))
    error = error_from(0, json.dumps(line["object"]).encode())
    assert (error.status, error.gone, oldest > 1) == (410, True, True)


async def test_a_request_that_has_to_wait(side: Side) -> None:
    error = await side.throttled()
    seconds = side.client.body["details"]["retryAfterSeconds"]
    side.client.body["details"].pop("causes", None)  # of a disruption budget
    expected = answers.too_many_requests(seconds) | {"message": error.message}
    check(side.client, error, expected, "throttled", "transient", "not_executed")


async def test_a_user_without_rights(side: Side) -> None:
    client, user = await side.stranger()
    error = await client.refused("list", side.maps)
    namespace = side.maps.split("/")[-2]
    check(client, error, answers.forbidden("list", MAP, user, namespace), "forbidden", "not_executed")
    assert error.missing_permission == ("list", MAP)


async def test_a_token_that_is_no_ones(side: Side) -> None:
    client = await side.unknown()
    check(client, await client.refused("list", side.maps), answers.unauthorized(), "not_executed")
