"""Short, stable hashes for names. Pure."""

import base64
import hashlib


def h10(*parts: str) -> str:
    """Ten characters of [a-z2-7], 50 bits, of the parts; fit for a Pod name and a label value.

    Parts are joined with NUL, which no Kubernetes name, UID or timestamp contains, so that
    ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return base64.b32encode(digest[:10])[:10].decode().lower()
