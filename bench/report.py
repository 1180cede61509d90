"""`python -m bench.report`: the measured figures of .dev/bench/*.json as docs/benchmarks.md shows them.

Replaces what stands between the two markers of each bench; the text around them is written by hand.
"""

import json
from typing import Final

import msgspec

from bench.figures import OUT, Figure, table
from testbed.paths import CHECKOUT

PAGE: Final = CHECKOUT / "docs" / "benchmarks.md"


def main() -> None:
    """Rewrite the page's tables from the files that exist."""
    text = PAGE.read_text()
    for file in sorted(OUT.glob("*.json")):
        found = json.loads(file.read_text())
        figures = [
            msgspec.convert({k: v for k, v in f.items() if k != "met"}, Figure) for f in found["figures"]
        ]
        begin, end = f"<!-- begin {found['name']} -->", f"<!-- end {found['name']} -->"
        body = f"`{found['command']}` on {found['machine']}\n\n{table(figures)}"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{body}\n{end}{after}"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
