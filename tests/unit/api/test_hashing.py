"""Hashes in names: other ones would make every Pod and every record a stranger's."""

import base64
import hashlib

from caretaker.api.hashing import h10


def test_it_is_base32_of_sha256() -> None:
    for number in range(2000):
        parts = ("uid", f"node-{number}", "")
        whole = base64.b32encode(hashlib.sha256("\0".join(parts).encode()).digest()).decode()
        assert h10(*parts) == whole[:10].lower()
