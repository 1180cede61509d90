"""Programs of recipes that need no cluster: what they measure and tell, and when they fail."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from caretaker.api.daemontask import Budget, Spec
from caretaker.api.times import parse_time
from caretaker.daemontask.budgets import allowance
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


CLEANUP: Final = "nightly-cleanup"


def host(folder: Path) -> dict[str, Path]:
    """Folders of a host, with what must go (`old`, in any depth, of any name) and what must stay."""
    made = {}
    for place in ("tmp", "var-tmp", "coredump"):
        for name in ("old", "new", "deep/er/old", "-rf old", "old in\ntwo lines", "$(old) 'n' \"q\""):
            file = folder / "host" / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * 100_000)
            made[f"{place}/{name}"] = file
    outside = folder / "outside"
    outside.mkdir()
    made["outside"] = outside / "old"
    made["outside"].write_text("x")
    (folder / "host" / "tmp" / "link").symlink_to(outside)
    (folder / "host" / "tmp" / "link to old").symlink_to(made["outside"])
    for name, file in made.items():
        if not name.endswith("new"):
            os.utime(file, (time.time(), time.time() - 9 * 86400))
    return made


def test_what_is_old_goes_and_is_counted_and_all_else_stays(tmp_path: Path) -> None:
    files = host(tmp_path)
    here = {"/host/": f"{tmp_path}/host/"}
    code, told, printed = run(CLEANUP, tmp_path, replaced=here)
    assert code == 0, printed
    stay = {name for name, file in files.items() if file.exists()}
    assert stay == {"tmp/new", "var-tmp/new", "coredump/new", "outside"}
    assert (tmp_path / "host/tmp/link to old").is_symlink()
    found = json.loads(told)
    assert found.keys() == declared(CLEANUP).keys()
    assert found["removedFiles"] == 15
    assert 1.4 < found["freedMiB"] < 1.6
    assert 0 < found["freePercent"] < 100
    # Nothing is left to do, which is no fault.
    code, told, _ = run(CLEANUP, tmp_path, replaced=here)
    assert (code, json.loads(told)["removedFiles"], json.loads(told)["freedMiB"]) == (0, 0, 0)


def test_a_folder_that_is_not_there_fails_the_run(tmp_path: Path) -> None:
    code, told, printed = run(CLEANUP, tmp_path, replaced={"/host/": f"{tmp_path}/none/"})
    assert (code != 0, told) == (True, "")
    assert "No such file or directory" in printed


@pytest.mark.parametrize(
    ("name", "now", "nodes"),
    [
        pytest.param("rotate-certificate", "2026-11-24T06:59:00Z", None, id="early on Tuesday"),
        pytest.param("rotate-certificate", "2026-11-24T07:00:00Z", 0, id="Tuesday, 8 h in Berlin"),
        pytest.param("rotate-certificate", "2026-11-24T17:00:00Z", None, id="Tuesday, 18 h"),
        pytest.param("rotate-certificate", "2026-11-27T17:00:00Z", 1, id="Friday, 18 h"),
        pytest.param("rotate-certificate", "2026-11-30T06:59:00Z", 1, id="Monday, before office hours"),
        pytest.param("rotate-certificate", "2026-11-30T07:00:00Z", 0, id="Monday, 8 h"),
        pytest.param("nightly-cleanup", "2026-11-24T07:00:00Z", 0, id="no clean-up in office hours"),
        pytest.param("nightly-cleanup", "2026-11-24T01:30:00Z", None, id="the clean-up's time"),
    ],
)
def test_budgets_are_for_the_hours_that_the_manifest_tells(name: str, now: str, nodes: int | None) -> None:
    fields = document(name, "DaemonTask", name)["spec"]
    spec = Spec(
        template={},
        time_zone=fields["timeZone"],
        budgets=msgspec.convert(fields["budgets"], tuple[Budget, ...]),
    )
    assert allowance(spec, 100, parse_time(now)).nodes == nodes


def test_the_report_declares_what_the_probe_tells() -> None:
    told = classify(Observation()).as_json()
    wanted = declared("imds-reachability")
    assert wanted.keys() < told.keys()
    assert wanted == {"verdict": "Text", "latencyMs": "Number", "neededHops": "Number", "imdsv1": "Text"}
