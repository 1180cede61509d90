"""Limits on text from AWS responses that is shown or kept: a word, a line, a name. Pure.

With an endpoint from a tenant's spec, the tenant may control the text.
"""

import re
from typing import Annotated, Final

import msgspec

MAX_CHARACTERS: Final = 200
SCANNED_CHARACTERS: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORD: Final = re.compile(r"[\w=+/.:-]{1,100}", re.ASCII)

# An ARN, a name or an ID within an answer. The longest that AWS describes has 2,048 characters.
Name = Annotated[str, msgspec.Meta(max_length=2048)]


def line(message: str) -> str:
    """The first line of a message, without control characters, cut to MAX_CHARACTERS."""
    return _CONTROL.sub(" ", message[:SCANNED_CHARACTERS].partition("\n")[0]).strip()[:MAX_CHARACTERS]


def word(value: object) -> str:
    """A code or an ID, unchanged; "?" for any other value."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "?"
