"""`python -m chart` (`make chart`) writes what follows from others: the chart's CRDs, value table, deploy/.

With --check it writes nothing, and fails when something would change.
"""

import argparse
import sys
from pathlib import Path

from chart import CHART, ChartError, base, readme
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT


def generated() -> dict[Path, str]:
    """Every file that follows from others, and what it should hold."""
    page = CHART / "README.md"
    made = {page: readme.filled(page.read_text(), (CHART / "values.yaml").read_text())}
    for crd in sorted(base.CRDS.glob("*.yaml")):
        made[CHART / "files" / "crds" / crd.name] = crd.read_text()
    return made | base.files()


def strangers(made: dict[Path, str]) -> list[Path]:
    """CRDs that are there no more."""
    folders = (CHART / "files" / "crds", base.FOLDER / "crds")
    return [file for folder in folders for file in sorted(folder.glob("*.yaml")) if file not in made]


def main(arguments: list[str] | None = None) -> int:
    """0 when all is as it should be, or has been made so."""
    parser = argparse.ArgumentParser(prog="chart", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when something is not as made"
    )
    check = parser.parse_args(arguments).check
    try:
        made = generated()
    except (ChartError, BuildError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    gone = strangers(made)
    stale = [file for file, text in made.items() if not file.exists() or file.read_text() != text]
    for file in [*stale, *gone]:
        print(f"{file.relative_to(CHECKOUT)} {'is not as made: make chart' if check else 'written'}")
    if check:
        return 1 if stale or gone else 0
    for file in stale:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made[file])
    for file in gone:
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
