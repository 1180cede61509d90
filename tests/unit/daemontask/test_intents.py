"""Intents: what a plan writes before a start, what it makes of one, and what that costs."""

from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import FailureRule, OnExitCodes, PodFailurePolicy
from caretaker.api.objects import MAX_SEQ, ContainerEnd, Pod
from caretaker.daemontask.decision import DecisionCache
from caretaker.daemontask.intents import PATIENCE, TOKEN, intent, is_new_end, is_open, withdrawn
from caretaker.daemontask.ledger import (
    OUTCOME_UNKNOWN,
    SHARD_NODES,
    Entry,
    Ledger,
    decode_entry,
    encode_entry,
)
from caretaker.daemontask.plan import BATCH, plan
from caretaker.daemontask.pods import Start
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import TaskStates
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import (
    NOW,
    REVISION,
    entry,
    failed,
    node,
    planned,
    pod,
    snapshot,
    started,
    states,
    succeeded,
    task,
)

A, B = node("a"), node("b")
ONCE: dict[str, Any] = {"run_guarantee": "AtMostOnce", "backoff_limit": 0}
CONFIG_MAP_BYTES = 1024 * 1024


def started_at(of: Any, seconds_ago: float = 5, **changes: Any) -> Entry:
    """An intent of a run of the current revision."""
    base = entry(of, "Failed", reason=OUTCOME_UNKNOWN, pod_uid="", finished_at=0, intent="token")
    return msgspec.structs.replace(base, started_at=int(NOW - seconds_ago), **changes)


def rejected(of: Any, reason: str) -> Pod:
    return failed(of, ends=(), reason=reason, message="Pod was rejected")


# ---------------------------------------------------------------- what is written


def test_a_start_has_an_intent_that_says_the_worst() -> None:
    made = plan(snapshot(task(**ONCE), [A], token="t"))
    (start,) = made.launch.starts
    written = made.launch.intents["a"]
    assert (written.result, written.reason, written.intent) == ("Failed", OUTCOME_UNKNOWN, "t")
    assert (written.seq, written.run_key, written.node_uid) == (start.seq, start.run_key, A.uid)
    assert is_open(written)


def test_at_least_once_writes_nothing_before_a_start() -> None:
    made = plan(snapshot(task(), [A, B], token="t"))
    assert len(made.launch.starts) == 2
    assert not made.launch.intents


def test_after_a_refusal_one_intent_is_written_at_a_time() -> None:
    nodes = [node(f"n{n}") for n in range(3)]
    assert len(plan(snapshot(task(**ONCE), nodes, token="t")).launch.intents) == 3
    one_by_one = plan(snapshot(task(**ONCE), nodes, token="t", one_at_a_time=True))
    assert (len(one_by_one.launch.intents), len(one_by_one.launch.starts), one_by_one.launch.queued) == (
        1,
        1,
        2,
    )


def test_one_pass_writes_as_many_intents_as_it_makes_starts() -> None:
    nodes = [node(f"n{n}") for n in range(BATCH + 1)]
    made = plan(snapshot(task(**ONCE), nodes, token="t"))
    assert len(made.launch.intents) == len(made.launch.starts) == BATCH
    assert made.more


def test_an_older_operator_reads_an_intent_as_a_failed_node() -> None:
    """After a downgrade: one that knows no intents ignores unknown fields, and repeats nothing."""
    made = plan(snapshot(task(**ONCE), [A], token="t"))
    fields = msgspec.json.decode(encode_entry(made.launch.intents["a"]))
    for unknown in ("intent", "before"):
        fields.pop(unknown, None)
    old = decode_entry(msgspec.json.encode(fields).decode())
    assert isinstance(old, Entry)
    result = planned(task(backoff_limit=3), [A], [], {"a": old})
    assert (states(result), started(result)) == ({"failed": 1}, [])


def test_an_older_entry_reads_as_no_intent() -> None:
    old = decode_entry('{"nodeUID":"u","revision":"r","runKey":"k","result":"Succeeded","seq":3}')
    assert isinstance(old, Entry)
    assert (old.intent, old.before, old.ended) == ("", None, 3)


def test_a_full_shard_of_intents_fits_into_a_config_map() -> None:
    of = node("n" * 253, uid="u" * 36, boot_id="b" * 36)
    before = entry(
        of,
        "Failed",
        run_key="k" * 10,
        revision="o" * 10,
        seq=MAX_SEQ - 2,
        pod_uid="p" * 36,
        pod_seq=MAX_SEQ - 3,
        nonce="2026-01-01T00:00:00.000000+00:00",
        boot_absorbed=True,
        attempts=999,
        disruptions=10,
        started_at=10**10 - 1,
        finished_at=10**10 - 1,
        exit_code=255,
        reason="r" * 64,
        message="m" * 200,
        reboot_runs=(10**10 - 1,) * 3,
    )
    start = Start(of.name, of.uid, MAX_SEQ - 1, 1, "k" * 10, before.nonce, of.boot_id, "NodeReboot")
    full = intent(start, REVISION, before, "t" * TOKEN, 10**10 - 1)
    assert SHARD_NODES * (len(of.name) + len(encode_entry(full).encode())) < CONFIG_MAP_BYTES


def test_an_intent_of_an_ordinary_node_takes_a_few_hundred_bytes() -> None:
    of = node("ip-10-0-0-1.eu-west-1.compute.internal", uid="u" * 36, boot_id="b" * 36)
    start = Start(of.name, of.uid, 2, 1, "k" * 10, "", of.boot_id, "TemplateChange")
    first = intent(start, REVISION, None, "t" * 12, NOW)
    assert len(encode_entry(first)) < 300
    second = intent(start, REVISION, entry(of, node_uid=of.uid, pod_uid="p" * 36), "t" * 12, NOW)
    assert len(encode_entry(second)) < 600


# ---------------------------------------------------------------- what becomes of it


@pytest.mark.parametrize(
    ("spec", "pods", "of", "state", "starts"),
    [
        pytest.param(ONCE, [], started_at(A), "active", [], id="a Pod that may still show up is waited for"),
        pytest.param(
            ONCE,
            [],
            started_at(A, PATIENCE + 2),
            "failed",
            [],
            id="a Pod that never shows up fails the node",
        ),
        pytest.param(
            ONCE,
            [],
            started_at(A, -PATIENCE - 2),
            "failed",
            [],
            id="a clock that was set back far holds up nothing",
        ),
        pytest.param(ONCE, [pod(A)], started_at(A, 9999), "active", [], id="a Pod that is there is the run"),
        pytest.param(ONCE, [succeeded(A)], started_at(A), "succeeded", [], id="its end is the run's"),
        pytest.param(
            ONCE,
            [succeeded(A)],
            started_at(A, 9999, finished_at=int(NOW - 60)),
            "succeeded",
            [],
            id="a Pod that shows up after it was given up tells how it ended",
        ),
        pytest.param(ONCE, [failed(A)], started_at(A), "failed", [], id="a run that failed is not repeated"),
        pytest.param(
            ONCE, [rejected(A, "OutOfcpu")], started_at(A), "failed", [], id="nor is one that was rejected"
        ),
        pytest.param(
            ONCE,
            [failed(A, conditions=(("DisruptionTarget", "True", "Evicted"),))],
            started_at(A),
            "failed",
            [],
            id="nor is one that was evicted",
        ),
        pytest.param(
            {}, [], started_at(A, PATIENCE + 2), "pending", [], id="without the guarantee it is due again"
        ),
        pytest.param(
            ONCE, [], started_at(A, revision="old"), "active", [], id="a new template waits for it, too"
        ),
        pytest.param(
            ONCE,
            [],
            started_at(A, 99, finished_at=int(NOW - 60), revision="old"),
            "pending",
            ["a"],
            id="a new template is another run",
        ),
        pytest.param(
            {**ONCE, "rerun_on": ("NodeReboot",)},
            [],
            started_at(A, 9999, finished_at=int(NOW - 60), boot_id="earlier"),
            "failed",
            [],
            id="the reboot that came with it is no other run",
        ),
        pytest.param(
            {**ONCE, "rerun_on": ("NodeReboot",)},
            [pod(A)],
            started_at(A, 9999, boot_id="earlier"),
            "active",
            [],
            id="a reboot in the middle of the run settles nothing",
        ),
    ],
)
def test_what_becomes_of_an_intent(
    spec: dict[str, Any], pods: list[Pod], of: Entry, state: str, starts: list[str]
) -> None:
    result = planned(task(**spec), [A], pods, {"a": of})
    assert (states(result), started(result)) == ({state: 1}, starts)
    assert result.wake or state not in ("active", "failed") or pods or of.finished_at


def test_a_reboot_in_the_middle_of_a_run_is_no_loop_yet() -> None:
    of = started_at(A, 9999, boot_id="earlier", reboot_runs=(int(NOW) - 60,) * 3)
    result = planned(task(**ONCE, rerun_on=("NodeReboot",)), [A], [pod(A)], {"a": of})
    assert (states(result), result.records) == ({"active": 1}, {})


def test_containers_of_which_the_kubelet_found_no_trace_have_an_unknown_outcome() -> None:
    lost = failed(A, ends=(ContainerEnd("main", 137, "ContainerStatusUnknown", "could not be located"),))
    record = planned(task(**ONCE), [A], [lost], {"a": started_at(A)}).records["a"]
    assert (record.result, record.reason) == ("Failed", OUTCOME_UNKNOWN)
    assert "ContainerStatusUnknown" in record.message
    assert planned(task(), [A], [lost]).records["a"].reason == "ContainerStatusUnknown"


def test_a_fail_job_rule_still_fails_the_task() -> None:
    rule = FailureRule("FailJob", OnExitCodes("In", (3,)))
    of = task(**ONCE, pod_failure_policy=PodFailurePolicy((rule,)))
    entries = planned(of, [A, B], [failed(A, exit_code=3)], {"a": started_at(A)}).records
    assert planned(of, [A, B], [], entries).rollout.failed


def test_a_reboot_that_starts_a_run_counts_once() -> None:
    of = task(**ONCE, rerun_on=("NodeReboot",))
    before = entry(A, boot_id="earlier", reboot_runs=(5,))
    written = plan(snapshot(of, [A], [], {"a": before}, token="t")).launch.intents["a"]
    assert written.reboot_runs == (5, int(NOW))
    marks = {"caretaker.dev/trigger": "NodeReboot", "caretaker.dev/run-key": written.run_key}
    ended = planned(of, [A], [succeeded(A, 2, marks=marks)], {"a": written}).records["a"]
    assert ended.reboot_runs == written.reboot_runs


def test_the_last_pod_keeps_its_logs_until_the_next_run_has_ended() -> None:
    earlier = succeeded(A, 1, finished=NOW - 3600)
    before = entry(A, pod_uid=earlier.uid, revision="old")
    written = plan(snapshot(task(**ONCE), [A], [earlier], {"a": before}, token="t")).launch.intents["a"]
    ran = pod(A, 2)
    assert not planned(task(**ONCE), [A], [earlier, ran], {"a": written}).deletes
    done = entry(A, seq=2, pod_uid=ran.uid)
    ended = succeeded(A, 2, uid=ran.uid)
    assert planned(task(**ONCE), [A], [earlier, ended], {"a": done}).deletes == (earlier,)


def test_its_time_does_not_wait_for_the_next_run() -> None:
    of = task(**ONCE, ttl_seconds_after_finished=60)
    earlier = succeeded(A, 1, finished=NOW - 40)
    before = entry(A, pod_uid=earlier.uid, revision="old", finished_at=int(earlier.finished))
    written = plan(snapshot(of, [A], [earlier], {"a": before}, token="t")).launch.intents["a"]
    pods = [earlier, pod(A, 2)]
    assert not planned(of, [A], pods, {"a": written}).deletes
    assert planned(of, [A], pods, {"a": written}, now=NOW + 20).deletes == (earlier,)


# ---------------------------------------------------------------- what never ran


def test_an_intent_that_ran_nothing_gives_way_to_what_stood_there() -> None:
    before = entry(A, revision="old", message="m", results={"ms": 1}, reboot_runs=(7,))
    written = plan(snapshot(task(**ONCE), [A], [], {"a": before}, token="t")).launch.intents["a"]
    back = plan(snapshot(task(**ONCE), [A], [], {"a": written}, unstarted={A.uid: "t"})).records["a"]
    kept = msgspec.structs.replace(before, message="", results=None, seq=written.seq, reboot_runs=(7,))
    assert back == withdrawn(written) == kept
    assert started(planned(task(**ONCE), [A], [], {"a": back})) == ["a"]


def test_another_pass_knows_nothing_of_this_ones_intent() -> None:
    written = started_at(A, PATIENCE + 2)
    result = plan(snapshot(task(**ONCE), [A], [], {"a": written}, unstarted={A.uid: "another"}))
    assert states(result) == {"failed": 1}


def test_what_was_never_begun_is_remembered_beyond_a_term_of_leadership() -> None:
    task_states, key = TaskStates(), Key("DaemonTask", "default", "task")
    task_states.of(key, "uid").ledger.not_started(A.uid, "t")
    task_states.clear()
    assert task_states.of(key, "uid").ledger.unstarted == {A.uid: "t"}
    assert task_states.of(key, "its successor").ledger.unstarted == {}
    task_states.drop(key)
    assert task_states.of(key, "uid").ledger.unstarted == {}


def test_an_entry_that_becomes_unreadable_is_noticed_by_a_plan_that_remembers() -> None:
    first = snapshot(task(**ONCE), [A], decision_cache=DecisionCache(), token="t")
    assert started(plan(first)) == ["a"]
    second = msgspec.structs.replace(first, ledger=Ledger({}, corrupt={"a": "bad"}, shards=1))
    assert started(plan(second)) == []
    assert plan(second).records["a"].reason == OUTCOME_UNKNOWN


def broken(version: int = 900) -> Ledger:
    return Ledger({}, corrupt={"a": "bad"}, shards=1, version=version)


@pytest.mark.parametrize(("version", "seq"), [(900, 900), (0, 7)])
def test_who_tells_for_a_broken_entry_is_named_though_its_seq_is_beyond_all_others(
    version: int, seq: int
) -> None:
    """The Pods' highest, where the ledger's version is no number."""
    old, told = failed(A, 2, revision="old"), failed(A, 7)
    found = snapshot(task(**ONCE), [A], [old, told], ledger=broken(version))
    written = plan(found).records["a"]
    assert (written.pod_uid, written.seq, written.reason) == (told.uid, seq, "Error")
    for pods in ([told], []):
        after = snapshot(task(**ONCE), [A], pods, {"a": written})
        (named,) = status_of(after, plan(after), Outcome()).failed_nodes
        assert named.pod_name == told.name


def test_for_a_broken_entry_the_pod_of_the_run_that_is_due_tells_once_it_has_ended() -> None:
    """Nothing is recorded before, and nothing starts: an old view may show it after its end."""
    old, live = succeeded(A, 2, revision="old"), pod(A, 7)
    result = planned(task(**ONCE), [A, B], [old, live], ledger=broken())
    assert "a" not in result.records
    assert (started(result), result.deletes) == (["b"], ())
    ended = planned(task(**ONCE), [A], [old, succeeded(A, 7)], ledger=broken())
    assert (ended.records["a"].result, ended.records["a"].seq) == ("Succeeded", 900)


def test_of_a_broken_entry_whose_run_nobody_tells_no_pod_is_named() -> None:
    written = planned(task(**ONCE), [A], [pod(A, 7, revision="old")], ledger=broken()).records["a"]
    assert (written.seq, written.reason) == (900, OUTCOME_UNKNOWN)
    after = snapshot(task(**ONCE), [A], [], {"a": written})
    assert [n.pod_name for n in status_of(after, plan(after), Outcome()).failed_nodes] == [""]


def test_what_was_never_begun_is_noticed_by_a_plan_that_remembers() -> None:
    first = snapshot(task(**ONCE), [A], [], {"a": started_at(A)}, decision_cache=DecisionCache())
    assert states(plan(first)) == {"active": 1}
    second = msgspec.structs.replace(first, unstarted={A.uid: "token"})
    assert states(plan(second)) == {"pending": 1}


# ---------------------------------------------------------------- what metrics count


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        pytest.param(None, entry(A), True, id="the first run"),
        pytest.param(entry(A), entry(A, boot_absorbed=True), False, id="the same run, after its reboot"),
        pytest.param(entry(A), started_at(A), False, id="an intent"),
        pytest.param(started_at(A), entry(A), True, id="the end of what was intended"),
        pytest.param(
            started_at(A), started_at(A, finished_at=int(NOW)), True, id="an outcome that stays unknown"
        ),
        pytest.param(
            started_at(A, finished_at=5),
            started_at(A, finished_at=5, boot_absorbed=True),
            False,
            id="an unknown outcome, after its reboot",
        ),
        pytest.param(started_at(A), withdrawn(started_at(A)), False, id="an intent that is taken back"),
        pytest.param(
            started_at(A, before=entry(A, pod_uid="earlier")),
            entry(A, pod_uid="earlier"),
            False,
            id="an intent that gives way to what stood there",
        ),
    ],
)
def test_each_end_of_a_run_is_counted_once(before: Entry | None, after: Entry, counts: bool) -> None:
    assert is_new_end(before, after) is counts
