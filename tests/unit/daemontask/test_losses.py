"""What a ledger has lost, and which decisions about it can be carried out, as tables."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import NOT_KNOWN, DaemonTask, LedgerStatus, Status
from caretaker.api.times import format_time
from caretaker.daemontask.annotation_requests import read_requests
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Ledger
from caretaker.daemontask.losses import MOST, Loss, beyond, losses, wanted_run, write_counts
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.shard import Shard
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import (
    NOW,
    REVISION,
    entry,
    failed,
    node,
    pod,
    snapshot,
    started,
    states,
    succeeded,
    taint,
    task,
)

A, B = node("a", created=NOW - 900), node("b", created=NOW - 900)
LATE = node("late", created=NOW - 30)


def shard(index: int, nodes: str, writes: int, records: int | None = None, corrupt: str = "") -> Shard:
    entries = {name: entry(node(name)) for name in nodes}
    found = len(nodes) + len(corrupt) if records is None else records
    return Shard(index, "uid", "7", entries, dict.fromkeys(corrupt, "broken"), False, writes, found)


@pytest.mark.parametrize(
    ("reported", "known", "shards", "lost"),
    [
        pytest.param(LedgerStatus(), {}, [], [], id="a task that has never run"),
        pytest.param(LedgerStatus(1, 2, (4,)), {}, [shard(0, "ab", 4)], [], id="as told"),
        pytest.param(LedgerStatus(1, 2, (4,)), {}, [shard(0, "abc", 9)], [], id="more than told"),
        pytest.param(LedgerStatus(1, 2, (4,)), {}, [shard(0, "b", 5)], [], id="a node was forgotten, untold"),
        pytest.param(
            LedgerStatus(1, 2), {}, [shard(0, "ab", 0, 0)], [], id="of a version that did not count"
        ),
        pytest.param(
            LedgerStatus(1, 2, (4,)), {}, [shard(0, "a", 4, 2, "b")], [], id="a broken entry is there"
        ),
        pytest.param(
            LedgerStatus(1, 1, (4,)),
            {},
            [shard(0, "a", 4, 2)],
            [],
            id="an older version forgot a node, and told",
        ),
        pytest.param(
            LedgerStatus(2, 2), {}, [shard(0, "a", 0), shard(2, "b", 0)], [], id="as many, otherwise numbered"
        ),
        pytest.param(LedgerStatus(1, 2, (4,)), {}, [], ["is gone"], id="gone"),
        pytest.param(LedgerStatus(2, 2), {}, [shard(0, "ab", 0)], ["is gone"], id="one gone, never counted"),
        pytest.param(
            LedgerStatus(1, 2, (4,)), {}, [shard(0, "ab", 3)], ["is an older copy"], id="as many, but older"
        ),
        pytest.param(
            LedgerStatus(1, 2, (4,)),
            {},
            [shard(0, "ab", 0)],
            ["is an older copy"],
            id="from before the upgrade",
        ),
        pytest.param(
            LedgerStatus(1, 2, (4,)),
            {0: 6},
            [shard(0, "ab", 5)],
            ["is an older copy"],
            id="older than was seen",
        ),
        pytest.param(
            LedgerStatus(1, 2, (4,)), {}, [shard(0, "", 4, 2)], ["has 0 of 2 records"], id="emptied"
        ),
        pytest.param(
            LedgerStatus(1, 2, (4,)), {}, [shard(0, "a", 4, 2)], ["has 1 of 2 records"], id="one taken"
        ),
        pytest.param(
            LedgerStatus(2, 4, (4, 4)),
            {},
            [shard(0, "ab", 9), shard(1, "cd", 3)],
            ["is an older copy"],
            id="one of two, though the other was written since",
        ),
        pytest.param(LedgerStatus(-1), {}, [shard(0, "ab", 4)], ["status.ledger could"], id="nobody knows"),
    ],
)
def test_a_loss_is_told_from_what_is_only_not_told_yet(
    reported: LedgerStatus, known: dict[int, int], shards: list[Shard], lost: list[str]
) -> None:
    found = losses(reported, known, {one.index: one for one in shards}, strict=True)
    assert len(found) == len(lost)
    assert all(loss.why.startswith(why) for loss, why in zip(found, lost, strict=True))


def test_a_loss_says_which_shard_and_what_is_known_of_it() -> None:
    cut, older = shard(0, "a", 5, 2), shard(1, "cd", 3)
    assert losses(LedgerStatus(3, 5, (4, 4)), {}, {0: cut, 1: older}, strict=True) == (
        Loss(0, "has 1 of 2 records", 5),
        Loss(1, "is an older copy: it counts 3 writes, and there were 4", 4, older=True),
        Loss(2, "is gone"),
    )
    assert losses(LedgerStatus(-1), {}, {}, strict=True) == (
        Loss(NOT_KNOWN, "status.ledger could not be read"),
    )


def test_a_status_that_cannot_be_read_holds_up_only_what_may_not_be_repeated() -> None:
    assert losses(LedgerStatus(-1), {}, {0: shard(0, "ab", 4)}, strict=False) == ()


def test_no_number_in_status_makes_a_pass_long() -> None:
    assert len(losses(LedgerStatus(shards=2**31 - 1), {}, {}, strict=True)) == 64


@pytest.mark.parametrize(("floor", "least"), [(0, 1), (4, 5), (999_999, 1_000_000), (1_000_000, 1_000_001)])
def test_a_decision_takes_the_count_beyond_every_copy(floor: int, least: int) -> None:
    assert least <= beyond(Loss(0, "is gone", floor)) <= floor + 1_000_000


def test_what_is_told_never_goes_back() -> None:
    found = write_counts(LedgerStatus(2, 2, (4, 7)), {0: shard(0, "a", 5), 2: shard(2, "b", 1)}, {1: 6, 2: 3})
    assert found == (5, 7, 3)


@pytest.mark.parametrize(
    ("writes", "shards", "figures"),
    [
        pytest.param((), [shard(0, "a", 5), shard(2, "b", 1)], (5, 0, 1), id="0 of one that is not there"),
        pytest.param((0,), [], (), id="nothing of none that was written"),
        pytest.param((), [shard(0, "a", 5), shard(1, "b", 0)], (5,), id="nor of one that was never counted"),
        pytest.param((), [shard(MOST - 1, "a", 1)], (*[0] * (MOST - 1), 1), id="as many as are looked for"),
        pytest.param((), [shard(MOST, "a", 1)], (), id="no more than that"),
    ],
)
def test_the_figures_of_status(writes: tuple[int, ...], shards: list[Shard], figures: Any) -> None:
    found = write_counts(LedgerStatus(1, 1, writes), {one.index: one for one in shards}, {})
    assert found == figures


def wanted(of: DaemonTask, revision: str = REVISION) -> str:
    return wanted_run(of, revision, read_requests(of))


def test_the_run_that_is_wanted_is_of_a_template_a_tick_and_re_runs() -> None:
    again = {names.RERUN_AT: "2026-01-31T12:00:00Z"}
    one = {names.RERUN_NODES: '{"a": "2026-01-31T12:00:00Z"}'}
    ticked = task(schedule="0 * * * *", status=Status(last_schedule_time=format_time(NOW - 2800)))
    of = [task(), task(annotations=again), task(annotations=one), ticked]
    runs = [wanted(of[0], "another"), *(wanted(each) for each in of)]
    assert len(set(runs)) == len(runs)


# ---------------------------------------------------------------- decisions


def lost(decision: str, done: bool = True, older: str = "", **changes: Any) -> Snapshot:
    """Nodes a and b had succeeded a minute ago, or had not; then their ledger was lost."""
    spec = changes.pop("spec", {})
    marks = {names.LEDGER_DECISION: decision, **changes.pop("marks", {})}
    of = task(annotations={names.LEDGER_DECISION: decision})
    run = wanted(of) if done else ""
    reported = LedgerStatus(1, 2, (4,), run, format_time(NOW - 60) if done else None)
    of = task(annotations=marks, status=Status(ledger=reported), **spec)
    entries = {name: entry(node(name), revision="old", seq=3) for name in older}
    ledger = Ledger(entries, shards=1, lost=1, loss="x is gone", older=frozenset(older))
    return snapshot(of, changes.pop("nodes", [A, B]), ledger=ledger, **changes)


def message_of(of: Snapshot, made: Plan) -> str:
    (found,) = [one for one in status_of(of, made, Outcome()).conditions if one.type == "Ready"]
    return f"{found.reason}: {found.message}"


def test_assume_done_is_carried_out_where_every_node_had_succeeded() -> None:
    made = plan(lost("assume-done"))
    assert (states(made), started(made)) == ({"succeeded": 2}, [])
    assert {record.reason for record in made.records.values()} == {"AssumedDone"}


@pytest.mark.parametrize(
    ("of", "why"),
    [
        pytest.param(
            lost("assume-done", done=False),
            "when the ledger was last written, not every",
            id="in mid-rollout",
        ),
        pytest.param(
            lost("assume-done", marks={names.RERUN_AT: "2026-01-31T12:00:00Z"}),
            "the task was changed since",
            id="a re-run was asked for since",
        ),
        pytest.param(
            lost("assume-done", revision="other"),
            "the task was changed since",
            id="the template was changed since",
        ),
        pytest.param(lost("assume-done: a, nobody"), "there is no node nobody", id="a name that is wrong"),
        pytest.param(
            lost("assume-done: n6, n5, n4, n3, n2, n1"),
            "there is no node n1, n2, n3, n4, n5",
            id="many names",
        ),
    ],
)
def test_assume_done_is_refused_where_nobody_knows_and_says_what_to_do(of: Snapshot, why: str) -> None:
    made = plan(of)
    assert (made.hold, made.records, started(made)) == ("LedgerLost", {}, [])
    assert message_of(of, made).startswith("LedgerLost: x is gone")
    assert f"assume-done is not carried out: {why}" in message_of(of, made)
    assert made.requests.ledger == ""
    assert "n6" not in message_of(of, made), "at most five names"


def test_nodes_may_be_named_and_the_others_run() -> None:
    made = plan(lost("assume-done: b", done=False))
    assert (list(made.records), started(made)) == (["b"], ["a"])


@pytest.mark.parametrize(
    ("guarantee", "runs", "recorded"),
    [("AtLeastOnce", ["late"], {}), ("AtMostOnce", [], {"late": OUTCOME_UNKNOWN})],
)
def test_a_node_that_joined_since_every_node_had_succeeded_is_not_taken_for_done(
    guarantee: str, runs: list[str], recorded: dict[str, str]
) -> None:
    spec = {"run_guarantee": guarantee, "backoff_limit": 0}
    made = plan(lost("assume-done", nodes=[A, B, LATE], spec=spec))
    others = {name: record.reason for name, record in made.records.items() if name not in ("a", "b")}
    assert (started(made), others) == (runs, recorded)


def test_of_an_older_copy_the_records_that_would_run_again_are_replaced_and_no_name_is_given_twice() -> None:
    made = plan(lost("assume-done", older="a"))
    assert {name: (record.reason, record.seq) for name, record in made.records.items()} == {
        "a": ("AssumedDone", 3),
        "b": ("AssumedDone", 0),
    }


def test_what_an_older_copy_says_is_done_needs_no_decision() -> None:
    of = lost("assume-done")
    ledger = msgspec.structs.replace(of.ledger, entries={"a": entry(A)}, older=frozenset("a"))
    assert list(plan(msgspec.structs.replace(of, ledger=ledger)).records) == ["b"]


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        pytest.param({"taints": (taint("gpu", "NoExecute"),)}, ["a", "b"], id="it ran before it was tainted"),
        pytest.param({"labels": {"kubernetes.io/os": "windows"}}, ["b"], id="the template never selected it"),
    ],
)
def test_a_node_that_is_left_out_may_have_run(changes: dict[str, Any], recorded: list[str]) -> None:
    of = lost("assume-done", nodes=[msgspec.structs.replace(A, **changes), B])
    assert list(plan(of).records) == recorded


def test_status_says_of_a_node_that_may_have_run_what_to_do() -> None:
    of = lost("assume-done", nodes=[A, LATE], spec={"run_guarantee": "AtMostOnce", "backoff_limit": 0})
    made = plan(of)
    assert (made.nodes.counts["succeeded"], made.records["a"].message) == (1, "")
    (found,) = status_of(of, made, Outcome()).failed_nodes
    assert (found.node_name, found.reason, found.message) == (
        "late",
        "OutcomeUnknown",
        "its ledger entry was lost, so it may have run; look at the node, then rerun it",
    )
    assert "first late: OutcomeUnknown" in message_of(of, made)


def test_a_record_that_is_not_in_what_was_lost_speaks_for_itself() -> None:
    of = lost("assume-done")
    kept = msgspec.structs.replace(of.ledger, entries={"a": entry(A, "Retry", finished_at=int(NOW - 900))})
    made = plan(msgspec.structs.replace(of, ledger=kept))
    assert (list(made.records), started(made)) == (["b"], ["a"])


def test_what_had_pods_is_told_by_them() -> None:
    of = lost("assume-done", pods=[pod(A)])
    assert list(plan(of).records) == ["b"]


@pytest.mark.parametrize(
    ("seqs", "recorded"),
    [
        pytest.param({1: "old"}, ("AssumedDone", 1), id="its own is gone, and an earlier one there"),
        pytest.param({1: "old", 2: REVISION}, ("", 1), id="its own is there, and is recorded in its turn"),
    ],
)
def test_of_the_run_that_is_wanted_no_earlier_pod_tells(
    seqs: dict[int, str], recorded: tuple[str, int]
) -> None:
    of = lost("assume-done", pods=[succeeded(A, seq, revision=of) for seq, of in seqs.items()])
    made = plan(of)
    assert (made.records["a"].reason, made.records["a"].seq, started(made)) == (*recorded, [])


@pytest.mark.parametrize("boot_id", [A.boot_id, "another"])
def test_the_next_attempt_of_a_run_that_a_pod_tells_of_is_made(boot_id: str) -> None:
    """Also where a reboot asks for it."""
    rebooted = msgspec.structs.replace(A, boot_id=boot_id)
    spec = {"backoff_limit": 1, "rerun_on": ("TemplateChange", "NodeReboot")}
    of = lost("assume-done", nodes=[rebooted, B], pods=[failed(A)], spec=spec)
    assert plan(of).records["a"].result == "Retry"


def test_status_names_the_run_that_every_node_has_succeeded_in_and_since_when() -> None:
    of = task()
    entries = {"a": entry(A), "b": entry(B)}
    run = wanted(of)
    first = status_of(
        snapshot(of, [A, B], entries=entries), plan(snapshot(of, [A, B], entries=entries)), Outcome()
    )
    assert (first.ledger.done_run, first.ledger.done_at) == (run, format_time(NOW))
    later = snapshot(msgspec.structs.replace(of, status=first), [A, B], entries=entries, now=NOW + 60)
    assert status_of(later, plan(later), Outcome()).ledger.done_at == format_time(NOW)
    joined = msgspec.structs.replace(later, nodes={**later.nodes, "late": LATE})
    assert status_of(joined, plan(joined), Outcome()).ledger.done_run == ""
