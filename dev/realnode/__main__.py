"""Command line of the real node: `python -m realnode check | prepare-kind | images | run`.

`run` stays in the foreground with a node that has our images, and leaves nothing behind when it is
interrupted.
"""

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

from realnode import images, kind, needs
from realnode.errors import NodeError
from realnode.node import Node
from testbed import ending
from testbed.cluster import ClusterError
from testbed.compiling import BuildError
from testbed.paths import STATE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when what it promises holds, 1 with lines on stderr when not."""
    parser = argparse.ArgumentParser(prog="realnode", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "check", help="tell whether a real node can run here, installing packages if root may"
    )
    commands.add_parser("prepare-kind", help="make what kind needs here unless the cache has it")
    commands.add_parser("images", help="build the images of the Dockerfile unless the cache has them")
    commands.add_parser("run", help="start a node with them, until Ctrl-C")
    options = parser.parse_args(arguments)
    return ending.run(lambda: _carry_out(options.command), BuildError, ClusterError, TimeoutError)


def _carry_out(command: str) -> int:
    if command == "prepare-kind":
        kind.prepare()
        return 0
    if _check():
        return 1
    if command == "check":
        return 0
    archives = images.archives()
    if command == "run":
        _run(archives)
    return 0


def _check() -> int:
    try:
        needs.check()
    except NodeError as error:
        frame = "!" * 78
        lines = [frame, "NOT TESTED ON A REAL NODE: this machine cannot run one. Missing:"]
        lines += [f"  {line}" for line in str(error).splitlines()]
        lines += ["In CI this is a failure." if os.environ.get("CI") else "", frame]
        print("\n".join(line for line in lines if line), file=sys.stderr)
        return 1
    return 0


def _run(archives: list[Path]) -> None:
    STATE.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="node.", dir=STATE) as folder,
        Node(Path(folder), archives) as node,
    ):
        for step, seconds in node.times.items():
            print(f"{seconds:5.1f} s  {step}")
        print(f"look around: KUBECONFIG={node.kubeconfig} kubectl get pods -A; Ctrl-C ends it", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
