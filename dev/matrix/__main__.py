"""`python -m matrix [ROW ...]` runs the tests of each row, all rows without any, and prints a table.

Exit 0 when every row that was asked for is green; 1 when one is not, or when this machine cannot hold it.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import Final

from matrix.hold import Place, hold
from matrix.missing import Missing
from matrix.rows import ROWS, Result, Row, chosen, table
from testbed import ending
from testbed.paths import CHECKOUT

HELP: Final = f"of {', '.join(row.name for row in ROWS)}; several at once are joined: py3.12+lowest+k8s1.34"


def main(arguments: list[str] | None = None) -> int:
    """Run the rows, one after the other."""
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=HELP)
    parser.add_argument("--suite", choices=("unit", "all", ""), default="", help="fewer tests, or more")
    options, rest = parser.parse_known_args(arguments)
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    return ending.run(lambda: _told([_run(row, options.suite, rest) for row in rows]))


def _told(results: list[Result]) -> int:
    print(table(results), flush=True)
    bad = [result for result in results if result.outcome != "green"]
    for result in bad:
        print(f"{result.outcome}: {result.row}: {result.said}", file=sys.stderr)
    return 1 if bad else 0


def _run(row: Row, suite: str, arguments: list[str]) -> Result:
    print(f"== {row.name}", flush=True)
    started = time.monotonic()
    try:
        place = hold(row, suite)
    except Missing as missing:
        print(f"MISSING: {missing}", file=sys.stderr, flush=True)
        return Result(row.name, "MISSING", str(missing).splitlines()[0])
    code, said = _pytest(place, [*row.tests(suite), *row.spread(suite), *arguments])
    return Result(row.name, "NOT GREEN" if code else "green", said, time.monotonic() - started)


def _pytest(place: Place, arguments: list[str]) -> tuple[int, str]:
    """Its exit code and its last line; all that it says is passed on."""
    command = [*place.python, "-m", "pytest", "-q", *arguments]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env={**os.environ, **place.variables}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            said = line.strip() or said
    finally:
        if process.poll() is None:
            process.terminate()
        code = process.wait()
    return code, said


if __name__ == "__main__":
    sys.exit(main())
