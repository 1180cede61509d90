"""docs/gitops.md and docs/argocd-health.lua: the page tells all states, and the script says what it tells."""

import re

import pytest

from testing.argocd import health
from unit.gitops.states import DELETED, PAGE, UNSEEN, every_state, told

SPECS = {"DaemonTask": "daemontask", "S3AggregatedRefresh": "s3aggregatedrefresh", "IMDSPolicy": "imdspolicy"}


def test_argo_cd_shows_of_every_state_what_the_page_says() -> None:
    allowed, wrong, seen = told(), [], set()
    for state in every_state():
        word, _ = health(state.object)
        if word not in {argo for _, argo in allowed.get((state.kind, state.row), ())}:
            wrong.append(f"{state.kind}, {state.title} ({state.row}): {word}")
        seen.add((state.kind, state.row, word))
    assert wrong == []
    listed = {(*row, argo) for row, words in allowed.items() for _, argo in words}
    assert listed - seen == set(), "in docs/gitops.md, and in no states.py of a kind"


@pytest.mark.parametrize("kind", SPECS)
def test_the_page_tells_every_reason_of_ready(kind: str) -> None:
    spec = (PAGE.parent / "spec" / f"{SPECS[kind]}.md").read_text()
    rows = [line.split("|")[1:3] for line in spec.splitlines() if line.startswith("| Ready=")]
    reasons = {word for _, said in rows for word in re.findall(r"`(\w+)`", said.partition("(")[0])}
    assert len(reasons) > 8
    rows_here = {row for of, row in told() if of == kind} - {UNSEEN, DELETED}
    assert reasons == rows_here, "a row of Ready in docs/spec, and one in docs/gitops.md"


def test_the_message_is_that_of_ready() -> None:
    for state in every_state():
        if state.row not in (UNSEEN, DELETED):
            said = {x["type"]: x.get("message", "") for x in state.object["status"]["conditions"]}
            assert health(state.object)[1] == said["Ready"], state.title


def test_an_object_without_a_status_is_progressing() -> None:
    assert health({"metadata": {"generation": 1}})[0] == "Progressing"
