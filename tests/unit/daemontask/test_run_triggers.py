"""What a node is asked to have run, and what stands in place of an entry that cannot be read."""

from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Pod
from caretaker.daemontask.decision import DecisionInput
from caretaker.daemontask.intents import UNREADABLE
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from caretaker.daemontask.node_eligibility import FITS, Eligibility
from caretaker.daemontask.pods import run_key
from caretaker.daemontask.run_triggers import in_place, key_of, made_up, nonce_of, trigger_of
from unit.daemontask.build import NOW, REVISION, TEMPLATE, UID, entry, node, pod, succeeded

A = node("a")
EARLY, LATE = "2026-01-01T00:00:00.000000+00:00", "2026-01-02T00:00:00.000000+00:00"
REBOOT = ("TemplateChange", "NodeReboot")


def view(
    *, rerun_on: tuple[Any, ...] = ("TemplateChange",), reboots: bool = False, **changes: Any
) -> DecisionInput:
    spec = Spec(template=TEMPLATE, run_guarantee="AtMostOnce", rerun_on=rerun_on, reboots_node=reboots)
    return msgspec.structs.replace(DecisionInput(UID, spec, REVISION, NOW), **changes)


@pytest.mark.parametrize(
    ("how", "of", "trigger"),
    [
        pytest.param({}, None, "NewNode", id="it has never run"),
        pytest.param({}, entry(A), "", id="it has run"),
        pytest.param({}, entry(A, "Failed"), "", id="it has failed for good"),
        pytest.param({}, entry(A, "Retry"), "Retry", id="it has to try again"),
        pytest.param({"rerun_at": LATE}, entry(A), "Rerun", id="all were asked to run again"),
        pytest.param({"rerun_nodes": {"a": LATE}}, entry(A), "Rerun", id="it was asked to"),
        pytest.param({"rerun_nodes": {"b": LATE}}, entry(A), "", id="another one was"),
        pytest.param({"rerun_at": EARLY}, entry(A, nonce=LATE), "", id="it has run since"),
        pytest.param({}, entry(A, nonce=LATE), "", id="what was asked is asked no more"),
        pytest.param({"revision": "new"}, entry(A), "TemplateChange", id="the template has changed"),
        pytest.param({"revision": "new", "rerun_on": ()}, entry(A), "", id="which does not matter"),
        pytest.param({"tick": 60}, entry(A), "Schedule", id="a tick has come"),
        pytest.param({"tick": 60}, entry(A, tick=60), "", id="that it has run for"),
        pytest.param({}, entry(A, tick=60), "", id="there is no schedule any more"),
        pytest.param({"rerun_on": REBOOT}, entry(A, boot_id="old"), "NodeReboot", id="it has rebooted"),
        pytest.param({}, entry(A, boot_id="old"), "", id="which does not matter either"),
        pytest.param({"rerun_on": REBOOT}, entry(A), "", id="it has not rebooted"),
        pytest.param({"rerun_on": REBOOT}, entry(A, boot_id=""), "", id="nobody knows whether it has"),
        pytest.param(
            {"rerun_at": LATE, "revision": "new", "tick": 60}, entry(A), "Rerun", id="a person first"
        ),
        pytest.param(
            {"revision": "new", "tick": 60}, entry(A, "Retry"), "TemplateChange", id="the template next"
        ),
        pytest.param({"tick": 60}, entry(A, "Retry"), "Schedule", id="then the tick"),
        pytest.param(
            {"rerun_on": REBOOT}, entry(A, "Retry", boot_id="old"), "NodeReboot", id="then the reboot"
        ),
    ],
)
def test_why_a_node_runs(how: dict[str, Any], of: Entry | None, trigger: str) -> None:
    assert trigger_of(view(**how), A, of) == trigger


def test_a_reboot_of_a_node_that_tells_no_boot_id_is_not_noticed() -> None:
    assert trigger_of(view(rerun_on=REBOOT), node("a", boot_id=""), entry(A)) == ""


@pytest.mark.parametrize(
    ("all_of_them", "this_one", "done", "expected"),
    [("", "", None, ""), (EARLY, LATE, None, LATE), (LATE, EARLY, "", LATE), (EARLY, "", LATE, LATE)],
)
def test_the_latest_order_counts(all_of_them: str, this_one: str, done: str | None, expected: str) -> None:
    seen = view(rerun_at=all_of_them, rerun_nodes={"a": this_one} if this_one else {})
    assert nonce_of(seen, A, None if done is None else entry(A, nonce=done)) == expected


def test_a_run_key_has_the_boot_where_reboots_matter() -> None:
    assert key_of(view(tick=60), A, "n") == run_key(UID, REVISION, A.uid, "n", "", 60)
    assert key_of(view(rerun_on=REBOOT), A, "") == run_key(UID, REVISION, A.uid, "", "boot-a")


# ---------------------------------------------------------------- in place of an entry that cannot be read

UNKNOWN = Entry(
    node_uid=A.uid,
    revision=REVISION,
    run_key=run_key(UID, REVISION, A.uid, LATE, "", 30),
    result="Failed",
    seq=0,
    nonce=LATE,
    boot_id="boot-a",
    tick=30,
    finished_at=int(NOW),
    reason=OUTCOME_UNKNOWN,
    message=UNREADABLE,
)


def test_what_is_made_up_answers_what_was_asked_by_the_stored_tick() -> None:
    seen = view(rerun_at=LATE, tick=60, stored=30)
    assert made_up(seen, A, "Failed", OUTCOME_UNKNOWN) == msgspec.structs.replace(UNKNOWN, message="")
    assert in_place(seen, A, FITS, {}) == UNKNOWN


@pytest.mark.parametrize("kind", ["fits", "blocked", "held"])
def test_a_node_that_is_selected_gets_an_entry(kind: Any) -> None:
    assert in_place(view(version=9), A, Eligibility(kind), {}) == msgspec.structs.replace(
        made_up(view(), A, "Failed", OUTCOME_UNKNOWN), seq=9, message=UNREADABLE
    )


def test_a_node_that_is_not_selected_gets_none() -> None:
    assert in_place(view(), A, Eligibility("excluded"), {}) is None


def put(*pods: Pod, **how: Any) -> Entry:
    found = in_place(view(**how), A, FITS, {p.name: p for p in pods})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("version", "seq", "pod_seq"),
    [
        pytest.param(0, 7, 0, id="the Pod's number is the last"),
        pytest.param(7, 7, 0, id="also where the ledger is no further"),
        pytest.param(8, 8, 7, id="the ledger is further: the Pod keeps its number"),
    ],
)
def test_the_pod_that_ended_tells(version: int, seq: int, pod_seq: int) -> None:
    found = put(succeeded(A, 2), succeeded(A, 7), version=version)
    assert (found.result, found.pod_uid, found.seq, found.pod_seq) == ("Succeeded", "pod-a-7", seq, pod_seq)


def test_what_ended_on_a_node_that_it_rebooted_has_run_there() -> None:
    """A task that reboots its node must not run again for that."""
    told = succeeded(A, 7, marks={"caretaker.dev/boot-id": "before"})
    found = put(told, rerun_on=REBOOT, reboots=True)
    assert (found.result, found.boot_id, found.boot_absorbed) == ("Succeeded", "boot-a", True)
    assert found.run_key == run_key(UID, REVISION, A.uid, "", "boot-a")


def test_while_it_runs_nothing_is_said() -> None:
    live = pod(A, 7)
    assert in_place(view(version=9), A, FITS, {live.name: live}) is None
