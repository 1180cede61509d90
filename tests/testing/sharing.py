"""`--fork`: tests are collected once, then forks of this process run them, one for each processor.

With `count` processes each runs every `count`-th file, the same ones in each run. The first process prints
the output of the others at its end, and fails if one of them fails. Workers of pytest-xdist each collect for
themselves, and their reports on each test cost a third of the CPU; they share out single tests, though.
"""

import os
import tempfile
from collections.abc import Generator
from typing import IO, Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """A flag: how many there are depends on the machine."""
    parser.addoption("--fork", action="store_true", help="run the tests in a process for each processor")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """This process goes on with its share; so does each fork, to the end of its session."""
    asked = session.config.option
    if not asked.fork or asked.collectonly or session.testsfailed:
        return (yield)
    forks = _share(session)
    writer = session.config.get_terminal_writer()
    try:
        return (yield)
    finally:
        for pid, said in forks.items():
            _, status = os.waitpid(pid, 0)
            session.testsfailed += status != 0
            with said:
                said.seek(0)
                writer.write(f"\n\n{said.read()}\n", flush=True)


def _share(session: pytest.Session) -> dict[int, IO[str]]:
    """Keep this process's share of the tests. Returns the forks with their output; none in a fork."""
    writer: Any = session.config.get_terminal_writer()
    files = list(dict.fromkeys(item.path for item in session.items))
    count = max(1, min(os.cpu_count() or 1, len(files)))
    forks: dict[int, IO[str]] = {}
    share = 0
    writer.flush()
    for number in range(1, count):
        said = tempfile.TemporaryFile("w+", buffering=1)  # noqa: SIM115
        pid = os.fork()
        if pid == 0:
            share, forks, writer._file = number, {}, said
            break
        forks[pid] = said
    mine = set(files[share::count])
    session.items[:] = [item for item in session.items if item.path in mine]
    session.testscollected = len(session.items)
    return forks
