"""Events that become invalidations: real API server, real operator, and CloudFront's double, whose log is the
judge: each claim is one invalidation, however often its call is made."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from awsdoubles.cloudfront import MAX_WILDCARDS, CloudFront, Fault, Invalidation
from caretaker.api.names import REFRESH_FOLDERS
from testbed.admin import Admin, Json
from testing.apiproxy import ApiProxy
from testing.aws import Source
from testing.operator import OperatorProcess
from testing.refreshing import Refresh, Refreshing, condition, stands

ID: Final = "EDFDVBD6EXAMPLE"
KEYS: Final = ("in/a b.html", "in/c.html")
PATHS: Final = ("/in/a*", "/in/c.html")


@pytest.fixture
async def cloudfront() -> AsyncIterator[CloudFront]:
    with CloudFront() as started:
        started.distributions.add(ID)
        yield started


async def refresher(
    place: Refreshing, cloudfront: CloudFront, source: Source, host: str = "localhost", **target: Any
) -> Refresh:
    """A resource that invalidates this bucket's paths."""
    endpoints = {**place.body(source.queue)["spec"]["aws"]["endpointURLs"]}
    url = cloudfront.url.replace("127.0.0.1", host)
    return await place.create(
        source.queue,
        aws={"region": place.aws.region, "endpointURLs": {**endpoints, "cloudfront": url}},
        filter={"buckets": [source.bucket]},
        target={"cloudFront": {"distributionID": ID, **target}},
        debounce={"quietPeriod": "1s", "maxDelay": "60s", "minInterval": "0s"},
    )


def only(found: Json) -> Json:
    """The record of the one target."""
    (target,) = (found.get("status") or {}).get("targets") or ({},)
    return dict(target)


def succeeded(found: Json) -> bool:
    """Whether the last refresh has succeeded and nothing is left to do."""
    return (only(found).get("last") or {}).get("result") == "Succeeded" and stands(found, "CaughtUp")


def failing(code: str) -> Callable[[Json], bool]:
    """Whether the target's last call failed with this code."""
    return lambda found: (only(found).get("failure") or {}).get("code") == code


async def test_events_become_one_invalidation_and_then_nothing_is_called(
    shared: Refreshing, cloudfront: CloudFront
) -> None:
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source, prefix="in/")
    await resource.condition("Ready")
    await shared.put(source.bucket, *KEYS, "out/x")
    found = await resource.when(succeeded)
    (made,) = cloudfront.invalidations
    assert made.paths == ("/a*", "/c.html")  # viewers write the space of "a b.html" in two ways
    assert not {"dirty", "claim", "inFlight"} & only(found).keys()
    await shared.emptied(source.queue.url)
    assert len(cloudfront.calls) == 1


async def test_many_objects_of_a_folder_are_one_path(shared: Refreshing, cloudfront: CloudFront) -> None:
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source, maxPaths=2)
    await resource.condition("Ready")
    await shared.put(source.bucket, *(f"in/{n}/{m}.html" for n in range(3) for m in range(5)), "in/0/x.html")
    await resource.when(succeeded)
    paths = {path for one in cloudfront.invalidations for path in one.paths}
    assert "/in*" in paths
    assert len(cloudfront.invalidations) <= 4


@pytest.mark.parametrize(
    "action",
    [
        pytest.param("hold", id="before it is made"),
        pytest.param("delay", id="before it is known", marks=pytest.mark.slow),
    ],
)
async def test_an_operator_that_dies_at_a_call_makes_one_invalidation(
    action: str, own: tuple[OperatorProcess, Refreshing, ApiProxy], cloudfront: CloudFront
) -> None:
    process, place, _ = own
    cloudfront.faults.append(Fault(action))
    source = place.aws.source()
    resource = await refresher(place, cloudfront, source, "127.0.0.1")
    await asyncio.to_thread(process.start)
    await resource.condition("Ready")
    await place.put(source.bucket, *KEYS)
    await place.until(lambda: bool(cloudfront.calls), "a call has come")
    if action == "delay":
        await place.until(lambda: bool(cloudfront.invalidations), "it was accepted")
    claim = only(await resource.get())["claim"]
    await asyncio.to_thread(process.kill9)
    assert len(cloudfront.invalidations) == (0 if action == "hold" else 1)
    await asyncio.to_thread(process.start)
    await resource.when(succeeded)
    (made,) = cloudfront.invalidations
    assert (made.reference, made.paths) == (claim["id"], PATHS)
    assert [reference for reference, code in cloudfront.calls if not code][-1] == claim["id"]


@pytest.mark.slow
async def test_a_lost_reply_is_the_same_invalidation(shared: Refreshing, cloudfront: CloudFront) -> None:
    cloudfront.faults.append(Fault("lose"))
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source)
    await shared.put(source.bucket, *KEYS)
    await resource.when(succeeded)
    (made,) = cloudfront.invalidations
    assert cloudfront.calls == [(made.reference, "")] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("status", "code"), [(503, "ServiceUnavailable"), (429, "TooManyRequests")])
async def test_what_the_service_cannot_do_now_is_done_later(
    shared: Refreshing, cloudfront: CloudFront, status: int, code: str
) -> None:
    cloudfront.faults.append(Fault("refuse", count=2, status=status, code=code))
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source)
    await shared.put(source.bucket, *KEYS)
    await resource.when(succeeded)
    (made,) = cloudfront.invalidations
    assert made.paths == PATHS
    assert [code for _, code in cloudfront.calls] == [code, code, ""]


async def test_a_denied_call_names_the_action_and_loses_nothing(
    shared: Refreshing, cloudfront: CloudFront
) -> None:
    cloudfront.denied = True
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source)
    await shared.put(source.bucket, *KEYS)
    found = await resource.when(failing("AccessDenied"))
    assert "allow cloudfront:CreateInvalidation to" in condition(found, "CaughtUp")["message"]
    cloudfront.denied = False
    await resource.when(succeeded)
    assert [one.paths for one in cloudfront.invalidations] == [PATHS]


async def test_the_limit_of_invalidations_in_progress_is_a_wait_and_no_failure(
    shared: Refreshing, cloudfront: CloudFront
) -> None:
    busy = Invalidation("I1", ID, "another", tuple(f"/{n}*" for n in range(MAX_WILDCARDS)), float("inf"))
    cloudfront.invalidations.append(busy)
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source, scope="Folders")
    await shared.put(source.bucket, *KEYS)

    def refused_often(found: Json) -> bool:
        return (only(found).get("failure") or {}).get("count", 0) >= 3

    found = await resource.when(refused_often)
    assert failing("TooManyInvalidationsInProgress")(found)
    assert condition(found, "Ready")["status"] == "True"
    assert condition(found, "CaughtUp")["reason"] == "Waiting"
    message = condition(found, "CaughtUp")["message"]
    assert "TooManyInvalidationsInProgress" in message
    assert "look for other callers" in message
    busy.ends = 0.0
    await resource.when(succeeded)
    assert [one.paths for one in cloudfront.invalidations[1:]] == [("/in*",)]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({"http": {"url": "http://localhost:1/x", "prefix": "in/"}}, id="a call that fails"),
        pytest.param(
            {
                "job": {
                    "prefix": "in/",
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            "nodeSelector": {"no": "node"},
                            "containers": [{"name": "m", "image": "example.com/x:1"}],
                        }
                    },
                }
            },
            id="a Job that never ends",
        ),
    ],
)
async def test_after_a_target_of_another_kind_everything_is_invalidated(
    shared: Refreshing, admin: Admin, cloudfront: CloudFront, before: Json
) -> None:
    """The prefix stays: folders that wait, and a Job in flight, are none of CloudFront."""
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source, prefix="in/")
    cleared = {"cloudFront": None, **before}
    await admin.patch(resource.url, {"spec": {"target": cleared, "resync": {"onStart": False}}})
    await resource.condition("TargetsResolved")
    await shared.put(source.bucket, *KEYS)
    await resource.when(lambda found: bool(only(found).get("inFlight") or only(found).get("failure")))
    cloudfront.invalidations.clear()
    target = {**dict.fromkeys(before), "cloudFront": {"distributionID": ID, "prefix": "in/"}}
    await admin.patch(resource.url, {"spec": {"target": target}})
    await resource.when(lambda found: succeeded(found) and bool(cloudfront.invalidations))
    assert cloudfront.invalidations[-1].paths == ("/*",)


async def test_a_request_by_a_person_is_one_path(
    shared: Refreshing, admin: Admin, cloudfront: CloudFront
) -> None:
    source = shared.aws.source()
    resource = await refresher(shared, cloudfront, source)
    await resource.condition("Ready")
    marks = {REFRESH_FOLDERS: '{"in/2026": "2026-01-31T12:00:00Z"}'}
    await admin.patch(resource.url, {"metadata": {"annotations": marks}})
    await resource.when(succeeded)
    assert [one.paths for one in cloudfront.invalidations] == [("/in/2026*",)]
