"""`python -m hoplab`: how long SDKs need for credentials, by place, hop limit and token setting.

Prints a table (or JSON) on stdout and progress on stderr, ends by itself and leaves nothing behind;
exit 0 when it measured, whatever it found. Needs Linux, root and iproute2.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

import msgspec

from awsdoubles.cached import DoubleError
from hoplab.clients import CLIENTS
from hoplab.lab import HopLab
from hoplab.measure import Measurement, Needed, every, measure, scan
from hoplab.needs import HopLabError
from hoplab.options import Source, from_file, from_url
from hoplab.table import table
from testbed import ending


class Missing(msgspec.Struct, frozen=True):
    """A client that was not measured, and why."""

    client: str
    why: str


class Found(msgspec.Struct, frozen=True):
    """All of it, as `--json` prints it."""

    needed: list[Needed]
    measurements: list[Measurement]
    missing: list[Missing]


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured; 1 with a line on stderr when it could not; 130 when interrupted."""
    options = _parser().parse_args(arguments)
    return ending.run(lambda: _tell(_run(options), as_json=options.json), HopLabError)


def _tell(found: Found, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    print(table(found.measurements, found.needed))
    for missing in found.missing:
        print(f"not measured: {missing.client}: {missing.why}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hoplab", description=__doc__.split("\n\n")[0])
    known = ", ".join(CLIENTS)
    parser.add_argument(
        "--clients", type=_names, default=list(CLIENTS), metavar="A,B", help=f"some of {known}; default: all"
    )
    parser.add_argument(
        "--hops", type=_hops, default=[1, 2, 3], metavar="N,N", help="hop limits; default: 1,2,3"
    )
    parser.add_argument(
        "--tokens", choices=("optional", "required"), action="append", help="one setting alone; default: both"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--options-file", type=Path, help="measure under the MetadataOptions (JSON) of this file, once"
    )
    source.add_argument("--options-url", help="the same, from an HTTP server")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CLIENTS]:
        raise argparse.ArgumentTypeError(f"no client {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    return names


def _hops(text: str) -> list[int]:
    hops = [int(hop) for hop in text.split(",")]
    if any(not 1 <= hop <= 64 for hop in hops):
        raise argparse.ArgumentTypeError("hop limits go from 1 to 64")
    return hops


def _run(options: argparse.Namespace) -> Found:
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", file=sys.stderr, flush=True)

    source = _source(options)
    if source:
        source()  # what is wrong with it is said before anything is started
    settings = None if source else every(options.hops, options.tokens or ("optional", "required"))
    found = Found([], [], [])
    with HopLab(source) as lab:
        progress("the network is up: imds - node - pod - docker-in-docker")
        found.needed.extend(scan(lab))
        for name in options.clients:
            try:
                # What is fetched is told as progress.
                with contextlib.redirect_stdout(sys.stderr):
                    command = CLIENTS[name]()
                found.measurements.extend(measure(lab, name, command, settings, progress))
            except (HopLabError, DoubleError) as error:
                found.missing.append(Missing(name, str(error)))
    if not found.measurements:
        raise HopLabError("; ".join(f"{missing.client}: {missing.why}" for missing in found.missing))
    return found


def _source(options: argparse.Namespace) -> Source | None:
    if options.options_file:
        return from_file(options.options_file)
    return from_url(options.options_url) if options.options_url else None


if __name__ == "__main__":
    sys.exit(main())
