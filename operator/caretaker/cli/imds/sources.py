"""A table of the sources of future nodes, and the commands that fix them. Pure."""

from collections.abc import Iterator, Sequence

from caretaker.api.imds import GroupStatus, SourceStatus
from caretaker.cli.text import one_line, table


def sources(groups: Sequence[GroupStatus]) -> list[str]:
    """A row for each group whose source is known, then the problems, with commands where there are any."""
    known = [(f"{one.kind}/{one.name}", one.source) for one in groups if one.source is not None]
    if not known:
        return []
    rows = [("GROUP", "SOURCE OF FUTURE NODES", "STATE")]
    rows += [(name, _name(source), source.state) for name, source in known]
    return ["", *table(rows), *(line for one in _by_fix(known) for line in _describe(*one))]


def _name(source: SourceStatus) -> str:
    parts = [f"EC2NodeClass/{source.node_class}" if source.node_class else ""]
    parts += [f"{source.launch_template} {source.version}".strip() if source.launch_template else ""]
    return next(filter(None, parts), source.auto_scaling_group or "-")


def _by_fix(known: Sequence[tuple[str, SourceStatus]]) -> Iterator[tuple[list[str], SourceStatus]]:
    """Merges groups with the same problem and fix."""
    found: dict[tuple[str, str], tuple[list[str], SourceStatus]] = {}
    for name, source in known:
        if source.state != "Compliant":
            found.setdefault((source.message, source.mend), ([], source))[0].append(name)
    yield from found.values()


def _describe(names: Sequence[str], source: SourceStatus) -> list[str]:
    """The command is alone on its line and complete, so that it can be copied."""
    lines = ["", f"{', '.join(names)}: {one_line(source.message)}"]
    return [*lines, f"  {source.mend}"] if source.mend else lines
