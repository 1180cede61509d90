"""`make demo`: the kinds at work on a real control plane with 20 fake nodes, in a minute and a half.

    python -m testbed.demo         show it, then leave nothing running
    KEEP=1 ...                     leave it up, and print how to look around
    CLUSTER=kind ...               in a kind cluster; as root on Linux no container engine is needed
    python -m testbed.demo down    stop what KEEP=1 left

Exit code: 0 every step showed what it promises, 1 not, 130 interrupted. What it starts lives in
`.dev/demo`, on free loopback ports; `make cluster` is another cluster and is not touched.
"""

import argparse
import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import yaml

from awsdoubles.cached import DoubleError
from awsdoubles.stack import Stack
from testbed import steer
from testbed.admin import Admin, ApiError, Json, path
from testbed.cluster import ClusterError
from testbed.compiling import BuildError
from testbed.demo_imds import hop_limits
from testbed.demo_operator import NAMESPACE, Operator, OperatorError
from testbed.demo_place import Embedded, Kind, Place, PlaceError
from testbed.demo_refresh import uploads
from testbed.demo_screen import Screen
from testbed.demo_steps import STEPS, Result, Stage, Step, StepError
from testbed.nodes import is_ready, node
from testbed.paths import CHECKOUT, STATE

NODES: Final = 20
NODE_SECONDS: Final = 90.0
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
_STEPS: Final = (
    *STEPS,
    Step("500 uploads", "500 objects are uploaded (examples/s3-aggregated-refresh.yaml)", uploads),
    Step("hop limits", "Hop limits, from audit to applied (examples/imds-policy.yaml)", hop_limits),
)
Failures = (
    StepError,
    OperatorError,
    DoubleError,
    PlaceError,
    ClusterError,
    BuildError,
    ApiError,
    TimeoutError,
    subprocess.CalledProcessError,
)


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="testbed.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("command", nargs="?", choices=("up", "down"), default="up")
    parser.add_argument("--folder", type=Path, default=STATE / "demo", help="what is started lives here")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    # A shell that starts us in the background has us ignore SIGINT, which the other endings go by.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _ENDINGS:
        signal.signal(number, _interrupt)
    screen = Screen(sys.stdout)
    try:
        with _alone(folder):
            if options.command == "down":
                return _down(screen, folder)
            return _demo(screen, _place(folder), folder)
    except Failures as error:
        screen.line(f"DEMO FAILED: {error}")
        if any(folder.glob("*/logs")):
            screen.line(f"logs: {_shown(folder)}/*/logs")
        return 1
    except KeyboardInterrupt:
        screen.line("interrupted: nothing is left running")
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """As Ctrl-C, which unwinds whatever is being done; asyncio.run turns it into an orderly cancellation."""
    signal.raise_signal(signal.SIGINT)


def _keep() -> bool:
    return os.environ.get("KEEP", "").lower() not in ("", "0", "no", "false")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One demo at a time in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlaceError("a demo is running in this checkout: wait for it, or interrupt it") from None
        yield


def _place(folder: Path) -> Place:
    name = os.environ.get("CLUSTER", "")
    if name not in ("", "embedded", "kind"):
        raise PlaceError(f"CLUSTER={name}: there are `embedded` (the default) and `kind`")
    return Kind(folder, keep=_keep()) if name == "kind" else Embedded(folder, keep=_keep())


def _places(folder: Path) -> tuple[Place, ...]:
    """Wherever a demo may have been left up."""
    return Embedded(folder, keep=True), Kind(folder, keep=True)


def _demo(screen: Screen, place: Place, folder: Path) -> int:
    operator, doubles = Operator(folder, place.kubeconfig), Stack(folder)
    if operator.running() and any(other.running() for other in _places(folder)):
        raise PlaceError("a demo was left up by KEEP=1: make demo-down stops it")
    operator.stop()  # of a demo that was killed
    kept = False
    started = time.monotonic()
    try:
        screen.title(f"caretaker: {place.about}")
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(doubles.start)
            place.start()
            operator.doubles = starting.result()
        results = asyncio.run(_show(screen, place, operator, started))
        _summary(screen, results, started)
        kept = _keep()
    finally:
        if not kept:
            _stop(operator, doubles, place)
    if kept:
        _how_to_look(screen, place, operator, doubles.environment_file)
    screen.line("DEMO OK")
    return 0


def _down(screen: Screen, folder: Path) -> int:
    places = _places(folder)
    operator = Operator(folder, places[0].kubeconfig)
    was_running = operator.running() or any(place.running() for place in places)
    _stop(operator, Stack(folder), *places)
    screen.line("the demo is stopped" if was_running else "no demo was running")
    return 0


def _stop(operator: Operator, doubles: Stack, *places: Place) -> None:
    """To the end, however often somebody presses Ctrl-C."""
    for number in (signal.SIGINT, *_ENDINGS):
        signal.signal(number, signal.SIG_IGN)
    operator.stop()
    doubles.stop()
    for place in places:
        place.stop()


async def _show(screen: Screen, place: Place, operator: Operator, started: float) -> list[Result]:
    async with place.admin() as admin:
        screen.line(f"  the API server answers after {time.monotonic() - started:.0f} s")
        await _prepare(screen, admin, operator)
        screen.line(
            f"  {NODES} nodes are Ready, the CRDs are applied and the operator leads"
            f" after {time.monotonic() - started:.0f} s"
        )
        async with Stage.open(screen, admin, operator) as stage:
            return [await stage.run(number, step) for number, step in enumerate(_STEPS, 1)]


async def _prepare(screen: Screen, admin: Admin, operator: Operator) -> None:
    for file in sorted((CHECKOUT / "crds").glob("*.yaml")):
        for body in yaml.safe_load_all(file.read_text()):
            url = path("customresourcedefinitions", name=body["metadata"]["name"])
            await admin.apply(url, body)
            await admin.wait_for(url, _established)
    await admin.apply(path("namespaces", name=NAMESPACE), _namespace())
    await admin.wait_for(path("serviceaccounts", "default", "default"), lambda _: True)
    bodies = [node(f"node-{number:02d}") for number in range(NODES)]
    await asyncio.gather(
        operator.start(),
        steer.release_node(admin, bodies[0]["metadata"]["name"]),  # installs the steering, for a later step
        _nodes(screen, admin),
        *(admin.create(path("nodes"), b) for b in bodies),
    )


def _established(crd: Json) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _namespace() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


async def _nodes(screen: Screen, admin: Admin) -> None:
    def all_ready(items: list[Json]) -> bool:
        ready = sum(1 for item in items if is_ready(item))
        screen.progress(min(ready, NODES), NODES, "nodes Ready")
        return ready >= NODES

    await admin.wait_for_all(path("nodes"), all_ready, NODE_SECONDS)


def _summary(screen: Screen, results: list[Result], started: float) -> None:
    screen.title("What you saw")
    rows = [
        (r.step, r.seen, f"{r.seconds:.1f}", str(r.runs), f"{r.writes / r.runs:.1f}" if r.runs else "-")
        for r in results
    ]
    screen.table(("step", "result", "seconds", "node-runs", "API writes per node-run"), rows)
    screen.line(
        "API writes: all that the operator sent: pods, ledger, status, events, dry run of the template"
    )
    screen.line(f"In all {time.monotonic() - started:.0f} s")


def _how_to_look(screen: Screen, place: Place, operator: Operator, doubles: Path) -> None:
    kubeconfig = _shown(place.kubeconfig)
    screen.title("It is left up (KEEP=1). Look around:")
    for line in (
        f"export KUBECONFIG={kubeconfig}",
        "kubectl get daemontasks                          # or: kubectl get dtask",
        "kubectl describe daemontask hello                # conditions and events",
        "kubectl get pods -L caretaker.dev/daemontask -o wide",
        "kubectl get configmaps -l caretaker.dev/ledger   # what ran where",
        f"{_shown(Path(sys.executable).parent / 'caretaker')} status daemontask disk-check",
        f"{_shown(Path(sys.executable).parent / 'caretaker')} rerun daemontask hello",
        "kubectl get s3aggregatedrefreshes                # or: kubectl get s3ar",
        "kubectl get imdspolicies                         # or: kubectl get imdsp",
        f"source {_shown(doubles)}                     # the AWS CLI and boto3 see the bucket and the queue",
        f"curl {operator.metrics_url}",
        f"tail -f {_shown(operator.log)}",
        "make demo-down                                   # stops it all",
    ):
        screen.line(f"  {line}")
    if shutil.which("kubectl") is None:
        screen.line("  (kubectl is not on this machine: https://kubernetes.io/docs/tasks/tools/)")


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


if __name__ == "__main__":
    sys.exit(main())
