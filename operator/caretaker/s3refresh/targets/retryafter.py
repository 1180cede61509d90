"""Retry-After: how long a service asks to be left alone (RFC 9110, "Retry-After"). Pure."""

import re
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_DATE: Final = re.compile(r"[A-Za-z]{3,9}, ?[0-9]{1,2}[ -][A-Za-z]{3}[ -][0-9]{2,4} [0-9:]{8} GMT")


def seconds_of(header: str, now: float) -> float:
    """Seconds from `now` (since the epoch); 0 for what is past, and for what is neither seconds nor an HTTP
    date. Whoever believes it has to bound it: the number is anybody's, the date of anybody's clock."""
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
