"""A pod template without meaningless parts: as the API server would store it, for its revision alone.

Pure: template -> template. Parts that tools add and take away (nulls, empty objects and lists, zeros,
defaults that are spelt out, other words for a quantity) are removed. Parts that may mean something stay, and
so do unknown ones. Equal results make equal Pods. It must not be used for the Pod itself.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from caretaker.api.podtypes import STRUCTS

# Pointers whose empty object means nothing; for pointers Go distinguishes an empty value from none.
_EMPTY: Final = frozenset(
    {
        ("Affinity", "nodeAffinity"),
        ("Affinity", "podAffinity"),
        ("Affinity", "podAntiAffinity"),
        ("Container", "lifecycle"),
        ("Container", "securityContext"),
        ("PodSpec", "affinity"),
        ("PodSpec", "dnsConfig"),
        ("PodSpec", "securityContext"),
        ("SecurityContext", "capabilities"),
    }
)
# Kubernetes' defaults (pkg/apis/core/v1/defaults.go) that depend on nothing else. A v1 default never changes.
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    ("ConfigMapVolumeSource", "defaultMode"): 0o644,
    ("Container", "terminationMessagePath"): "/dev/termination-log",
    ("Container", "terminationMessagePolicy"): "File",
    ("ContainerPort", "protocol"): "TCP",
    ("DownwardAPIVolumeSource", "defaultMode"): 0o644,
    ("HTTPGetAction", "path"): "/",
    ("HTTPGetAction", "scheme"): "HTTP",
    ("HostPathVolumeSource", "type"): "",
    ("ObjectFieldSelector", "apiVersion"): "v1",
    ("PodSpec", "dnsPolicy"): "ClusterFirst",
    ("PodSpec", "enableServiceLinks"): True,
    ("PodSpec", "schedulerName"): "default-scheduler",
    ("PodSpec", "terminationGracePeriodSeconds"): 30,
    ("Probe", "failureThreshold"): 3,
    ("Probe", "periodSeconds"): 10,
    ("Probe", "successThreshold"): 1,
    ("Probe", "timeoutSeconds"): 1,
    ("ProjectedVolumeSource", "defaultMode"): 0o644,
    ("SecretVolumeSource", "defaultMode"): 0o644,
    ("ServiceAccountTokenProjection", "expirationSeconds"): 3600,
}
_ZEROS: Final[Mapping[str, Any]] = {"str": "", "bool": False, "num": 0}
_QUANTITY: Final = re.compile(
    r"([+-]?)([0-9]{0,20})(?:\.([0-9]{0,20}))?(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]?))"
)
_DECIMAL: Final = ("E", "P", "T", "G", "M", "k", "", "m", "u", "n")
_BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "")
_EXPONENT: Final = ("e18", "e15", "e12", "e9", "e6", "e3", "", "e-3", "e-6", "e-9")
_NANO: Final = 10**9
_SCALES: Final = {  # of a quantity of one, in 10^-9
    **{suffix: 1000 ** (9 - place) for place, suffix in enumerate(_DECIMAL)},
    **{suffix: _NANO * 1024 ** (6 - place) for place, suffix in enumerate(_BINARY)},
}
_DECIMALS: Final = tuple((mark, _SCALES[mark]) for mark in _DECIMAL)
_BINARIES: Final = tuple((mark, _SCALES[mark]) for mark in _BINARY)
_EXPONENTS: Final = tuple(zip(_EXPONENT, (scale for _, scale in _DECIMALS), strict=True))
# A map with more quantities is not normalised: it would take too long.
_QUANTITIES: Final = 32


def normalised(template: dict[str, Any]) -> dict[str, Any]:
    """The template's meaning."""
    return _struct("PodTemplateSpec", template)


def _struct(name: str, found: dict[str, Any]) -> dict[str, Any]:
    fields, kept = STRUCTS[name], {}
    for key, value in found.items():
        code = fields.get(key)
        if code is None:
            kept[key] = value  # of a newer Kubernetes, or a slip
        elif value is not None:
            meant = _meant(code, value)
            if not _says_nothing(name, key, code, meant):
                kept[key] = meant
    return kept


def _says_nothing(name: str, key: str, code: str, value: Any) -> bool:
    place = (name, key)
    if place in _DEFAULTS and _same(value, _DEFAULTS[place]):
        return True
    if value or place == ("PodSpec", "overhead"):
        return False  # the API server's admission refuses an empty overhead, too
    if isinstance(value, dict | list):
        return (not code.startswith("*") and _is_of(code, value)) or place in _EMPTY
    return code in _ZEROS and _same(value, _ZEROS[code])


def _is_of(code: str, value: Any) -> bool:
    return isinstance(value, list) if code.startswith("[]") else isinstance(value, dict)


def _same(value: Any, other: Any) -> bool:
    """Go takes neither false for 0 nor 1 for true."""
    return type(value) is type(other) and bool(value == other)


def _meant(code: str, value: Any) -> Any:
    """The value of a field or of an item, which stands."""
    code = code.removeprefix("*")
    if code.startswith("[]") and isinstance(value, list):
        code = code[2:].removeprefix("*")
        if code in STRUCTS:  # a template may have 90,000 empty ones
            return [_struct(code, item) if item and isinstance(item, dict) else item for item in value]
        return value if code in _ZEROS else [_meant(code, item) for item in value]
    if code.startswith("{}") and isinstance(value, dict):
        if len(value) > _QUANTITIES:
            return value
        code = code[2:]
        return {key: _meant(code, item) for key, item in value.items()}
    if code in STRUCTS and isinstance(value, dict):
        return _struct(code, value)
    return _quantity(value) if code == "quantity" else value


def _quantity(value: Any) -> Any:
    """`1` for 1, `1000m` and `1.0`. A value that is no quantity, or none that is stored exactly, stays as it
    is."""
    found = _QUANTITY.fullmatch(str(value)) if type(value) in (str, int) else None
    if found is None or not (found[2] or found[3]):
        return value
    sign, whole, part, exponent, suffix = found.groups(default="")
    scale = _SCALES[suffix] if not exponent else _NANO * 10 ** max(int(exponent), 0)
    amount, left = divmod(int(whole + part) * scale, 10 ** (len(part) + max(-int(exponent or 0), 0)))
    if left or amount >= 2**63 * _NANO:
        return value
    if not amount:
        return "0"
    marks = _EXPONENTS if exponent else _DECIMALS
    if suffix.endswith("i") and amount >= 1024 * _NANO:
        marks = _BINARIES
    for mark, scale in marks:
        if not amount % scale:
            return f"{sign.replace('+', '')}{amount // scale}{mark}"
    return value
