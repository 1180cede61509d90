"""Short, stable hashes for names. Pure."""

import base64
import hashlib


def h10(*parts: str) -> str:
    """Ten characters of [a-z2-7], 50 bits, of the parts; fit for a Pod name and a label value.

    Parts are joined with NUL, which no Kubernetes name, UID or timestamp contains, so that
    ("a", "bc") and ("ab", "c") differ.
    """
    return base64.b32encode(digest(*parts)[:10])[:10].decode().lower()


def digest(*parts: str) -> bytes:
    """The same as 32 bytes, in a fifth of the time: for sort orders, which are never shown."""
    return hashlib.sha256("\0".join(parts).encode()).digest()
