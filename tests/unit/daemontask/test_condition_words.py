"""The sentences of a DaemonTask's conditions, word by word, as people read them."""

from typing import Final

import pytest

from unit.daemontask.build import snapshot, task
from unit.daemontask.states import CASES, FURTHER, WELL, A, status

SAME: Final = "what Ready says"
# What Ready, Progressing and Degraded say.
WORDS: Final[dict[str, tuple[str, str, str]]] = {
    "no node matches: never complete": (
        "no node matches the template's selector, affinity and tolerations",
        "no node matches",
        "",
    ),
    "a rollout under way is reconciling": ("1 of 2 nodes succeeded, 1 pending", SAME, ""),
    "blocked nodes do not hold up Ready": ("1 of 2 nodes succeeded, 1 blocked", SAME, ""),
    "all blocked is not done": (
        "every node is blocked; 0 of 1 nodes succeeded, 1 blocked",
        "0 of 1 nodes succeeded, 1 blocked",
        "",
    ),
    "all blocked after the rollout have not succeeded": (
        "every node is blocked; 0 of 1 nodes succeeded, 1 blocked",
        "0 of 1 nodes succeeded, 1 blocked",
        "",
    ),
    "exhausted retries stall, or GitOps waits for ever": (
        "1 of 2 nodes succeeded, 1 failed (first b: Error)",
        SAME,
        "1 node(s) failed, first b: Error; status.failedNodes names them",
    ),
    "Continue within maxFailedNodes is ready and degraded": (
        "1 of 2 nodes succeeded, 1 failed (first b: Error)",
        SAME,
        "1 node(s) failed, first b: Error; status.failedNodes names them",
    ),
    "all failed within maxFailedNodes is the end, too": (
        "0 of 2 nodes succeeded, 2 failed (first a: Error)",
        SAME,
        "2 node(s) failed, first a: Error; status.failedNodes names them",
    ),
    "Pause lets no failure pass as success": (
        "1 of 2 nodes succeeded, 1 failed (first b: Error)",
        SAME,
        "1 node(s) failed, first b: Error; status.failedNodes names them",
    ),
    "suspended counts as current": (
        "suspended; 0 of 1 nodes succeeded, 1 pending",
        "nothing is started: spec.suspend is true; set it to false to go on",
        "",
    ),
    "an invalid spec stalls": (
        "spec.template.spec.x: no",
        "nothing is started: the spec is not valid, see SpecValid",
        "",
    ),
    "a node that joins later leaves the task ready": ("1 of 2 nodes succeeded, 1 active", SAME, ""),
    "one node failed for good while others still run": (
        "0 of 2 nodes succeeded, 1 failed (first a: Error), 1 active",
        SAME,
        "1 node(s) failed, first a: Error; status.failedNodes names them",
    ),
    "a policy of Fail ends the task": (
        "0 of 2 nodes succeeded, 1 failed (first a: Error), 1 pending",
        "nothing is started: the task has failed; edit it or run it again",
        "1 node(s) failed, first a: Error; status.failedNodes names them",
    ),
    "a policy of Pause holds the rollout": (
        (
            "more nodes failed than failurePolicy.maxFailedNodes allows; 0 of 2 nodes succeeded, "
            "1 failed (first a: Error), 1 pending; edit the task, or annotate "
            "caretaker.dev/resume-at with the current time"
        ),
        (
            "nothing is started: failurePolicy has paused the rollout; correct and apply the "
            "template, or set caretaker.dev/resume-at"
        ),
        "1 node(s) failed, first a: Error; status.failedNodes names them",
    ),
    "a lost ledger stalls": (
        (
            "1 ledger shard(s) are gone, so what has run is not known and nothing is started; "
            "annotate caretaker.dev/ledger=rerun to run again where no record is left, or "
            "=assume-done"
        ),
        "nothing is started: the ledger has lost records, see Ready",
        "",
    ),
    "an entry that cannot be read counts as not run": (
        "1 of 2 nodes succeeded, 1 pending",
        SAME,
        ("ledger entries of 1 node(s) could not be read and count as not run, first a: Expected `str`"),
    ),
    "one that cannot be read is graver than one that failed": (
        "0 of 2 nodes succeeded, 1 failed (first b: Error), 1 pending",
        SAME,
        ("ledger entries of 1 node(s) could not be read and count as not run, first a: Expected `str`"),
    ),
    "a pod that cannot start stalls after the deadline, when nothing else moves": (
        (
            "1 node(s) have not moved for longer than progressDeadlineSeconds (30 s), first a: "
            "ErrImagePull; 0 of 1 nodes succeeded, 1 active (1 ErrImagePull)"
        ),
        SAME,
        "",
    ),
    "a rollout whose deadline is over stalls": (
        (
            "rolloutDeadlineSeconds (3600 s) are over and 1 node(s) start nothing more, first b; "
            "1 of 2 nodes succeeded, 1 pending; annotate caretaker.dev/resume-at with the current time, or "
            "raise spec.rolloutDeadlineSeconds"
        ),
        SAME,
        "",
    ),
    "a run goes on after the deadline": (
        (
            "rolloutDeadlineSeconds (3600 s) are over and 1 node(s) start nothing more, first b; "
            "0 of 2 nodes succeeded, 1 active, 1 pending; annotate caretaker.dev/resume-at with the current "
            "time, or raise spec.rolloutDeadlineSeconds"
        ),
        SAME,
        "",
    ),
    "a task that waits for its first tick is current": (
        "first run at 1970-01-13T03:00:00Z; 0 of 1 nodes succeeded, 1 pending",
        "first run at 1970-01-13T03:00:00Z",
        "",
    ),
    "nodes that wait for another task are reconciling": (
        "1 of 3 nodes succeeded, 2 pending; 1 node(s) wait for DaemonTask first; 1 node(s) wait for "
        "DaemonTask first, which failed there",
        SAME,
        "",
    ),
    "nodes wait for a task that is missing": (
        "0 of 3 nodes succeeded, 3 pending; 3 node(s) wait for DaemonTask first, "
        "which is not in this namespace",
        SAME,
        "",
    ),
    "others run while a node waits for another task": (
        "1 of 3 nodes succeeded, 1 active, 1 pending; 1 node(s) wait for DaemonTask first",
        SAME,
        "",
    ),
    "a retry is to come while a node waits for another task": (
        "1 of 3 nodes succeeded, 2 pending; 1 node(s) wait for DaemonTask first",
        SAME,
        "",
    ),
    "tasks that depend on each other stall": (
        "tasks depend on each other: task -> first -> task; nothing is started until an entry of "
        "spec.dependsOn is removed; 0 of 3 nodes succeeded, 3 pending; 3 node(s) wait for DaemonTask first",
        "nothing is started: tasks depend on each other, see Ready",
        "",
    ),
    "data that cannot be read": (
        "spec.dataRefs[0]: the operator may not get Secret token; nothing is started before; 0 of 1 nodes "
        "succeeded, 1 pending",
        "nothing is started: data of spec.dataRefs cannot be read, see Ready",
        "",
    ),
    "a rollout that a budget holds back is reconciling": (
        "0 of 1 nodes succeeded, 1 pending; a budget lets no node run",
        "a budget lets no node run; 1 node(s) wait",
        "",
    ),
    "nodes that another task of the group holds": (
        ("1 of 2 nodes succeeded, 1 pending; 1 node(s) wait for DaemonTask other of exclusive group kernel"),
        SAME,
        "",
    ),
    "a quota that refuses pods is tried again": ("exceeded quota", SAME, SAME),
    "a quota that refuses the ledger is tried again": ("exceeded quota", SAME, SAME),
    "a permission that is missing is tried again": ("cannot create pods", SAME, SAME),
    "nodes in every state": (
        ("1 of 5 nodes succeeded, 1 failed (first b: Error, exit code 3), 1 active, 1 pending, 1 blocked"),
        SAME,
        "1 node(s) failed, first b: Error, exit code 3; status.failedNodes names them",
    ),
    "slots that rest": (
        "1 of 2 nodes succeeded, 1 pending; 1 slot(s) are held by minSuccessSeconds",
        SAME,
        "",
    ),
    "the last slot rests": ("1 of 1 nodes succeeded", SAME, ""),
    "a budget of one": (
        "0 of 2 nodes succeeded, 1 active, 1 pending; a budget lets 1 node(s) run at a time",
        SAME,
        "",
    ),
    "failures gate a rollout that may pause": (
        (
            "0 of 2 nodes succeeded, 2 pending; 1 node(s) are failing, first a, and "
            "failurePolicy.maxFailedNodes is 0: no other node starts until their retries "
            "succeed, or caretaker.dev/resume-at is set"
        ),
        SAME,
        "",
    ),
    "failures gate a rollout that may fail": (
        (
            "0 of 2 nodes succeeded, 2 pending; 1 node(s) are failing, first a, and "
            "failurePolicy.maxFailedNodes is 0: no other node starts until their retries "
            "succeed, or the task is edited"
        ),
        SAME,
        "",
    ),
    "a failing node and one that is lost": (
        (
            "0 of 3 nodes succeeded, 2 pending, 1 blocked; 2 node(s) are failing, first a, and "
            "failurePolicy.maxFailedNodes is 1: no other node starts until their retries "
            "succeed, or caretaker.dev/resume-at is set"
        ),
        SAME,
        "",
    ),
    "failures of a suspended task": (
        "suspended; 0 of 2 nodes succeeded, 2 pending",
        "nothing is started: spec.suspend is true; set it to false to go on",
        "",
    ),
    "a lost node pauses": (
        (
            "more nodes failed than failurePolicy.maxFailedNodes allows; 1 of 2 nodes succeeded, "
            "1 blocked; 1 node(s) count as failed, NotReady, unhealthy or blocked since their run, first d; "
            "edit the task, or annotate caretaker.dev/resume-at with the current time"
        ),
        (
            "nothing is started: failurePolicy has paused the rollout; correct and apply the "
            "template, or set caretaker.dev/resume-at"
        ),
        "",
    ),
    "a lost node fails the task": (
        (
            "1 of 2 nodes succeeded, 1 blocked; 1 node(s) count as failed, NotReady, unhealthy or blocked "
            "since their run, first d"
        ),
        "nothing is started: the task has failed; edit it or run it again",
        "",
    ),
    "nodes that joined fail after the rollout": (
        (
            "1 of 3 nodes succeeded, 1 failed (first b: Error, exit code 3), 1 pending; nodes "
            "begin one at a time until one succeeds, since nodes that joined or rebooted failed"
        ),
        SAME,
        "1 node(s) failed, first b: Error, exit code 3; status.failedNodes names them",
    ),
    "and no other waits": (
        "1 of 2 nodes succeeded, 1 failed (first b: Error, exit code 3)",
        SAME,
        "1 node(s) failed, first b: Error, exit code 3; status.failedNodes names them",
    ),
    "Pods that wait for images": (
        "0 of 4 nodes succeeded, 4 active (1 ErrImagePull, 2 ImagePullBackOff)",
        SAME,
        "",
    ),
    "all slots stuck": (
        (
            "1 node(s) have not moved for longer than progressDeadlineSeconds (1800 s); they "
            "hold every slot, first a: ErrImagePull; 0 of 2 nodes succeeded, 1 active, 1 pending "
            "(1 ErrImagePull)"
        ),
        SAME,
        "",
    ),
    "two of three stuck": (
        "0 of 3 nodes succeeded, 3 active (1 ErrImagePull, 1 ImagePullBackOff)",
        (
            "2 node(s) have not moved for longer than progressDeadlineSeconds (1800 s), first a: "
            "ImagePullBackOff; 0 of 3 nodes succeeded, 3 active (1 ErrImagePull, 1 "
            "ImagePullBackOff)"
        ),
        "",
    ),
    "refused nodes": ("the API server refuses the Pods of 2 node(s), first a: no Pods here", SAME, SAME),
    "refused nodes, and one that waits": (
        (
            "0 of 3 nodes succeeded, 1 pending, 2 blocked; the API server refuses the Pods of 2 "
            "node(s), first a: no Pods here"
        ),
        "0 of 3 nodes succeeded, 1 pending, 2 blocked",
        "the API server refuses the Pods of 2 node(s), first a: no Pods here",
    ),
    "a quota of the rest": ("exceeded quota", SAME, SAME),
    "nodes without room for so long": (
        "1 of 4 nodes succeeded, 1 pending, 2 blocked",
        ("3 node(s) have been blocked for longer than progressDeadlineSeconds, first a: Unschedulable"),
        "",
    ),
    "all refused": (
        (
            "the API server refuses the Pods of 2 node(s), first a: no Pods here; one node is "
            "tried at a time until one gets its Pod"
        ),
        SAME,
        SAME,
    ),
    "all refused, and tried": (
        (
            "the API server refuses the Pods of 2 node(s), first a: no Pods here; one node is "
            "tried at a time until one gets its Pod"
        ),
        SAME,
        SAME,
    ),
    "blocked for long": ("0 of 3 nodes succeeded, 1 pending, 2 blocked", SAME, ""),
    "unread entries under AtMostOnce": (
        "1 of 2 nodes succeeded, 1 failed (first b: OutcomeUnknown)",
        SAME,
        ("ledger entries of 1 node(s) could not be read and may have run, first b: see status.failedNodes"),
    ),
    "an entry that is broken, AtMostOnce": (
        "1 of 2 nodes succeeded, 1 active",
        SAME,
        ("ledger entries of 1 node(s) could not be read and may have run, first a: Expected `str`"),
    ),
    "a decision that is not carried out": (
        (
            "x is gone, so what has run is not known and nothing is started; assume-done is not "
            "carried out: there is no node x"
        ),
        "nothing is started: the ledger has lost records, see Ready",
        "",
    ),
    "names of Pods that are taken": (
        "1 of 1 nodes succeeded",
        SAME,
        "Pod t-2 exists and is not this task's; the next name is used",
    ),
    "a Pod without its label": (
        "1 of 1 nodes succeeded",
        SAME,
        (
            "Pod t-1 has lost the label caretaker.dev/daemontask; its node waits until it is "
            "gone: delete it, or give the label back"
        ),
    ),
    "annotations with slips": (
        "1 of 1 nodes succeeded",
        SAME,
        (
            "metadata.annotations[caretaker.dev/rerun-at]: 'soon' is not an RFC 3339 time such "
            "as 2026-01-31T12:00:00Z; metadata.annotations[caretaker.dev/resume-at]: 'later' is "
            "not an RFC 3339 time such as 2026-01-31T12:00:00Z"
        ),
    ),
    "a template not checked yet": ("1 of 1 nodes succeeded", SAME, ""),
    "runs that are to make way, and no budget for them": (
        "0 of 2 nodes succeeded, 1 active, 1 pending; a budget lets no node run",
        ("a budget lets no node run; 1 node(s) wait; 1 active node(s) keep the run that is to be replaced"),
        "",
    ),
    "throttled": ("cannot create pods", SAME, SAME),
    "Pods that stay": ("1 of 1 nodes succeeded", SAME, "Pod t-1: evidence"),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words_of_conditions(name: str) -> None:
    given, outcome, *_ = {**CASES, **FURTHER}[name]
    ready, *others = WORDS[name]
    found = {one.type: one.message for one in status(given, outcome).conditions}
    progressing, degraded = (ready if text == SAME else text for text in others)
    assert (found["Ready"], found["Progressing"], found.get("Degraded", "")) == (ready, progressing, degraded)
    assert {found.get(kind, ready) for kind in ("Stalled", "Reconciling")} == {ready}


@pytest.mark.parametrize("name", WORDS)
def test_the_form_of_conditions(name: str) -> None:
    given, outcome, *_ = {**CASES, **FURTHER}[name]
    for one in status(given, outcome).conditions:
        assert one.status in ("True", "False", "Unknown")
        assert one.observed_generation == given.task.metadata.generation


def test_the_words_of_the_others() -> None:
    of = snapshot(task(suspend=True), [A], checked=False)
    found = {one.type: one.message for one in status(of, WELL).conditions}
    assert found["SpecValid"] == "the template has not been checked yet"
    assert found["Suspended"] == "spec.suspend is true: nothing new is started"
    found = {one.type: one.message for one in status(snapshot(task(), [A]), WELL).conditions}
    assert found["SpecValid"] == "the API server accepts the template's Pods"


def test_every_case_has_its_words() -> None:
    here = "tests/unit/daemontask/test_condition_words.py"
    cases = {**CASES, **FURTHER}
    assert cases.keys() - WORDS.keys() == set(), f"cases of states.py without an entry in WORDS of {here}"
    assert WORDS.keys() - cases.keys() == set(), f"entries of WORDS of {here} without a case in states.py"
