"""Specs that a real API server refuses: each with the field and the words that a user reads."""

from collections.abc import Iterator
from typing import Any

import pytest

from caretaker.registry import DAEMON_TASK
from testing.customobjects import Objects, Spec, in_own_namespace
from testing.daemontasks import (
    DISRUPTED,
    exit_codes,
    meta,
    once,
    pod,
    rules,
    task,
)

RULE = "spec.podFailurePolicy.rules[0]"
PERCENT = 'a percentage from "1%" to "100%"'


@pytest.fixture(scope="module")
def tasks(cluster: Any) -> Iterator[Objects]:
    with in_own_namespace(cluster.kubeconfig, DAEMON_TASK) as own:
        yield own


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        # The template.
        pytest.param({}, "spec", "exactly one of template", id="no template"),
        pytest.param({"template": {}}, "spec.template.spec", "Required value", id="a template without a pod"),
        pytest.param(
            {"template": {"spec": {}}}, "spec.template.spec.containers", "Required value", id="no containers"
        ),
        pytest.param(
            pod(containers=[]),
            "spec.template.spec.containers",
            "at least 1 items",
            id="an empty list of containers",
        ),
        pytest.param(
            pod(containers=[{"image": "busybox"}]),
            "spec.template.spec.containers[0].name",
            "Required value",
            id="a container without a name",
        ),
        pytest.param(
            pod(containers=[{"name": "a"}, {"name": "a"}]),
            "spec.template.spec.containers[1]",
            "Duplicate value",
            id="two containers of one name",
        ),
        pytest.param(
            pod(containers=[{"name": "a", "restartPolicy": "Always"}]),
            "spec.template.spec.containers[0].restartPolicy",
            'supported values: "Never", "OnFailure"',
            id="a container that never ends",
        ),
        pytest.param(
            pod(initContainers=[{"name": "a" * 64}]),
            "spec.template.spec.initContainers[0].name",
            "Too long: may not be more than 63",
            id="an init container whose name is too long",
        ),
        pytest.param(
            pod(restartPolicy="Always"),
            "spec.template.spec.restartPolicy",
            'Unsupported value: "Always": supported values: "Never", "OnFailure"',
            id="a pod that never ends",
        ),
        pytest.param(
            pod(nodeName="node-1"),
            "spec.template.spec.nodeName",
            "choose nodes with nodeSelector, affinity and tolerations",
            id="a pod that is bound to one node",
        ),
        pytest.param(
            meta(labels={"a": 1}),
            "spec.template.metadata.labels.a",
            "must be of type string",
            id="a number as label",
        ),
        pytest.param(
            meta(labels={"caretaker.dev/daemontask": "x"}),
            "spec.template.metadata.labels",
            "must not hold keys under caretaker.dev/",
            id="a label of the operator's own",
        ),
        pytest.param(
            meta(annotations={"caretaker.dev/run-key": "x"}),
            "spec.template.metadata.annotations",
            "must not hold keys under caretaker.dev/",
            id="an annotation of the operator's own",
        ),
        # When to run.
        pytest.param(task(suspend="yes"), "spec.suspend", "must be of type boolean", id="suspend as a word"),
        pytest.param(
            task(rerunOn=["Reboot"]),
            "spec.rerunOn[0]",
            'supported values: "TemplateChange", "NodeReboot", "ReferencedDataChange"',
            id="a trigger that does not exist",
        ),
        pytest.param(
            task(rerunOn=["NodeReboot", "NodeReboot"]),
            "spec.rerunOn[1]",
            "Duplicate value",
            id="a trigger twice",
        ),
        pytest.param(
            task(rerunOn="NodeReboot"), "spec.rerunOn", "must be of type array", id="a trigger without a list"
        ),
        # How often.
        pytest.param(
            task(runGuarantee="ExactlyOnce"),
            "spec.runGuarantee",
            'supported values: "AtLeastOnce", "AtMostOnce"',
            id="a guarantee that nobody can give",
        ),
        pytest.param(
            task(runGuarantee="AtMostOnce"),
            "spec.backoffLimit",
            "needs spec.backoffLimit: 0",
            id="at most once, with the retries of the default",
        ),
        pytest.param(
            {**once(), "backoffLimit": 1},
            "spec.backoffLimit",
            "a run that failed is not repeated",
            id="at most once, with a retry",
        ),
        pytest.param(
            once(restartPolicy="OnFailure"),
            "spec.template.spec.restartPolicy",
            "needs spec.template.spec.restartPolicy: Never",
            id="at most once, with restarts by the kubelet",
        ),
        pytest.param(
            once(containers=[{"name": "a", "restartPolicy": "Never", "restartPolicyRules": []}]),
            "spec.template.spec",
            "the kubelet starts a container again",
            id="at most once, with a container that the kubelet restarts by rules",
        ),
        pytest.param(
            once(initContainers=[{"name": "a", "restartPolicy": "OnFailure"}]),
            "spec.template.spec",
            "the kubelet starts a container again",
            id="at most once, with an init container that the kubelet restarts",
        ),
        pytest.param(
            {**once(), "podFailurePolicy": {"rules": [DISRUPTED]}},
            "spec.podFailurePolicy.rules",
            "Ignore repeats a failed run",
            id="at most once, with failures that are repeated",
        ),
        *(
            pytest.param(task(schedule=text), "spec.schedule", words, id=f"{text or 'no'} as schedule")
            for text, words in [
                ("", "should be at least 1 chars long"),
                ("0 3 * *", "must have the five fields"),
                ("0 0 3 * * *", "must have the five fields"),
                ("@every 1h", "must have the five fields"),
                ("@Daily", "must have the five fields"),
                ("TZ=Europe/Berlin 0 3 * * *", "set spec.timeZone"),
                ("CRON_TZ=UTC 0 3 * * *", "set spec.timeZone"),
                ("60 3 * * *", "the minute must be from 0 to 59"),
                ("*/0 3 * * *", "the minute must be from 0 to 59"),
                ("0 24 * * *", "the hour must be from 0 to 23"),
                ("0 3 32 * *", "the day of the month must be from 1 to 31"),
                ("0 3 L * *", "the day of the month must be from 1 to 31"),
                ("0 3 * 0 *", "the month must be from 1 to 12"),
                ("0 3 * * 7", "the day of the week must be from 0 (Sunday) to 6"),
                ("0 3 * * MON#2", "the day of the week must be from 0 (Sunday) to 6"),
                ("0 3 * * *;", "the day of the week must be from 0 (Sunday) to 6"),
                (",".join(["0"] * 99) + " 3 * * *", "Too long"),
            ]
        ),
        *(
            pytest.param(task(timeZone=zone), "spec.timeZone", words, id=f"{zone or 'no'} as time zone")
            for zone, words in [
                ("", "should be at least 1 chars long"),
                ("Local", "must be the name of a time zone"),
                ("Mars/Phobos", "time zone"),
                ("+02:00", "must be the name of a time zone"),
                ("../UTC", "must be the name of a time zone"),
                ("/UTC", "must be the name of a time zone"),
            ]
        ),
        pytest.param(
            task(startingDeadlineSeconds=9),
            "spec.startingDeadlineSeconds",
            "greater than or equal to 10",
            id="a deadline that no tick meets for sure",
        ),
        pytest.param(
            task(startingDeadlineSeconds=60),
            "spec.startingDeadlineSeconds",
            "is about ticks of spec.schedule, and there is none",
            id="a deadline of ticks that never come",
        ),
        pytest.param(
            task(concurrencyPolicy="Allow"),
            "spec.concurrencyPolicy",
            'supported values: "Forbid", "Replace"',
            id="two runs on a node",
        ),
        # How fast.
        pytest.param(
            task(budgets=[{"schedule": "0 9 * * *", "duration": "8h"}]),
            "spec.budgets[0].nodes",
            "Required value",
            id="a budget without nodes",
        ),
        pytest.param(
            task(budgets=[{"nodes": 0, "schedule": "0 9 * * *"}]),
            "spec.budgets[0]",
            "needs both schedule and duration, or neither",
            id="a window without end",
        ),
        pytest.param(
            task(budgets=[{"nodes": 0, "duration": "8h"}]),
            "spec.budgets[0]",
            "needs both schedule and duration, or neither",
            id="a window without beginning",
        ),
        *(
            pytest.param(
                task(budgets=[{"nodes": nodes}]),
                "spec.budgets[0].nodes",
                'a percentage from "0%" to "100%"',
                id=f"a budget of {nodes!r} nodes",
            )
            for nodes in (-1, "101%", "-1", "some", "5.5%", "")
        ),
        *(
            pytest.param(
                task(budgets=[{"nodes": 0, "schedule": "0 9 * * *", "duration": duration}]),
                "spec.budgets[0].duration",
                words,
                id=f"a window of {duration!r}",
            )
            for duration, words in [
                ("8", "such as 8h or 1h30m"),
                ("1d", "such as 8h or 1h30m"),
                ("30m1h", "such as 8h or 1h30m"),
                ("0", "longer than nothing"),
                ("", "longer than nothing"),
            ]
        ),
        pytest.param(
            task(budgets=[{"nodes": 0, "schedule": "0 25 * * *", "duration": "8h"}]),
            "spec.budgets[0].schedule",
            "the hour must be from 0 to 23",
            id="a budget with no schedule",
        ),
        pytest.param(
            task(budgets=[{"nodes": 1}] * 21),
            "spec.budgets",
            "must have at most 20 items",
            id="21 budgets",
        ),
        pytest.param(task(parallelism=0), "spec.parallelism", PERCENT, id="parallelism of none"),
        pytest.param(task(parallelism=-1), "spec.parallelism", PERCENT, id="negative parallelism"),
        pytest.param(task(parallelism="0%"), "spec.parallelism", PERCENT, id="parallelism of no percent"),
        pytest.param(task(parallelism="101%"), "spec.parallelism", PERCENT, id="parallelism above all"),
        pytest.param(task(parallelism="5"), "spec.parallelism", PERCENT, id="parallelism as text without %"),
        pytest.param(
            task(parallelism="5.5%"), "spec.parallelism", PERCENT, id="parallelism of half a percent"
        ),
        pytest.param(
            task(parallelism=1.5),
            "spec.parallelism",
            "must be of type integer,string",
            id="parallelism of half a node",
        ),
        pytest.param(
            task(minSuccessSeconds=-1),
            "spec.minSuccessSeconds",
            "greater than or equal to 0",
            id="negative patience",
        ),
        # Failures.
        pytest.param(
            task(backoffLimit=-1),
            "spec.backoffLimit",
            "greater than or equal to 0",
            id="negative number of retries",
        ),
        pytest.param(
            task(backoffLimit="3"),
            "spec.backoffLimit",
            "must be of type integer",
            id="number of retries as text",
        ),
        pytest.param(
            task(backoffLimit=3_000_000_000),
            "spec.backoffLimit",
            "less than or equal to 2147483647",
            id="more retries than 32 bits hold",
        ),
        pytest.param(
            task(exclusive={"group": "no spaces"}),
            "spec.exclusive.group",
            "must consist of letters, digits",
            id="a group whose name is no label's value",
        ),
        pytest.param(
            task(exclusive={"parallelism": 1}),
            "spec.exclusive.group",
            "Required value",
            id="a group without name",
        ),
        pytest.param(
            task(exclusive={"group": "kernel", "parallelism": 0}),
            "spec.exclusive.parallelism",
            "a whole number of at least 1",
            id="a group that may have no node",
        ),
        pytest.param(
            task(failurePolicy={"maxFailedNodes": -1}),
            "spec.failurePolicy.maxFailedNodes",
            'a percentage from "0%" to "100%"',
            id="fewer than no failed nodes",
        ),
        pytest.param(
            task(failurePolicy={"maxFailedNodes": "150%"}),
            "spec.failurePolicy.maxFailedNodes",
            'a percentage from "0%" to "100%"',
            id="more failed nodes than there are",
        ),
        pytest.param(
            task(failurePolicy={"action": "Stop"}),
            "spec.failurePolicy.action",
            'supported values: "Continue", "Pause", "Fail"',
            id="a failure action that does not exist",
        ),
        pytest.param(
            task(dependsOn=[{"name": "t"}]),
            "spec.dependsOn",
            "must not name the task itself",
            id="a task that waits for itself",
        ),
        pytest.param(
            task(dependsOn=[{"name": f"a{i}"} for i in range(9)]),
            "spec.dependsOn",
            "must have at most 8 items",
            id="nine tasks to wait for",
        ),
        pytest.param(
            task(dependsOn=[{"name": "a"}, {"name": "a"}]),
            "spec.dependsOn[1]",
            "Duplicate value",
            id="the same task to wait for twice",
        ),
        pytest.param(
            task(dependsOn=[{}]), "spec.dependsOn[0].name", "Required value", id="no task to wait for"
        ),
        pytest.param(
            task(dependsOn=[{"name": "a" * 64}]),
            "spec.dependsOn[0].name",
            "Too long: may not be more than 63",
            id="a task of a name that no task has",
        ),
        *(
            pytest.param(
                task(dependsOn=[{"name": name}]),
                "spec.dependsOn[0].name",
                "must be the name of a DaemonTask of this namespace",
                id=f"a name that leads to something else: {name}",
            )
            for name in ("t/status", "..", "a..b", "A", "a:b", "a\n")
        ),
        pytest.param(
            task(drain={}), "spec.parallelism", "spec.drain needs spec.parallelism", id="a drain of all nodes"
        ),
        pytest.param(
            task(parallelism=1, drain={"timeoutSeconds": 0}),
            "spec.drain.timeoutSeconds",
            "should be greater than or equal to 1",
            id="a drain without time",
        ),
        pytest.param(
            task(
                parallelism=1,
                drain={
                    "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}
                },
            ),
            "spec.drain.podSelector.matchExpressions[0].values",
            "values are needed with the operators In and NotIn",
            id="a selector that says two things",
        ),
        *(
            pytest.param(
                task(parallelism=1, drain={"podSelector": selector}),
                f"spec.drain.podSelector.{field}",
                words,
                id=f"a selector with an odd {field}",
            )
            for selector, field, words in (
                ({"matchLabels": {"a b": "c"}}, "matchLabels", "a key is not the name of a label"),
                ({"matchLabels": {"a": "b c"}}, "matchLabels", "a value is not the value of a label"),
                (
                    {"matchExpressions": [{"key": "a b", "operator": "Exists"}]},
                    "matchExpressions[0].key",
                    "the key is not the name of a label",
                ),
                (
                    {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]},
                    "matchExpressions[0].values",
                    "a value is not the value of a label",
                ),
            )
        ),
        pytest.param(
            task(parallelism=1, drain={"timeoutSeconds": 60, "gracePeriodSeconds": 60}),
            "spec.drain.gracePeriodSeconds",
            "must be less than timeoutSeconds",
            id="a grace period as long as the drain",
        ),
        *(
            pytest.param(task(healthGate=gate), f"spec.healthGate{field}", words, id=what)
            for gate, field, words, what in (
                ({}, ".conditions", "Required value", "a health gate without conditions"),
                ({"conditions": []}, ".conditions", "at least 1 items", "a health gate of no condition"),
                (
                    {"conditions": [{"type": f"C{number}"} for number in range(17)]},
                    ".conditions",
                    "at most 16 items",
                    "too many conditions",
                ),
                (
                    {"conditions": [{"type": "A"}, {"type": "A", "status": "True"}]},
                    ".conditions[1]",
                    "Duplicate value",
                    "a condition twice",
                ),
                (
                    {"conditions": [{"type": "Ready", "status": "True"}]},
                    ".conditions[0].type",
                    "a node that is not Ready starts nothing anyway",
                    "Ready as a condition",
                ),
                (
                    {"conditions": [{"type": "Disk Pressure"}]},
                    ".conditions[0].type",
                    "must be the type of a Node's condition",
                    "a type that is none",
                ),
                (
                    {"conditions": [{"type": "A", "status": "Unknown"}]},
                    ".conditions[0].status",
                    'supported values: "True", "False"',
                    "Unknown as healthy",
                ),
            )
        ),
        *(
            pytest.param(task(**{field: value}), f"spec.{path}", words, id=f"{path}: {value}")
            for field, value, path, words in (
                ("canary", {"nodes": 0}, "canary.nodes", "must be a whole number of at least 1"),
                ("canary", {"nodes": "0%"}, "canary.nodes", "leave spec.canary out for no canary"),
                ("canary", {"soakSeconds": -1}, "canary.soakSeconds", "greater than or equal to 0"),
                ("topologyKey", "", "topologyKey", "at least 1 chars long"),
                ("topologyKey", "a b", "topologyKey", "must be the key of a label of nodes"),
                ("dataRefs", [{"kind": "ConfigMap", "name": "a"}], "rerunOn", "need each other; set both"),
                ("rerunOn", ["ReferencedDataChange"], "rerunOn", "need each other; set both"),
                ("dataRefs", [{"kind": "Pod", "name": "a"}], "dataRefs[0].kind", "Unsupported value"),
                ("dataRefs", [{"kind": "Secret"}], "dataRefs[0].name", "Required value"),
                ("dataRefs", [{"kind": "Secret", "name": "../x"}], "dataRefs[0].name", "must be the name of"),
                ("dataRefs", [{"kind": "Secret", "name": "a"}] * 2, "dataRefs[1]", "Duplicate value"),
                (
                    "dataRefs",
                    [{"kind": "Secret", "name": f"a{n}"} for n in range(9)],
                    "dataRefs",
                    "must have at most 8 items",
                ),
            )
        ),
        *(
            pytest.param(
                task(rolloutDeadlineSeconds=seconds),
                "spec.rolloutDeadlineSeconds",
                words,
                id=f"a rollout of {seconds} s",
            )
            for seconds, words in (
                (59, "should be greater than or equal to 60"),
                (2592001, "should be less than or equal to 2592000"),
            )
        ),
        # Results.
        pytest.param(
            task(nodeGate=True), "spec.nodeGate", "must be of type object", id="a gate that is no object"
        ),
        pytest.param(
            task(results=[{"name": f"r{number}"} for number in range(9)]),
            "spec.results",
            "must have at most 8 items",
            id="too many results",
        ),
        pytest.param(
            task(results=[{"name": "a"}, {"name": "a", "unit": "ms"}]),
            "spec.results[1]",
            "Duplicate value",
            id="a result twice",
        ),
        *(
            pytest.param(
                task(results=[{"name": name}]),
                "spec.results[0].name",
                "rename it here and in the JSON",
                id=what,
            )
            for name, what in [
                ("1st", "a result that begins with a digit"),
                ("Free", "a result that begins with a capital"),
                ("free.percent", "a result with a dot"),
                ("free-", "a result that ends with a hyphen"),
                ('a"b', "a result with a quote"),
            ]
        ),
        pytest.param(
            task(results=[{"name": "a" * 33}]),
            "spec.results[0].name",
            "Too long",
            id="a result of 33 letters",
        ),
        pytest.param(
            task(results=[{"unit": "ms"}]),
            "spec.results[0].name",
            "Required value",
            id="a result without name",
        ),
        pytest.param(
            task(results=[{"name": "a", "type": "Bool"}]),
            "spec.results[0].type",
            'supported values: "Number", "Text"',
            id="a result of no type",
        ),
        pytest.param(
            task(results=[{"name": "a", "unit": "m" * 17}]),
            "spec.results[0].unit",
            "Too long",
            id="a unit of 17 letters",
        ),
        # podFailurePolicy, by the rules of batch/v1 Job.
        pytest.param(
            task(podFailurePolicy={}),
            "spec.podFailurePolicy.rules",
            "Required value",
            id="a policy without rules",
        ),
        pytest.param(
            rules(DISRUPTED, restartPolicy="OnFailure"),
            "spec.podFailurePolicy",
            "needs spec.template.spec.restartPolicy: Never",
            id="a policy for pods that the kubelet restarts",
        ),
        pytest.param(
            rules(*[DISRUPTED] * 21),
            "spec.podFailurePolicy.rules",
            "must have at most 20 items",
            id="21 rules",
        ),
        pytest.param(
            rules({**DISRUPTED, "action": "FailTask"}),
            f"{RULE}.action",
            'supported values: "FailJob", "FailIndex", "Ignore", "Count"',
            id="a rule with an action that does not exist",
        ),
        pytest.param(
            rules({"onPodConditions": [{"type": "A"}]}),
            f"{RULE}.action",
            "Required value",
            id="a rule without action",
        ),
        pytest.param(
            rules({"action": "Ignore"}),
            RULE,
            "exactly one of onExitCodes and onPodConditions",
            id="a rule without a condition",
        ),
        pytest.param(
            rules({"action": "Ignore", "onPodConditions": []}),
            RULE,
            "exactly one of onExitCodes and onPodConditions",
            id="a rule with an empty list of conditions",
        ),
        pytest.param(
            rules({**DISRUPTED, "onExitCodes": {"operator": "In", "values": [1]}}),
            RULE,
            "exactly one of onExitCodes and onPodConditions",
            id="a rule with both kinds of condition",
        ),
        pytest.param(
            exit_codes(), f"{RULE}.onExitCodes.values", "at least 1 items", id="a rule without exit codes"
        ),
        pytest.param(
            exit_codes(*range(1, 257)),
            f"{RULE}.onExitCodes.values",
            "must have at most 255 items",
            id="256 exit codes",
        ),
        pytest.param(
            exit_codes(2, 1),
            f"{RULE}.onExitCodes.values",
            "ascending order; sort them",
            id="unsorted exit codes",
        ),
        pytest.param(
            exit_codes(1, 1), f"{RULE}.onExitCodes.values[1]", "Duplicate value: 1", id="an exit code twice"
        ),
        pytest.param(
            exit_codes(0, 1),
            f"{RULE}.onExitCodes.values",
            "must not hold 0 with operator In",
            id="success as a failure's exit code",
        ),
        pytest.param(
            exit_codes(1, operator="Equals"),
            f"{RULE}.onExitCodes.operator",
            'supported values: "In", "NotIn"',
            id="an operator that does not exist",
        ),
        pytest.param(
            exit_codes(1, containerName="other"),
            "spec.podFailurePolicy.rules",
            "must be the name of a container or initContainer",
            id="a rule about a container that does not exist",
        ),
        pytest.param(
            rules({"action": "Ignore", "onPodConditions": [{"type": "A"}] * 21}),
            f"{RULE}.onPodConditions",
            "must have at most 20 items",
            id="a rule with 21 pod conditions",
        ),
        pytest.param(
            rules({"action": "Ignore", "onPodConditions": [{"type": "no spaces"}]}),
            f"{RULE}.onPodConditions[0].type",
            "must be",
            id="a pod condition with a space in its type",
        ),
        pytest.param(
            rules({"action": "Ignore", "onPodConditions": [{"type": "A", "status": "true"}]}),
            f"{RULE}.onPodConditions[0].status",
            'supported values: "True", "False", "Unknown"',
            id="a pod condition's status in lower case",
        ),
        # Deadlines.
        pytest.param(
            task(activeDeadlineSeconds=0),
            "spec.activeDeadlineSeconds",
            "greater than or equal to 1",
            id="no time to run",
        ),
        pytest.param(
            {**pod(activeDeadlineSeconds=9), "activeDeadlineSeconds": 9},
            "spec.activeDeadlineSeconds",
            "keep spec.activeDeadlineSeconds and remove the other",
            id="a deadline in two places",
        ),
        pytest.param(
            task(progressDeadlineSeconds=0),
            "spec.progressDeadlineSeconds",
            "greater than or equal to 1",
            id="no time to progress",
        ),
        pytest.param(
            task(ttlSecondsAfterFinished=-1),
            "spec.ttlSecondsAfterFinished",
            "greater than or equal to 0",
            id="pods deleted before they end",
        ),
        pytest.param(
            task(ttlSecondsAfterFinished="1h"),
            "spec.ttlSecondsAfterFinished",
            "must be of type integer",
            id="a time with a unit",
        ),
    ],
)
def test_refused(tasks: Objects, spec: Spec, field: str, message: str) -> None:
    status, _, causes = tasks.refusal(spec)
    assert status == 422
    assert [said for at, said in causes if at == field and message in said], causes


def test_several_faults_are_told_at_once(tasks: Objects) -> None:
    spec = {**exit_codes(2, 1), "parallelism": 0, "failurePolicy": {"maxFailedNodes": -1}}
    _, _, causes = tasks.refusal(spec)
    fields = {at for at, _ in causes}
    assert fields == {"spec.parallelism", "spec.failurePolicy.maxFailedNodes", f"{RULE}.onExitCodes.values"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("a" * 64, "at most 63 characters, because it becomes a label", id="64 characters"),
        pytest.param("Hello", "a lowercase RFC 1123 subdomain", id="an upper-case letter"),
    ],
)
def test_name_refused(tasks: Objects, name: str, message: str) -> None:
    status, _, causes = tasks.refusal(task(), name)
    assert status == 422
    assert [said for at, said in causes if at == "metadata.name" and message in said], causes


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param(
            task(budgets=[{"nodes": "0", "reasons": ["Drifted"]}]),
            "spec.budgets[0].reasons",
            id="a field of Karpenter's budgets alone",
        ),
        pytest.param(task(paralellism=1), "spec.paralellism", id="a misspelt field"),
        pytest.param(task(failurePolicy={"max": 1}), "spec.failurePolicy.max", id="a misspelt nested field"),
        pytest.param(
            meta(finalizers=["example.com/hold"]),
            "spec.template.metadata.finalizers",
            id="pod metadata that is not ours",
        ),
    ],
)
def test_unknown_fields_are_refused_or_pruned(tasks: Objects, spec: Spec, path: str) -> None:
    status, message, _ = tasks.refusal(spec)
    assert status == 400
    assert f'unknown field "{path}"' in message
    *parents, last = path.split(".")[1:]
    kept = tasks.create(spec, validation="Ignore")["spec"]
    for parent in parents:
        name, _, place = parent.partition("[")
        kept = kept[name][int(place.rstrip("]"))] if place else kept[name]
    assert last not in kept
