"""Processes and interruptions: neither is lost by the other."""

import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.cluster import Cluster
from testbed.processes import Processes, signals_later


def test_an_interruption_between_start_and_record_comes_after_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = psutil.Process

    def interrupted(pid: int) -> psutil.Process:
        signal.raise_signal(signal.SIGINT)
        return real(pid)

    kept = Processes(tmp_path, end_with_parent=False)
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "Process", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.start("sleeper", [sys.executable, "-c", "import threading; threading.Event().wait()"])
    (process,) = kept.running().values()
    kept.stop(hard=True)
    assert not process.is_running()


class Garbage:
    """Runs Python as it goes, as a response of urllib does; Python swallows what is raised there."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interruption_that_comes_as_garbage_goes_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), signals_later():
        Garbage()


def test_an_interruption_in_a_poll_of_the_api_server_is_not_lost(tmp_path: Path) -> None:
    def answers() -> bool:
        Garbage()
        return True

    with pytest.raises(KeyboardInterrupt):
        Cluster(tmp_path)._await(answers, "an answer")
