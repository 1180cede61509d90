"""Programs of recipes that need no cluster: what they measure and tell, and when they fail."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from caretaker_probe.classify import Observation, classify
from testing.recipes import document, run

BASELINE: Final = "network-baseline"


@pytest.fixture
def listener() -> Iterator[int]:
    """The port of somebody who takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def declared(name: str) -> dict[str, str]:
    """name -> type of what a recipe's task declares to tell."""
    results = document(name, "DaemonTask", name)["spec"]["results"]
    return {result["name"]: result.get("type", "Number") for result in results}


def test_the_baseline_tells_all_that_it_declares(listener: int, tmp_path: Path) -> None:
    env = {"TARGET_HOST": "localhost", "TARGET_PORT": str(listener), "ROUNDS": "5"}
    code, told, printed = run(BASELINE, tmp_path, env)
    assert code == 0, printed
    found = json.loads(told)
    assert found.keys() == declared(BASELINE).keys()
    assert found["failedPercent"] == 0
    assert 0 < found["lookupMs"] <= found["slowestMs"] < 5_000
    assert 0 < found["connectMs"] <= found["slowestMs"]
    assert found["segmentBytes"] > 1_000


def test_a_target_that_cannot_be_reached_fails_the_run_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"TARGET_HOST": "127.0.0.1", "TARGET_PORT": str(port), "ROUNDS": "2"}
    code, told, _ = run(BASELINE, tmp_path, env)
    assert code == 1
    assert told.startswith(f"127.0.0.1:{port} was not reached in 2 rounds: [Errno 111]")


def test_rounds_that_fail_are_counted(listener: int, tmp_path: Path) -> None:
    """The second of two is refused by a name that is not there."""
    env = {"TARGET_HOST": "localhost", "TARGET_PORT": str(listener), "ROUNDS": "2"}
    flaky = {"for _ in range(rounds):": "for host in ('localhost', 'no-such-host.invalid'):"}
    code, told, printed = run(BASELINE, tmp_path, env, flaky)
    assert code == 0, printed
    assert json.loads(told)["failedPercent"] == 50


def test_the_report_declares_what_the_probe_tells() -> None:
    told = classify(Observation()).as_json()
    wanted = declared("imds-reachability")
    assert wanted.keys() < told.keys()
    assert wanted == {"verdict": "Text", "latencyMs": "Number", "neededHops": "Number", "imdsv1": "Text"}
