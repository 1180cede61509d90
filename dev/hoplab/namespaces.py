"""Network namespaces without names: each lives as long as its keeper, a process that waits for our end.

Nothing is written to /run/netns and no link is made outside, so there is nothing to clean up by name:
when the keeper ends, and with it the last socket, the kernel removes the namespace, its links and
routes. The keeper reads a pipe of ours and ends with it, even if we are killed.
"""

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hoplab.needs import HopLabError

CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
END_SECONDS: Final = 5.0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)  # os.setns comes with Python 3.12


class Namespace:
    """One network namespace with its loopback up. `close` ends it."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A session of its own, so that Ctrl-C reaches only us and the end has its order.
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != b"ready\n":
            said = self._keeper.communicate()[1].decode(errors="replace").strip()
            raise HopLabError(f"the network namespace {name} cannot be made: {said}")

    @property
    def pid(self) -> int:
        """The keeper's process id: what `ip link set ... netns` takes."""
        return self._keeper.pid

    @property
    def path(self) -> Path:
        """The kernel's handle of the namespace."""
        return Path(f"/proc/{self.pid}/ns/net")

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in here."""
        return ["nsenter", f"--net={self.path}", "--", *command]

    def links(self, lines: Sequence[str]) -> None:
        """Run lines of `ip -batch` in here."""
        self._must(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))

    def settings(self, values: Mapping[str, int]) -> None:
        """Set what stands under /proc/sys/net, which every namespace has its own of."""
        script = "; ".join(f"echo {value} > /proc/sys/net/{name}" for name, value in values.items())
        self._must(["sh", "-ec", script], "")

    def new_socket(self, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
        """A TCP socket of this namespace, which it stays in, wherever it is used."""
        made: list[socket.socket | OSError] = []

        # A namespace is a thread's: this one takes it along when it ends.
        def make() -> None:
            try:
                made.append(_socket_in(self.path, family))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=make, name=f"netns-{self.name}")
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def close(self) -> None:
        """End the keeper. What else runs in here has to be ended before."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        for pipe in (self._keeper.stdout, self._keeper.stderr):
            assert pipe is not None
            pipe.close()

    def _must(self, command: Sequence[str], given: str) -> None:
        done = subprocess.run(
            self.enter(command), input=given, capture_output=True, text=True, check=False, timeout=30
        )
        if done.returncode:
            raise HopLabError(
                f"{' '.join(command)} failed in the namespace {self.name}: {done.stderr.strip()}"
            )


def _socket_in(path: Path, family: socket.AddressFamily) -> socket.socket:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(handle, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return socket.socket(family, socket.SOCK_STREAM)
    finally:
        os.close(handle)
