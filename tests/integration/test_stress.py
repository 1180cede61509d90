"""`make stress` as a process."""

import subprocess
import sys
from pathlib import Path

from testbed.cluster import Cluster
from testbed.paths import CHECKOUT

TEST = """
import os, pathlib

def test_now_and_then(tmp_path):
    (tmp_path / "operator.log").write_text("what the operator wrote")
    with open({runs!r}, "a") as runs:
        runs.write(os.environ["MODEL_SEED"] + "\\n")
    assert len(pathlib.Path({runs!r}).read_text().splitlines()) < 3, "the third time"
"""

CALLS = """
import json
import pathlib
import urllib.request

from awsdoubles.clients import client
from awsdoubles.ec2.server import Ec2
from testing.apiproxy import ApiProxy
from testing.operator import OperatorProcess

def test_of_an_operator(tmp_path):
    kubeconfig = pathlib.Path({kubeconfig!r})
    (tmp_path / "audit.jsonl").symlink_to({audit!r})
    with Ec2() as ec2, ApiProxy(kubeconfig, "person") as proxy:
        body = json.dumps({{"metadata": {{"name": "a"}}}}).encode()
        where = proxy.url + "/api/v1/namespaces/{namespace}/configmaps"
        sent = {{"Content-Type": "application/json"}}
        urllib.request.urlopen(urllib.request.Request(where, body, sent)).close()
        asked = client("ec2", ec2.url)
        asked.describe_instances()
        asked.close()
        with OperatorProcess(kubeconfig, namespace={namespace!r}, leader_elect=False):
            pass
    assert False, "after all of that"
"""

LATE = """
import json
import pathlib
import time
import urllib.request

from testing.apiproxy import ApiProxy
from testing.operator import OperatorProcess

def test_status_comes_late():
    kubeconfig = pathlib.Path({kubeconfig!r})
    container = {{"name": "main", "image": "test:1"}}
    template = {{"spec": {{"nodeSelector": {{"none": "such"}}, "containers": [container]}}}}
    task = {{"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask", "metadata": {{"name": "a"}}}}
    body = json.dumps({{**task, "spec": {{"template": template}}}}).encode()
    with (
        ApiProxy(kubeconfig, "person") as proxy,
        OperatorProcess(kubeconfig, namespace={namespace!r}, leader_elect=False),
    ):
        where = proxy.url + "/apis/caretaker.dev/v1alpha1/namespaces/{namespace}/daemontasks"
        sent = {{"Content-Type": "application/json"}}
        began = time.monotonic()
        urllib.request.urlopen(urllib.request.Request(where, body, sent)).close()
        while True:
            with urllib.request.urlopen(where + "/a") as answer:
                if json.load(answer)["status"]["observedGeneration"] > 0:
                    break
    assert time.monotonic() - began < 1.5, "the operator is behind"
"""


def stressed(test: str, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "stress", test, "--load", "1", *more]
    env = {"PYTHONPATH": "operator:dev", "PATH": "/usr/bin:/bin"}
    found = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    return found.returncode, found.stdout + found.stderr


def test_it_ends_with_the_run_that_fails_and_shows_its_seed_and_logs(tmp_path: Path) -> None:
    test, runs = tmp_path / "test_flaky.py", tmp_path / "runs"
    test.write_text(TEST.format(runs=str(runs)))
    code, told = stressed(str(test), "--times", "2")
    assert (code, told.count("passed in")) == (0, 2), told
    code, told = stressed(str(test), "--times", "5")
    assert code == 1, told
    seeds = runs.read_text().split()
    assert len(set(seeds)) == 3
    assert "the third time" in told
    assert "what the operator wrote" in told
    assert f"MODEL_SEED={seeds[2]};" in told


def test_a_test_that_does_not_exist_is_told() -> None:
    code, told = stressed("tests/unit/test_settings.py::test_nothing")
    assert code == 2
    assert "not found" in told


def test_of_a_test_that_fails_it_shows_calls_and_logs_in_order_of_time(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    test = tmp_path / "test_failing.py"
    given = {"kubeconfig": str(cluster.kubeconfig), "audit": str(cluster.audit_log), "namespace": namespace}
    test.write_text(CALLS.format(**given))
    code, output = stressed(str(test), "--times", "1")
    assert code == 1, output
    timeline = output.partition("- timeline -")[2].splitlines()[1:]
    wanted = (
        f"proxy of person: create configmaps/{namespace}/a -> 201 ",
        f"create /api/v1/namespaces/{namespace}/configmaps -> 201 ",
        "Ec2: DescribeInstances -> 200 ",
        "log of operator: info ready",
    )
    found = [next((at for at, line in enumerate(timeline) if words in line), -1) for words in wanted]
    assert -1 not in found, (found, output)
    assert found == sorted(found), timeline


def test_operators_are_behind_where_that_is_asked_for(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    test = tmp_path / "test_late.py"
    test.write_text(LATE.format(kubeconfig=str(cluster.kubeconfig), namespace=namespace))
    code, output = stressed(str(test), "--times", "1", "--lag", "1.5")
    assert code == 1, output
    assert "the operator is behind" in output
