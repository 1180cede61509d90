"""Answers, as JSON on stdout, of what only the packages of this environment know. Run by iamtools.ask()."""

import json
import sys
from pathlib import Path
from typing import Any


def actions(names: list[str]) -> dict[str, Any]:
    """Action -> the ARN formats that it can be narrowed to ("*" = none), and its condition keys; null for an
    action that there is not."""
    from policy_sentry.querying.actions import get_action_data  # noqa: PLC0415 - takes a second

    found: dict[str, Any] = {}
    for name in names:
        service, _, action = name.partition(":")
        rows = (get_action_data(service, action) or {}).get(service, [])
        found[name] = (
            {
                "resources": sorted({row["resource_arn_format"] for row in rows}),
                "conditions": sorted({key for row in rows for key in row["condition_keys"]}),
            }
            if rows
            else None
        )
    return found


def terraform(files: list[str]) -> dict[str, Any]:
    """File -> its blocks."""
    import hcl2  # noqa: PLC0415 - takes a second

    found = {}
    for name in files:
        with Path(name).open(encoding="utf-8") as file:
            found[name] = hcl2.load(file)
    return found


def cloudformation(files: list[str]) -> dict[str, list[str]]:
    """File -> what cfn-lint objects to, warnings as well, as its command does."""
    from cfnlint.api import ManualArgs, lint_file  # noqa: PLC0415 - takes a second

    return {name: [str(match) for match in lint_file(Path(name), ManualArgs())] for name in files}


QUESTIONS = {"actions": actions, "terraform": terraform, "cloudformation": cloudformation}
print(json.dumps(QUESTIONS[sys.argv[1]](sys.argv[2:])))
