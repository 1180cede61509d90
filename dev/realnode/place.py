"""The namespaces of a container engine of our own, and its wire to the machine: a pair of links, one
end outside.

Inputs: a number, from which names and addresses follow, and a folder for the keeper's record and log.
Whatever runs in here ends with `close`, or with the process that made it, however that one ends. Outside it
makes one link and one cgroup, which are gone afterwards; it must not touch anything else there.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import psutil

from awsdoubles.launch import GUARD
from realnode import cgroups
from realnode.errors import NodeError
from realnode.needs import program
from testbed.processes import Processes

# Nodes that may run on one machine at once.
MOST: Final = 8
START_SECONDS: Final = 60.0
KEEPER: Final = "keeper"
INSIDE: Final = "outside0"  # the wire's end in there
_INIT: Final = Path(__file__).with_name("init.py")


class Place:
    """Private mount, network and PID namespaces. `number` must be claimed before (see `claim`)."""

    def __init__(self, number: int, folder: Path) -> None:
        self.cgroup = f"caretaker-node-{number}"
        self.link = f"ctnode{number}"
        # Of the block for tests between networks (RFC 2544), which is in nobody's routes.
        self.outside, self.address = (f"198.19.{53 + number}.{host}" for host in (1, 2))
        self._processes = Processes(folder, end_with_parent=False)
        self._pid = 0

    @property
    def pid(self) -> int:
        """The keeper's process id, as this process sees it: what `ip link set ... netns` takes."""
        return self._pid

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in here."""
        inside = ["--target", str(self._pid), "--mount", "--net", "--pid"]
        return [program("nsenter"), *inside, "--", *command]

    def run(self, command: list[str], given: str = "") -> str:
        """Run a command in here to its end; its output. NodeError when it fails."""
        done = subprocess.run(
            self.enter(command), input=given, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise NodeError(f"{' '.join(command)} failed in the engine's namespaces: {done.stderr.strip()}")
        return done.stdout

    def open(self) -> None:
        """Make the namespaces, their file systems and their wire."""
        cgroups.remove(self.cgroup)
        cgroups.make(self.cgroup)
        self._start_keeper()
        # The kubelet, containerd and the CNI plugins keep state in places that are not ours.
        mounts = [f"mount -t tmpfs tmpfs {folder}" for folder in ("/run", "/var/lib", "/var/log")]
        folders = "mkdir -p /run/lock /var/lib/cni /var/lib/kubelet"
        self.run(["sh", "-ec", "; ".join([*mounts, folders])])
        self._wire()

    def close(self) -> None:
        """End all that runs in here, and remove what was made outside."""
        self._processes.stop([KEEPER], hard=True)
        self._await_end()
        cgroups.remove(self.cgroup)

    def _start_keeper(self) -> None:
        unshare = [
            program("unshare"),
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child=KILL",
        ]
        # The guard ends it when we are killed.
        command = [sys.executable, str(GUARD), str(os.getpid()), *unshare, sys.executable, "-I", str(_INIT)]
        self._processes.log(KEEPER).unlink(missing_ok=True)
        guard = self._processes.start(KEEPER, command)
        deadline = time.monotonic() + START_SECONDS
        while "ready" not in self._processes.log_tail(KEEPER):
            if KEEPER in self._processes.dead() or time.monotonic() > deadline:
                raise NodeError(f"the engine's namespaces cannot be made: {self._processes.log_tail(KEEPER)}")
            time.sleep(0.01)
        ours = os.readlink("/proc/self/ns/pid")
        for process in psutil.Process(guard).children(recursive=True):
            if os.readlink(f"/proc/{process.pid}/ns/pid") != ours:
                self._pid = process.pid
                return
        raise NodeError("the engine's namespaces were made, and their first process is not to be found")

    def _await_end(self) -> None:
        """Until the kernel has killed the rest: the keeper goes last, and its link with its namespace."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            alive = self._pid and psutil.pid_exists(self._pid)
            if not alive and not Path(f"/sys/class/net/{self.link}").exists():
                break
            time.sleep(0.02)
        self._pid = 0

    def _wire(self) -> None:
        ip = program("ip")
        made = subprocess.run(
            [ip, "-batch", "-"],
            input=f"link add {self.link} type veth peer name {INSIDE} netns {self._pid}\n"
            f"address add {self.outside}/30 dev {self.link}\nlink set {self.link} up\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise NodeError(f"the engine's wire cannot be made: {made.stderr.strip()}")
        lines = [
            "link set lo up",
            f"address add {self.address}/30 dev {INSIDE}",
            f"link set {INSIDE} up",
        ]
        self.run([ip, "-batch", "-"], "".join(f"{line}\n" for line in lines))
        settings = {"net/ipv4/ip_forward": 1, "net/bridge/bridge-nf-call-iptables": 1}
        script = "; ".join(
            f"test ! -e /proc/sys/{name} || echo {value} > /proc/sys/{name}"
            for name, value in settings.items()
        )
        self.run(["sh", "-ec", script])


def claim(folder: Path) -> tuple[int, IO[str]]:
    """A number that no other engine on this machine has, and the lock that holds it until it is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(MOST):
        lock = (folder / f"node-{number}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return number, lock
    raise NodeError(f"{MOST} engines run on this machine already")
