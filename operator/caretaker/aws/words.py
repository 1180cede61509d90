"""How much of what others say is shown and kept: a word, a line, a name. Pure.

At an endpoint that a tenant named, whatever answers writes the text.
"""

import re
from typing import Annotated, Final

import msgspec

MOST_CHARACTERS: Final = 200
LOOKED_AT: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORD: Final = re.compile(r"[\w=+/.:-]{1,100}", re.ASCII)

# An ARN, a name or an ID within an answer. The longest that AWS describes has 2,048 characters.
Name = Annotated[str, msgspec.Meta(max_length=2048)]


def line(message: str) -> str:
    """The first line of a message, as far as it is shown."""
    return _CONTROL.sub(" ", message[:LOOKED_AT].partition("\n")[0]).strip()[:MOST_CHARACTERS]


def word(value: object) -> str:
    """A code or an ID as it is; "?" for what is none."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "?"
