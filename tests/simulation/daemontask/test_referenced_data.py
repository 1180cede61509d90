"""spec.dataRefs: which change of data runs a node again, and how far bad data reaches."""

from typing import Any

import pytest

from caretaker.api.daemontask import Canary, DataRef, FormerRevision, Spec, Status
from caretaker.daemontask.pods import hashes_of, revisions_of
from caretaker.daemontask.referenced_data import (
    Content,
    ReferencedData,
    change_of,
    digest_of,
    part_for,
    with_data,
)
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from simulation.daemontask.test_stages import Staged
from unit.daemontask.build import REVISION, TEMPLATE, entry, node, planned, pod, snapshot, started, task

A, B, C = node("a"), node("b"), node("c")
MAP, SECRET = DataRef("ConfigMap", "sysctl"), DataRef("Secret", "token")
OTHER_MAP = DataRef("ConfigMap", "limits")
ON_DATA: dict[str, Any] = {"rerun_on": ("TemplateChange", "ReferencedDataChange"), "data_refs": (MAP,)}
OLD, NEW = f"{REVISION}-old", f"{REVISION}-new"
MISSING = "spec.dataRefs[0]: ConfigMap sysctl does not exist in namespace default; create it"


def part(*contents: Content, refs: tuple[DataRef, ...] = (MAP,), uid: str = "uid") -> str:
    return part_for(uid, refs, [digest_of(content) for content in contents])


def test_the_part_is_of_the_data_and_of_nothing_else() -> None:
    one = Content({"a": "1", "b": "2"})
    assert part(one) == part(Content({"b": "2", "a": "1"}))
    assert part(one) == part(Content({"a": "1", "b": "2"}, {}))
    assert part(Content()) == part(Content({}, {}))
    both = part(one, Content({"t": "eA=="}), refs=(MAP, SECRET))
    assert both == part(Content({"t": "eA=="}), one, refs=(SECRET, MAP))
    maps = part(one, Content(), refs=(MAP, OTHER_MAP))
    assert maps == part(Content(), one, refs=(OTHER_MAP, MAP)) != part(Content(), one, refs=(MAP, OTHER_MAP))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(part(Content({"a": "2"})), id="another value"),
        pytest.param(part(Content({"b": "1"})), id="another key"),
        pytest.param(part(Content(None, {"a": "1"})), id="binaryData"),
        pytest.param(part(Content({"a": "1"}, {"b": "1"})), id="binaryData, too"),
        pytest.param(part(Content({"a": "1"}), refs=(SECRET,)), id="another object"),
        pytest.param(part(Content({"a": "1"}), uid="other"), id="another task"),
        pytest.param(part(Content({"a": "1"}), Content(), refs=(MAP, SECRET)), id="one more object"),
    ],
)
def test_other_data_has_another_part(other: str) -> None:
    assert other != part(Content({"a": "1"}))


def test_the_part_is_the_same_in_every_version() -> None:
    """Another one would run every node of every task again after an upgrade."""
    assert part(Content({"a": "1"})) == "gozxdgogwg"


@pytest.mark.parametrize(
    ("rerun_on", "recorded", "wanted", "change"),
    [
        ("TR", "t-d", "t-d", ""),
        ("TR", "t-d", "t-e", "ReferencedDataChange"),
        ("TR", "t-d", "u-d", "TemplateChange"),
        ("TR", "t-d", "u-e", "TemplateChange"),
        ("R", "t-d", "u-d", ""),
        ("R", "t-d", "u-e", "ReferencedDataChange"),
        ("TR", "t", "t-d", "ReferencedDataChange"),
        ("T", "t-d", "t", ""),
        ("TR", "t-d", "t", ""),  # its data has not been read
        ("T", "t-d", "t-e", ""),
        ("", "t-d", "u-e", ""),
    ],
)
def test_the_trigger_names_the_part_that_changed(
    rerun_on: str, recorded: str, wanted: str, change: str
) -> None:
    triggers = {"T": "TemplateChange", "R": "ReferencedDataChange"}
    assert change_of([triggers[one] for one in rerun_on], recorded, wanted) == change


def test_changed_data_runs_the_nodes_whose_record_is_of_other_data() -> None:
    entries = {"a": entry(A, revision=OLD), "b": entry(B, revision=NEW), "c": entry(C)}
    made = planned(task(**ON_DATA), [A, B, C], [], entries, revision=NEW)
    starts = {start.node_name: start.trigger for start in made.launch.starts}
    assert starts == {"a": "ReferencedDataChange", "c": "ReferencedDataChange"}


def test_an_active_pod_with_older_data_finishes_first_or_makes_way() -> None:
    live = pod(A, revision=OLD)
    assert not planned(task(**ON_DATA), [A], [live], revision=NEW).deletes
    replaced = planned(task(**ON_DATA, concurrency_policy="Replace"), [A], [live], revision=NEW)
    assert [one.name for one in replaced.deletes] == [live.name]


def test_while_an_object_is_missing_nothing_starts_and_active_pods_are_recorded() -> None:
    data = ReferencedData((MAP,), (), "old", MISSING)
    ended = pod(B, revision=OLD, phase="Succeeded", finished=1_000_000.0 - 5)
    found = snapshot(task(**ON_DATA), [A, B], [ended], revision=OLD, data=data)
    made = planned(task(**ON_DATA), [A, B], [ended], revision=OLD, data=data)
    assert (made.hold, started(made), list(made.records)) == ("ReferencedDataUnavailable", [], ["b"])
    status = status_of(found, made, Outcome(shards=1))
    conditions = {one.type: one for one in status.conditions}
    assert conditions["Ready"].message.startswith(f"{MISSING}; nothing is started before; ")
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "ReferencedDataUnavailable")
    assert "Stalled" not in conditions
    assert conditions["Progressing"].message == (
        "nothing is started: data of spec.dataRefs cannot be read, see Ready"
    )


def test_bad_data_reaches_the_canary_alone_and_the_former_data_sets_it_right() -> None:
    rollout = Staged(canary=Canary(1, 60), **ON_DATA, backoff_limit=0)
    rollout.revision = OLD
    rollout.roll_on(200)
    assert rollout.done()
    rollout.hit.clear()
    rollout.revision, rollout.bad = NEW, None
    rollout.roll_on(600)
    assert (len(rollout.hit), rollout.ready) == (1, "NodesFailed")
    rollout.revision, rollout.bad = OLD, frozenset()
    bad = set(rollout.hit)
    rollout.hit.clear()
    rollout.roll_on(600)
    assert (rollout.hit, rollout.done()) == (bad, True)


def test_a_template_of_an_older_version_keeps_its_revision_with_data() -> None:
    template = {"metadata": {}, **TEMPLATE}
    meant, written = hashes_of(template)
    status = Status(current_revision=with_data(written, "data"))
    assert revisions_of(Spec(template=template), status) == (written, FormerRevision(meant, written))
