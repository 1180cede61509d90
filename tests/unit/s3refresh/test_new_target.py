"""A further target is one file in s3refresh/targets/, and its part of the CRD: nothing else is touched."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec, TargetSpec
from caretaker.s3refresh import target_types, targets
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, read, worker_config_of
from caretaker.s3refresh.snapshot import Discovery, End, Message, Plan, PlanInput, Result
from caretaker.s3refresh.targets import Tools, make, registry
from testing.s3refreshes import refresh

NOW = 1_800_000_000.0
EVENT = Message(1, (ObjectEvent("ObjectCreated", "media", "in/a.csv"),))
FILE = '''
"""Lines of a file, one for each refresh."""

from typing import ClassVar

from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.snapshot import Discovery, Result
from caretaker.s3refresh.targets import TargetClient
from caretaker.s3refresh.targets.payload import payload_of


class LinesTarget(TargetType, frozen=True):
    member: ClassVar[str] = "linesOfFile"
    idempotent: ClassVar[bool] = True
    file_name: str
    at_a_time: int = 3

    @property
    def limit(self) -> int:
        return self.at_a_time


TARGET_TYPE = LinesTarget


def make(meant, spec, tools):
    return Lines(meant, spec.filter.buckets)


class Lines(TargetClient):
    def __init__(self, meant, buckets):
        self.meant, self.buckets = meant, buckets

    async def discover(self):
        return Discovery(complete=True, shares=of_buckets(self.buckets))

    async def refresh(self, share, claim):
        with open(self.meant.file_name, "ab") as file:
            file.write(payload_of(share, claim) + b"\\n")
        return Result(share.id, claim.id)
'''


@pytest.fixture(autouse=True)
def the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if it lay in targets/: on the path of that package."""
    folder = tmp_path / "more-targets"
    folder.mkdir()
    (folder / "linesoffile.py").write_text(FILE)
    monkeypatch.setattr(targets, "__path__", [*targets.__path__, str(folder)])
    yield
    sys.modules.pop(f"{targets.__name__}.linesoffile", None)


def judged(member: dict[str, Any]) -> ParsedRefresh:
    spec = refresh(target={"linesOfFile": member}, filter={"buckets": ["media"]})
    raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
    return read(raw, registry().spec)


def tools() -> Tools:
    """This target asks for none."""
    return Tools(cast(Any, None), cast(Any, None), WireMeta(name="r", namespace="n"))


class Passes:
    """One pass after the other, as the controller has them."""

    def __init__(self, of: ParsedRefresh, discovery: Discovery) -> None:
        assert of.spec is not None
        self.targets: tuple[Any, ...] = ()
        self._given = {
            "discovery": discovery,
            "filter": of.spec.filter,
            "options": of.options,
            "idempotent": target_types.target_type_of(of.spec).idempotent,
            "resync_on_start": False,
        }

    def plan(self, now: float, **more: Any) -> Plan:
        fixed = {"first": not self.targets, "owner": "me", "pass_id": f"p{now}", "now": now}
        made = plan(PlanInput(targets=self.targets, **self._given, **fixed, **more))
        self.targets = tuple(made.targets)
        return made


async def test_it_is_read_planned_and_called(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    found = judged({"fileName": str(lines), "atATime": 2})
    assert (found.invalid, target_types.target_type_of(found.spec).limit) == ("", 2)
    assert found.spec is not None
    assert worker_config_of(found.spec, None).completions is None
    target = make(found.spec, tools())
    passes = Passes(found, await target.discover())
    made = passes.plan(NOW)
    assert [one.id for one in made.targets] == ["media"]

    made = passes.plan(NOW + 1, messages=(EVENT,))
    assert made.done == (1,)
    made = passes.plan(NOW + 700)  # beyond debounce.maxDelay
    ((share, claim),) = made.calls
    assert isinstance(claim, Claim)
    result = await target.refresh(share, claim)
    made = passes.plan(NOW + 701, results=(result,), running=frozenset({claim.id}))
    (told,) = [msgspec.json.decode(line) for line in lines.read_bytes().splitlines()]
    assert (told["bucket"], told["claimID"]) == ("media", claim.id)
    assert set(told["folders"]) == {"/", "in"}
    assert (made.targets[0].claim, made.targets[0].last.result) == (None, "Succeeded")
    assert isinstance(result, Result)


def test_an_end_that_is_asked_for_is_awaited_however_late_it_comes() -> None:
    passes = Passes(judged({"fileName": "x"}), Discovery(complete=True, shares=of_buckets(["media"])))
    passes.plan(NOW)
    passes.plan(NOW + 1, messages=(EVENT,))
    ((_, claim),) = passes.plan(NOW + 700).calls
    accepted = Result("media", claim.id, notification_id="n")
    passes.plan(NOW + 701, results=(accepted,), running=frozenset({claim.id}))
    passes.plan(NOW + 702, messages=(EVENT,))
    made = passes.plan(NOW + 10_000_000)
    assert (made.calls, made.phases) == ((), {"media": "InFlight"})
    assert passes.plan(NOW + 10_000_001, ends=(End("n"),)).calls


def test_a_field_that_it_does_not_take_is_told_with_its_path() -> None:
    found = judged({"fileName": 3})
    assert found.spec is None
    assert "spec.target.linesOfFile.fileName" in found.invalid


def test_the_spec_with_it_is_as_frozen_and_as_short_as_without() -> None:
    member = {"fileName": "x", "atATime": 2}
    found = judged(member).spec
    assert found is not None
    assert isinstance(found, Spec)
    assert isinstance(found.target, TargetSpec)
    for part in (found, found.target):
        with pytest.raises(AttributeError, match="immutable type"):
            setattr(part, part.__struct_fields__[0], None)
    assert msgspec.json.decode(msgspec.json.encode(found)) == refresh(
        target={"linesOfFile": member}, filter={"buckets": ["media"]}
    )


def test_the_others_are_as_they_were() -> None:
    others = ["cloudFront", "eventBridge", "http", "job", "lambda", "sns", "sqs", "storageGateway"]
    assert sorted(one.member for one in registry().makers) == sorted([*others, "linesOfFile"])


def test_without_the_file_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "__path__", targets.__path__[:-1])
    told = "spec.target: must name what to refresh, such as storageGateway"
    assert judged({"fileName": "x"}).invalid == told
