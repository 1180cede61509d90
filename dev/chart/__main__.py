"""`python -m chart` (`make chart`) writes generated files: the chart's CRDs, kinds, values, deploy/,
and the kinds' lines in pyproject.toml.

With --check it writes nothing, and fails when something would change.
"""

import argparse
import sys
from pathlib import Path

from chart import CHART, ChartError, base, contracts, kinds, readme
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT


def of_the_chart() -> dict[Path, str]:
    """The chart's files that follow from others, and their contents."""
    page, schema, project = CHART / "README.md", CHART / "values.schema.json", CHECKOUT / "pyproject.toml"
    made = {
        page: readme.filled(page.read_text(), (CHART / "values.yaml").read_text()),
        CHART / "files" / "kinds.yaml": kinds.listed(),
        schema: kinds.with_switches(schema.read_text()),
        project: contracts.filled(project.read_text()),
    }
    for crd in sorted(base.CRDS.glob("*.yaml")):
        made[CHART / "files" / "crds" / crd.name] = crd.read_text()
    return made


def update(made: dict[Path, str], crds: Path, *, check: bool) -> bool:
    """Whether files differed from what they should hold. They are written, or only named with `check`; CRDs
    that are there no more go."""
    gone = [file for file in sorted(crds.glob("*.yaml")) if file not in made]
    stale = [file for file, text in made.items() if not file.exists() or file.read_text() != text]
    for file in [*stale, *gone]:
        print(f"{file.relative_to(CHECKOUT)} {'is not as made: make chart' if check else 'written'}")
    if not check:
        for file in stale:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(made[file])
        for file in gone:
            file.unlink()
    return bool(stale or gone)


def main(arguments: list[str] | None = None) -> int:
    """0 when all is as it should be, or has been made so."""
    parser = argparse.ArgumentParser(prog="chart", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when something is not as made"
    )
    check = parser.parse_args(arguments).check
    try:
        differed = update(of_the_chart(), CHART / "files" / "crds", check=check)
        # Made of the chart, so after it.
        differed |= update(base.files(), base.FOLDER / "crds", check=check)
    except (ChartError, BuildError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if check and differed else 0


if __name__ == "__main__":
    sys.exit(main())
