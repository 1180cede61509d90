"""The benches start from a checkout alone, and fail when a target is missed."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_bench_that_does_not_exist_is_named_beside_those_that_do_and_have_a_section_each() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "no bench named nothing; there are: " in said.stderr
    there = said.stderr.partition("there are: ")[2].strip().split(", ")
    assert {"daemontask-5000", "daemontask-schedule", "daemontask-many"} <= set(there)
    page = (CHECKOUT / "docs" / "benchmarks.md").read_text()
    untold = [name for name in there if f"<!-- begin {name} -->" not in page or f"\n## {name}:" not in page]
    assert untold == []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The program; its figures go into a folder of the test's own."""
    monkeypatch.syspath_prepend(str(CHECKOUT))
    program = importlib.import_module("bench.__main__")
    monkeypatch.setattr(program.figures, "OUT", tmp_path)
    return program


async def test_all_ways_of_calling_aws_can_read_the_answers_of_the_bench(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws = bench.aws
    for name, value in {"CALLS": 8, "CALLERS": 4, "ROUNDS": 1}.items():
        monkeypatch.setattr(aws, name, value)
    figures = {one.figure: one.value for one in await aws.run()}
    assert figures["connections opened for 8 SQS and 8 EC2 calls, ours"] <= 4


@pytest.mark.parametrize(("value", "code"), [(250.0, 0), (251.0, 1)])
def test_a_missed_target_is_printed_and_fails_after_all_benches(
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    code: int,
) -> None:
    ran = []

    async def one() -> list[Any]:
        ran.append("one")
        figures = bench.figures
        return [figures.Figure("lag", value, "ms", "<= 250"), figures.Figure("pods", 3, "")]

    monkeypatch.setattr(bench, "BENCHES", {"first": one, "second": one})
    assert bench.main([]) == code
    assert ran == ["one", "one"]
    printed = capsys.readouterr().err
    assert ("first: lag: 251 ms, target <= 250\n  second: lag: 251 ms" in printed) == bool(code)


def test_the_messages_of_an_attack_have_all_that_sqs_carries(bench: Any) -> None:
    attacks = importlib.import_module("bench.attacks")
    most = 4096
    bodies = attacks.bodies(most)
    assert all(len(body.encode()) <= most for body in bodies)
    assert {"\n", "\u2028", "😀", "a"} <= {body[0] for body in bodies}
    assert not any("\x00" in body or "\ud800" in body for body in bodies)


SLOW = """
import asyncio
import bench.__main__ as program

async def slow():
    try:
        print("measuring", flush=True)
        while True:  # Python sees a signal that comes right before a wait only after the wait
            await asyncio.sleep(0.1)
    finally:
        print("undone", flush=True)

program.BENCHES = {"slow": slow}
raise SystemExit(program.run(["slow"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_bench_that_is_interrupted_undoes_what_it_began(number: signal.Signals) -> None:
    """Also in the background, where a shell has it ignore SIGINT."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", SLOW]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert any("measuring" in line for line in running.stdout)
            running.send_signal(number)
            said, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    assert "undone" in said
    assert "nothing is left running" in errors
    assert running.returncode == 130
