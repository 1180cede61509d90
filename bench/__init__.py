"""Side-by-side measurements: `python -m bench [NAME]`, which `make bench` calls."""

import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
# The operator as a process and the doubles come from the tests' helpers and the testbed.
for _folder in ("dev", "tests"):
    if str(_CHECKOUT / _folder) not in sys.path:
        sys.path.append(str(_CHECKOUT / _folder))
