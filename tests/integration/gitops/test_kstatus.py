"""kstatus says of every state what docs/gitops.md says, and agrees with what Argo CD shows."""

from testing.argocd import health
from testing.kstatus import words
from unit.gitops.states import every_state, told


def test_kstatus_says_of_every_state_what_the_page_says() -> None:
    states, allowed = list(every_state()), told()
    found = words(state.object for state in states)
    wrong, seen = [], set()
    for state, word in zip(states, found, strict=True):
        pair = (word, health(state.object)[0])
        if pair not in allowed.get((state.kind, state.row), ()):
            wrong.append(f"{state.kind}, {state.title} ({state.row}): {pair}")
        seen.add((state.kind, state.row, pair))
    assert wrong == []
    listed = {(*row, pair) for row, pairs in allowed.items() for pair in pairs}
    assert listed - seen == set(), "on the page, and in no table of states"
