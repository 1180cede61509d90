"""Durations as people write them in specs: `30s`, `1m30s`, `10m`, `6h`.

Pure. The form is that of metav1.Duration without fractions, signs and units below a second; the CRD's pattern
is the same, so that every duration that the API server accepts can be read here.
"""

import re
from functools import lru_cache
from typing import Final

# Also the `pattern` of every duration in crds/.
PATTERN: Final = r"^(0|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$"
_WHOLE: Final = re.compile(PATTERN)
_PARTS: Final = re.compile(r"([0-9]{1,6})([hms])")
_SECONDS: Final = {"h": 3600, "m": 60, "s": 1}


@lru_cache(maxsize=256)  # the same few are read in every pass; errors are not cached
def seconds(text: str) -> float:
    """`1m30s` -> 90.0. Raises ValueError, with the expected form, for anything else; the empty text is 0."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no duration such as 30s, 1m30s or 6h")
    return float(sum(int(count) * _SECONDS[unit] for count, unit in _PARTS.findall(text)))


def seconds_of(field: str, text: str) -> float:
    """As seconds(). `field`: of the spec, for the error."""
    try:
        return seconds(text)
    except ValueError as error:
        raise ValueError(f"spec.{field}: {error}") from None
