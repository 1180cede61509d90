"""docs/cli.md leaves nothing out: every command, flag, exit code and field of JSON stands on it."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from caretaker.cli import main
from caretaker.cli.daemontask import plan, status
from caretaker.cli.s3refresh import plan as refresh_plan
from caretaker.cli.s3refresh import status as refresh_status
from caretaker.daemontask.forecast import NodeState, forecast
from caretaker.s3refresh.forecast import Why
from unit.cli.s3refresh import build
from unit.cli.test_views import proposal
from unit.daemontask.build import node, snapshot, task

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
COMMANDS = ("run", "plan", "status", "refresh", "rerun", "resume", "logs")
EVERYWHERE = {"-h", "--help", "--kubeconfig", "--context", "-n", "--namespace", "--log-format", "--log-level"}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_stands_in_its_section(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    options = capsys.readouterr().out.partition("options:")[2].partition("example:")[0]
    flags = set(
        re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(re.findall(r"^  -.*$", options, re.MULTILINE)))
    )
    assert EVERYWHERE - {"-n"} <= flags | {"-n"}
    told = set(re.findall(r"--?[a-z][a-z-]*", section(command)))
    own = {"--output" if flag == "-o" else flag for flag in flags - EVERYWHERE}
    assert own - told - {"--output"} == set()
    assert ("-o json" in section(command)) == ("--output" in own)


def test_shared_flags_stand_in_theirs() -> None:
    told = set(re.findall(r"--?[a-z][a-z-]*", section("What all commands share")))
    assert EVERYWHERE - {"-h", "--help"} - told == set()


def test_the_json_of_plan_and_status_is_told() -> None:
    made = forecast(snapshot(task(), [node()]))
    planned = plan.as_json(proposal(made, exists=True), made)
    words = {*planned, *planned["nodes"][0], "tasks"}
    assert {word for word in words if not re.search(rf"\b{word}\b", section("plan"))} == set()
    told = status.as_json(made)
    words = {*told, *msgspec.to_builtins(made.state_of("a"))}
    assert {word for word in words if not re.search(rf"\b{word}\b", section("status"))} == set()
    assert len(msgspec.structs.fields(NodeState)) == 11


def test_the_json_of_a_refresh_is_told() -> None:
    planned = refresh_plan.as_json(
        build.prospect(build.share("s"), targets=build.EVERY, samples=(("bucket", "a/b"),)), []
    )
    seen = msgspec.to_builtins(refresh_status.as_json(build.look(build.EVERY)))
    assert untold(seen, section("status")) <= RECORD
    # dirty and next are as of status.
    assert untold(planned, section("plan") + section("status")) <= RECORD
    assert all(re.search(rf"`{why}`", section("status")) for why in get_args(Why))


# What is told on the resource's own page.
RECORD = {
    *("since", "startedAt", "owner", "notificationID", "acceptedAt", "requestedAt", "completedAt", "fullAt"),
    *(
        "durationSeconds",
        "result",
        "count",
        "code",
        "nextAttemptAt",
        "dlqVisible",
        "dlqCovered",
        "dlqARN",
        "checkedAt",
        "visible",
    ),
    *("all", "trees"),
}


def untold(told: object, text: str) -> set[str]:
    """Keys, however deep, that do not stand in the text."""
    if isinstance(told, list):
        return {key for item in told for key in untold(item, text)}
    if not isinstance(told, dict):
        return set()
    own = {key for key in told if not re.search(rf"\b{key}\b", text)}
    return own.union(*(untold(item, text) for item in told.values()))
