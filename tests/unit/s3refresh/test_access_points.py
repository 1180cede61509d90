"""S3 is asked for the bucket of an access point once; an answer that does not come takes no bucket away."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh.match import AccessPoint
from caretaker.s3refresh.object_counts import Signer
from caretaker.s3refresh.targets.access_points import (
    KEPT_SECONDS,
    LINE_SECONDS,
    RETRY_SECONDS,
    STALE_SECONDS,
    AccessPoints,
    Asker,
)

FINANCE = AccessPoint("aws", "eu-west-1", "111122223333", "finance")
OTHER = replace(FINANCE, name="other")
ALIAS = "finance-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias"
SIGNER = Signer("arn:aws:iam::111122223333:role/r", "", "", "", "")
ASKER = SIGNER, "media"


def error(error_class: ErrorClass, code: str, status: int = 400) -> AwsError:
    return AwsError(error_class, code, "no", status=status, service="s3control", operation="GetAccessPoint")


DENIED = error(ErrorClass.ACCESS_DENIED, "AccessDenied", 403)
GONE = error(ErrorClass.NOT_FOUND, "NoSuchAccessPoint", 404)
BUSY = error(ErrorClass.THROTTLED, "SlowDown", 503)
SILENT = error(ErrorClass.TRANSIENT, "Unreachable", 0)
ALLOW = "allow s3:GetAccessPoint to the identity that spec.aws names"


class S3:
    """S3 Control, and a clock. `gate` holds answers back until it is set; each call releases `asked`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.buckets = {"finance": "ledger", "other": "books"}
        self.aliases = {"finance": ALIAS}
        self.error: AwsError | None = None
        self.bad = frozenset[str]()  # the error is of these alone
        self.calls: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Semaphore(0)
        self.points = AccessPoints(clock=lambda: self.now)

    async def get_access_point(self, *, AccountId: str, Name: str) -> Any:  # noqa: N803
        self.calls.append((AccountId, Name))
        self.asked.release()
        await self.gate.wait()
        if self.error is not None and (not self.bad or Name in self.bad):
            raise self.error
        return {"Bucket": self.buckets[Name], "Alias": self.aliases.get(Name, "")}

    async def bucket(self, point: AccessPoint = FINANCE, asker: Asker = ASKER) -> tuple[str, str]:
        found = await self.points.bucket_of(asker, self, point)
        return found.bucket, found.problem


async def test_a_bucket_is_asked_for_once_in_six_hours() -> None:
    s3 = S3()
    for _ in range(3):
        assert await s3.bucket() == ("ledger", "")
    s3.now += KEPT_SECONDS - 1
    await s3.bucket()
    assert s3.calls == [("111122223333", "finance")]
    s3.buckets["finance"] = "made-again"
    s3.now += 1
    assert await s3.bucket() == ("made-again", "")
    assert len(s3.calls) == 2


async def test_all_who_ask_at_once_share_a_call() -> None:
    s3 = S3()
    s3.gate.clear()
    waiting = [asyncio.create_task(s3.bucket()) for _ in range(5)]
    await s3.asked.acquire()
    s3.gate.set()
    assert await asyncio.gather(*waiting) == [("ledger", "")] * 5
    assert len(s3.calls) == 1


@pytest.mark.parametrize(
    "asker",
    [
        pytest.param((SIGNER, "other"), id="another namespace"),
        pytest.param((replace(SIGNER, role_arn=""), "media"), id="another identity"),
    ],
)
async def test_others_do_not_wait_for_a_call_and_do_not_see_its_answer(asker: Asker) -> None:
    """A call may wait for the threads of its namespace."""
    s3 = S3()
    s3.gate.clear()
    both = [asyncio.create_task(s3.bucket(asker=one)) for one in (ASKER, asker)]
    for _ in both:
        await s3.asked.acquire()
    s3.gate.set()
    assert await asyncio.gather(*both) == [("ledger", "")] * 2
    assert len(s3.calls) == 2


async def test_one_who_asks_and_is_cancelled_takes_the_turn_of_no_other() -> None:
    s3 = S3()
    s3.gate.clear()
    first, second = asyncio.create_task(s3.bucket()), asyncio.create_task(s3.bucket(OTHER))
    await s3.asked.acquire()
    first.cancel()
    s3.gate.set()
    assert await second == ("books", "")
    assert await s3.bucket() == ("ledger", "")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        pytest.param(DENIED, f"AccessDenied: no; {ALLOW}", id="denied"),
        pytest.param(GONE, "NoSuchAccessPoint: no", id="gone"),
        pytest.param(BUSY, "SlowDown: no", id="throttled"),
        pytest.param(SILENT, "Unreachable: no", id="no answer"),
    ],
)
async def test_a_refusal_is_a_problem_and_the_call_is_made_again(refusal: AwsError, words: str) -> None:
    s3 = S3()
    s3.error = refusal
    problem = f"s3control:GetAccessPoint: {words}"
    for _ in range(2):
        assert await s3.bucket() == ("", problem)
    assert len(s3.calls) == 1, "not at once"
    s3.error = None
    s3.now += RETRY_SECONDS
    assert await s3.bucket() == ("ledger", "")


@pytest.mark.parametrize(
    ("refusal", "shown"),
    [(DENIED, True), (GONE, True), (BUSY, False), (SILENT, False)],
    ids=lambda one: one.code if isinstance(one, AwsError) else "",
)
async def test_a_known_bucket_outlives_refusals_for_a_day(refusal: AwsError, shown: bool) -> None:
    """A refusal is shown at once; a call that S3 may soon answer only once the bucket does not count."""
    s3 = S3()
    await s3.bucket()
    s3.error = refusal
    s3.now += KEPT_SECONDS
    bucket, problem = await s3.bucket()
    assert (bucket, bool(problem)) == ("ledger", shown)
    s3.now = 1000.0 + STALE_SECONDS - 1
    assert (await s3.bucket())[0] == "ledger"
    s3.now += RETRY_SECONDS
    assert await s3.bucket() == (
        "",
        f"s3control:GetAccessPoint: {refusal.code}: no" + f"; {ALLOW}" * (refusal is DENIED),
    )
    s3.error = None
    s3.now += RETRY_SECONDS
    assert await s3.bucket() == ("ledger", "")


@pytest.mark.parametrize("refusal", [BUSY, SILENT], ids=["throttled", "no answer"])
async def test_while_s3_does_not_answer_no_other_access_point_is_asked_for(refusal: AwsError) -> None:
    s3 = S3()
    assert await s3.bucket(replace(FINANCE, name="other")) == ("books", "")
    s3.error = refusal
    await s3.bucket()
    assert (await s3.bucket(replace(FINANCE, name="third")))[1].startswith("s3control:GetAccessPoint: ")
    assert await s3.bucket(OTHER) == ("books", ""), "a known one needs no call"
    assert len(s3.calls) == 2


NAMES = [f"p{n}" for n in range(6)]


async def discovered(s3: S3) -> set[str]:
    """The access points with a bucket, all of which are looked up in this order."""
    return {name for name in NAMES if (await s3.bucket(replace(FINANCE, name=name)))[0]}


@pytest.mark.parametrize("refusal", [BUSY, SILENT], ids=["throttled", "no answer"])
@pytest.mark.parametrize("bad", [["p0"], ["p0", "p1", "p4"]], ids=["one", "three"])
async def test_access_points_that_always_fail_keep_no_other_from_being_asked_for(
    refusal: AwsError, bad: list[str]
) -> None:
    """An answer that cannot be read, or an error of S3 itself, may be of one access point alone."""
    s3 = S3()
    s3.buckets = dict.fromkeys(NAMES, "books")
    s3.error, s3.bad = refusal, frozenset(bad)
    assert await discovered(s3) == set()
    assert len(s3.calls) == 1
    for _ in range(len(bad)):
        s3.now += RETRY_SECONDS
        found = await discovered(s3)
    assert found == {*NAMES} - s3.bad
    good = [name for _, name in s3.calls if name not in bad]
    assert sorted(good) == sorted({*good}), "each once"
    s3.error = None
    for _ in range(2):
        s3.now += RETRY_SECONDS
        found = await discovered(s3)
    assert found == {*NAMES}


async def test_another_region_does_not_wait_for_one_that_does_not_answer() -> None:
    s3 = S3()
    s3.error, s3.bad = SILENT, frozenset(["finance"])
    await s3.bucket()
    assert (await s3.bucket(OTHER))[0] == ""
    assert (await s3.bucket(replace(OTHER, region="eu-west-2")))[0] == "books"


async def test_a_refusal_is_an_answer_and_those_behind_it_are_asked_for() -> None:
    s3 = S3()
    s3.error = BUSY
    await s3.bucket()
    for point in (replace(FINANCE, name="denied"), OTHER):
        await s3.bucket(point)
    s3.error, s3.bad = DENIED, frozenset(["denied"])
    s3.now += RETRY_SECONDS
    await s3.bucket(replace(FINANCE, name="denied"))
    assert (await s3.bucket(OTHER))[0] == "books"


async def test_one_that_no_share_has_any_more_keeps_its_place_for_a_while() -> None:
    s3 = S3()
    s3.error, s3.bad = BUSY, frozenset(["finance"])
    await s3.bucket()
    await s3.bucket(replace(FINANCE, name="third"))  # which waits, and is not asked for again
    s3.now += RETRY_SECONDS
    assert (await s3.bucket(OTHER))[0] == ""
    s3.now += LINE_SECONDS - RETRY_SECONDS
    assert (await s3.bucket(OTHER))[0] == "books"


async def test_a_known_bucket_is_asked_for_again_soon_if_s3_did_not_answer() -> None:
    s3 = S3()
    assert not (await s3.points.bucket_of(ASKER, s3, FINANCE)).late
    s3.error = BUSY
    s3.now += KEPT_SECONDS
    found = await s3.points.bucket_of(ASKER, s3, FINANCE)
    assert (found.bucket, found.problem, found.late) == ("ledger", "", True)
    s3.error = DENIED
    s3.now += RETRY_SECONDS
    assert not (await s3.points.bucket_of(ASKER, s3, FINANCE)).late


async def test_a_denied_access_point_does_not_keep_another_one_from_being_asked_for() -> None:
    s3 = S3()
    s3.error = DENIED
    await s3.bucket()
    s3.error = None
    assert await s3.bucket(OTHER) == ("books", "")


async def test_an_alias_counts_only_if_the_access_point_has_it() -> None:
    """Its name is the beginning of the alias; one of another account may have the same."""
    s3 = S3()
    assert await s3.bucket(replace(FINANCE, alias=ALIAS)) == ("ledger", "")
    other = ALIAS.replace("h", "x", 1)
    problem = f"{FINANCE.arn} has another alias"
    for _ in range(2):
        assert await s3.bucket(replace(FINANCE, alias=other)) == ("", problem)
    assert len(s3.calls) == 2
    s3.aliases["finance"] = other  # one that was made again, and S3 did not know it yet
    s3.now += RETRY_SECONDS
    assert await s3.bucket(replace(FINANCE, alias=other)) == ("ledger", "")


async def test_an_answer_without_the_name_of_a_bucket_is_none() -> None:
    """The bucket goes into status, with the prefix behind a slash."""
    s3 = S3()
    s3.buckets["finance"] = "ledger/team"
    for _ in range(2):
        assert await s3.bucket() == ("", f"{FINANCE.arn} has a bucket without the name of one")
    s3.buckets["finance"] = "ledger"
    s3.now += RETRY_SECONDS
    assert await s3.bucket() == ("ledger", "")
    assert len(s3.calls) == 2


async def test_access_points_that_no_share_has_any_more_are_forgotten() -> None:
    s3 = S3()
    s3.buckets |= {f"p{n}": "books" for n in range(50)}
    for n in range(50):
        await s3.bucket(replace(FINANCE, name=f"p{n}"))
    s3.now += STALE_SECONDS + KEPT_SECONDS
    await s3.bucket()
    assert len(s3.points._known) == 1
