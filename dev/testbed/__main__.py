"""Command line of the testbed: `python -m testbed build | up --nodes N | down`.

What `up` starts lives on after it; `down` ends it. Both are safe to call twice.
"""

import argparse
import sys
import time
from pathlib import Path

import yaml

from testbed import build, ending
from testbed.cluster import Cluster, ClusterError
from testbed.compiling import BuildError
from testbed.paths import STATE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when what it promises holds, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the control plane program unless the cache has it")
    up = commands.add_parser("up", help="start a control plane with fake nodes in the background")
    up.add_argument("--nodes", type=int, default=20)
    up.add_argument("--scheduler-qps", type=int, default=50)
    up.add_argument("--controller-qps", type=int, default=20)
    commands.add_parser("down", help="stop it")
    parser.add_argument(
        "--folder", type=Path, default=STATE, help="where kubeconfig, state and logs are kept"
    )
    options = parser.parse_args(arguments)
    return ending.run(lambda: _run(options), BuildError, ClusterError, TimeoutError)


def _run(options: argparse.Namespace) -> None:
    if options.command == "build":
        build.ensure()
    elif options.command == "up":
        _up(options.folder.resolve(), options.nodes, options.scheduler_qps, options.controller_qps)
    else:
        _down(options.folder.resolve())


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _up(folder: Path, nodes: int, scheduler_qps: int, controller_qps: int) -> None:
    cluster = Cluster(
        folder / "cluster",
        nodes=nodes,
        scheduler_qps=scheduler_qps,
        controller_qps=controller_qps,
        detached=True,
    )
    link = folder / "kubeconfig"
    if cluster.running():
        url = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        print(f"a cluster is running already, and stays as it is: {url}, kubeconfig {_shown(link)}")
        print("make cluster-down stops it; then another NODES counts")
        return
    build.ensure()
    print(f"starting a control plane with {nodes} fake nodes", flush=True)
    started = time.monotonic()
    cluster.start()
    link.unlink(missing_ok=True)
    link.symlink_to(cluster.kubeconfig.relative_to(folder))
    print(f"ready in {time.monotonic() - started:.0f} s: {cluster.url}, {nodes} nodes")
    print(f"look around: KUBECONFIG={_shown(link)} kubectl get nodes; stop it: make cluster-down")
    print("the operator on it: CONTRIBUTING.md, Start")


def _down(folder: Path) -> None:
    cluster = Cluster(folder / "cluster", detached=True)
    found = cluster.alive()
    cluster.stop()
    (folder / "kubeconfig").unlink(missing_ok=True)
    print("the cluster is stopped" if found else f"no cluster was running in {_shown(folder)}")


if __name__ == "__main__":
    sys.exit(main())
