"""Parses the values of flags and variables. An invalid value raises ValueError with the valid form.

Inputs: the text; grants() reads the file at that path. It must not know which flag the value is for.
"""

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

import yaml

from caretaker.api.grants import Grants


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise ValueError("must be a port from 0 to 65535; 0 takes a free one")
    return int(text)


def flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("must be true or false")
    return known[text.lower()]


def label(text: str) -> str:
    if len(text) > 63 or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text):
        raise ValueError("must be the name of a namespace: at most 63 of a-z, 0-9 and '-'")
    return text


def subdomain(text: str) -> str:
    part = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    if len(text) > 253 or not re.fullmatch(rf"{part}(\.{part})*", text):
        raise ValueError("must be the name of a Lease: at most 253 of a-z, 0-9, '-' and '.'")
    return text


def one_of(*choices: str, fold: Callable[[str], str] = str.lower) -> Callable[[str], str]:
    def read(text: str) -> str:
        if fold(text) not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return fold(text)

    return read


def places(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in found:
        if not _is_place(part):
            raise ValueError(
                f"{part} must be a network, an address, a host or http://HOST, such as 10.0.0.0/8"
            )
    return found


def _is_place(part: str) -> bool:
    """Digits and dots alone must be a valid address: as a host name, a mistyped address would silently allow
    nothing."""
    if part.startswith("http://") and "/" not in part.removeprefix("http://"):
        part = part.removeprefix("http://")
    if re.fullmatch(r"[A-Za-z0-9._-]*[A-Za-z_-][A-Za-z0-9._-]*", part):
        return True
    try:
        ipaddress.ip_network(part, strict=False)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """The number; 0.0 for any other text, which no flag allows."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def changes(text: str) -> float:
    rate = _number(text)
    if not 0.0 < rate <= 5.0:  # NaN compares false
        raise ValueError("must be a number above 0 and at most 5, which is all that EC2 allows an account")
    return rate


def grants(text: str) -> Grants:
    try:
        content = yaml.safe_load(Path(text).read_text())
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); give the path of a file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    return Grants.decode(content)
