"""Parses the Retry-After header (RFC 9110, "Retry-After"). Pure."""

import re
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_DATE: Final = re.compile(r"[A-Za-z]{3,9}, ?[0-9]{1,2}[ -][A-Za-z]{3}[ -][0-9]{2,4} [0-9:]{8} GMT")


def seconds_of(header: str, now: float) -> float:
    """Seconds to wait from `now` (since the epoch); 0 for a date in the past and for an invalid value. The
    caller has to bound it: the service may send any number, or a date by a wrong clock."""
    header = header.strip()
    if _SECONDS.fullmatch(header):
        wait = float(header)
    elif _DATE.fullmatch(header):
        try:
            wait = parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    else:
        return 0.0
    return max(wait, 0.0)
