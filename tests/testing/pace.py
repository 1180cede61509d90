"""caretaker's command line at another pace, or with a wall clock that is off, for OperatorProcess.

    python -P pace.py SCALE SKEW run --leader-elect=false

SCALE: factor on the operator's backoffs, floors and, from 0.4 on, Lease times. SKEW: seconds that its wall
clock is ahead.
"""

import sys
import time

from caretaker.cli import main

if __name__ == "__main__":
    scale, skew = float(sys.argv[1]), float(sys.argv[2])
    if skew:
        right = time.time
        time.time = lambda: right() + skew
    raise SystemExit(main(sys.argv[3:], scale))
