"""The container engine that kind uses: the one that answers, else Docker's in namespaces of our own.

Inputs: the PATH; for our own, root on Linux and what `needs` tells. Our own has no way to the network, is
reached from this machine at an address that nobody else has, and ends with the process that started it,
however that one ends: its containers, mounts and networks go with its namespaces. It must not touch an engine
that is there.
"""

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import psutil

from awsdoubles.cached import ensure
from realnode import needs, nodeimage
from realnode.errors import NodeError
from realnode.place import Place, claim
from testbed.paths import cache
from testbed.processes import Processes

ENGINES: Final = ("docker", "podman", "nerdctl")
ENGINE_SECONDS: Final = 15.0
# A command of an engine that hangs would hold up whoever calls it for ever; loading images takes a minute.
RUN_SECONDS: Final = 600.0
START_SECONDS: Final = 180.0
NETWORK: Final = "kind"
DOCKERD: Final = "dockerd"
# Parts of its data: the records of images, and their layers.
LOADED: Final = ("image", "overlay2")
# Debian with Docker becomes the namespaces' root, which can be written to until they end. A mere chroot would
# not do: who enters a container's mount namespace later finds its root there, and not the container's.
ROOT: Final = """
PATH=$PATH:/usr/sbin:/sbin
mkdir -p /run/engine/root /run/engine/upper /run/engine/work
cd /run/engine
mount -t overlay overlay -o "lowerdir=$1,upperdir=upper,workdir=work" root
shift
cd root
mount --rbind /proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
# Where version 1 has the controllers, an empty version 2 beside it only misleads a node's systemd.
if mountpoint -q sys/fs/cgroup/unified; then umount sys/fs/cgroup/unified; fi
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
for folder; do mkdir -p ".$folder"; mount --bind "$folder" ".$folder"; done
mkdir -p machine
pivot_root . machine
umount --lazy /machine
"""
# Docker asks runc for every capability that there is, and runc is refused those that root itself lacks.
_RUNC: Final = """#!/bin/sh
bundle=. process= verb= before=
for word; do
  case "$before" in --bundle | -b) bundle=$word ;; --process | -p) process=$word ;; esac
  case "$word" in
    create | run | exec) test -n "$verb" || verb=$word ;;
    --bundle=*) bundle=${{word#*=}} ;;
    --process=*) process=${{word#*=}} ;;
  esac
  before=$word
done
case "$verb" in create | run) file=$bundle/config.json ;; exec) file=$process ;; *) file= ;; esac
if test -n "$file" && test -e "$file"; then
  sed -i '{edit}' "$file"
fi
exec {runc} "$@"
"""


class Engine:
    """One that answers. `name`: of its program, by which kind knows it, too."""

    def __init__(self, name: str) -> None:
        self.name = name

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` where the engine is."""
        return list(command)

    def run(self, *words: str, seconds: float = RUN_SECONDS) -> str:
        """Run a command of the engine; its output. NodeError with the end of it when it fails, or when it has
        not ended after so many seconds."""
        command = self.enter([self.name, *words])
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise NodeError(
                f"{self.name} {words[0]} has not ended after {seconds:g} s: does `{self.name} ps` answer?"
            ) from None
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-15:])
            raise NodeError(f"{self.name} {words[0]} failed:\n{said}")
        return done.stdout

    def pid(self, container: str) -> int:
        """The first process of a container, as this process sees it."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", container))

    def outside(self) -> str:
        """This machine's own address, as containers reach it."""
        told = self.run("network", "inspect", NETWORK)
        found = re.search(r'"gateway":\s*"(\d+\.\d+\.\d+\.\d+)"', told, re.IGNORECASE)
        if found is None:
            raise NodeError(f"{self.name}'s network {NETWORK} has no IPv4 gateway:\n{told}")
        return found[1]


class OwnEngine(Engine):
    """Docker's, started by us. `folder`: what its clients read and write; seen in there under this path."""

    def __init__(self, folder: Path) -> None:
        super().__init__("docker")
        self._folder = folder
        self._place: Place | None = None
        self._claimed: IO[str] | None = None
        self._state = Path()
        self._processes = Processes(folder / "engine", end_with_parent=False)

    @property
    def place(self) -> Place:
        """Its namespaces; NodeError before the start."""
        if self._place is None:
            raise NodeError("the engine was not started")
        return self._place

    def start(self) -> None:
        """Return when it answers and has the nodes' image. What a failed start has begun, stop() ends."""
        of = f"{nodeimage.debian()}\0{nodeimage.node()}"
        self._begin(ensure("node-loaded", of, self._load, what="the nodes' image as the engine keeps it"))

    def _load(self, folder: Path) -> None:
        """Load the nodes' image, and link the engine's files of it into the folder."""
        try:
            self._begin()
            self.run("load", "--quiet", "--input", str(nodeimage.node()))
            for part in LOADED:
                link(self._state / "docker" / part, folder)
        finally:
            self.stop()

    def _begin(self, loaded: Path | None = None) -> None:
        """Return when it answers. `loaded`: images that it has from the start."""
        number, self._claimed = claim(cache().with_name("node-places"))
        self._state = cache().with_name("node-engines") / str(number)
        shutil.rmtree(self._state, ignore_errors=True)  # of a run that was killed
        (self._state / "docker").mkdir(parents=True)
        if loaded is not None:
            for part in LOADED:
                link(loaded / part, self._state / "docker")
        (self._folder / "engine").mkdir(parents=True, exist_ok=True)
        self._place = place = Place(number, self._folder / "engine")
        place.open()
        seen = [str(cache().parent), str(self._folder)]
        place.run(["sh", "-euc", ROOT, "root", str(nodeimage.debian()), *seen])
        runc = self._state / "runc"
        runc.write_text(runc_for(needs.lacking()))
        runc.chmod(0o755)
        command = [
            DOCKERD,
            f"--data-root={self._state / 'docker'}",
            f"--cgroup-parent=/{place.cgroup}",
            "--oom-score-adjust=0",
            f"--add-runtime=ours={runc}",
            "--default-runtime=ours",
            "--log-level=warn",
        ]
        self._processes.start(DOCKERD, self.enter(command))
        self._await_answer()

    def stop(self) -> None:
        """End it and all that it runs, and drop its state. Harmless when there is nothing."""
        if self._place is not None:
            self._place.close()
            self._place = None
            self._processes.stop([DOCKERD])
        if self._claimed is not None:
            shutil.rmtree(self._state, ignore_errors=True)
            self._claimed.close()
            self._claimed = None

    def enter(self, command: Sequence[str]) -> list[str]:
        """See Engine."""
        variables = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        return self.place.enter(["env", "-i", *variables, *command])

    def pid(self, container: str) -> int:
        """See Engine: Docker tells the id that it sees itself."""
        told = str(super().pid(container))
        for process in psutil.Process(self.place.pid).children(recursive=True):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = re.search(r"^NSpid:(.*)$", status, re.MULTILINE)
                if found and found[1].split()[1:] == [told, "1"]:
                    return process.pid
        raise NodeError(f"{container}: its first process, {told} to {self.name}, is not to be found")

    def outside(self) -> str:
        """See Engine."""
        return self.place.outside

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.run("ps", "--quiet", seconds=ENGINE_SECONDS)
            except NodeError as error:
                if DOCKERD in self._processes.dead() or time.monotonic() > deadline:
                    tail = self._processes.log_tail(DOCKERD)
                    raise NodeError(f"our own container engine does not start:\n{tail}") from error
                time.sleep(0.1)
            else:
                return


def link(folder: Path, target: Path) -> None:
    """Link the files of a folder into another one. Docker replaces such files and writes into none."""
    done = subprocess.run(
        ["cp", "--archive", "--link", str(folder), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NodeError(f"{folder} cannot be linked into {target}: {done.stderr.strip()[-500:]}")


def runc_for(lacking: Sequence[str], runc: str = "/usr/sbin/runc") -> str:
    """A script that calls runc, and has it ask for none of these capabilities."""
    edits = [f's/"{name}",//g; s/,"{name}"//g; s/"{name}"//g' for name in lacking]
    return _RUNC.format(edit="; ".join(edits), runc=runc)


def check(what: str, instead: str = "") -> Engine | None:
    """The engine that answers; None where one of our own can be started, for which packages are installed.

    NodeError where neither is, in a line that says what to do. what: what needs one. instead: what else to
    do, if anything.
    """
    said = []
    for name in ENGINES:
        complaint = _complaint(name)
        if not complaint:
            return Engine(name)
        said.append(complaint)
    try:
        needs.check()
    except NodeError as error:
        lacking = "; ".join(str(error).splitlines())
        ways = f"start one, become root, or {instead}" if instead else "start one, or become root"
        raise NodeError(
            f"{what} needs a container engine that answers ({'; '.join(said)}) or root on Linux, which starts"
            f" one of its own ({lacking}): {ways}"
        ) from None
    return None


def _complaint(name: str) -> str:
    """Why it does not answer; nothing when it does."""
    program = shutil.which(name)
    if program is None:
        return f"{name} is not installed"
    try:
        asked = subprocess.run(
            [program, "ps", "--quiet"], capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name} does not answer within {ENGINE_SECONDS:.0f} s"
    if asked.returncode:
        return f"{name}: {asked.stderr.strip() or f'exit code {asked.returncode}'}"
    return ""
