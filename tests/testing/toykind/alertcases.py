"""The alerts about PoolStamps."""

from typing import Final

from testing.alertcases.notation import POD, Case, Cases, series

READY: Final = series("caretaker_ready", {**POD, "namespace": "ns", "name": "toy"}, kind="PoolStamp")
CASES: Final[Cases] = {
    "PoolStampNotReady": {
        "its ConfigMaps cannot be written": Case({READY: "0x20"}, "16m", {"namespace": "ns", "name": "toy"}),
        "it is ready": Case({READY: "1x20"}, "16m"),
    },
}
