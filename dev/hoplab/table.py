"""The measurements as a person reads them: a row per client, place and token setting, a column per hop."""

from collections.abc import Sequence
from typing import Final

from hoplab.measure import Measurement, Needed
from hoplab.network import DIND, NODE, PLACES, POD

SHOWN: Final = {NODE: "host network", POD: "pod", DIND: "docker-in-docker"}


def table(measurements: Sequence[Measurement], needs: Sequence[Needed]) -> str:
    """Lines of equal columns."""
    hops = sorted({m.hop_limit for m in measurements})
    cells = {(m.client, m.place, m.tokens, m.hop_limit): _cell(m) for m in measurements}
    required = {n.place: _needed(n) for n in needs}
    rows = [["client", "place", "needed", "tokens", *(f"hop limit {hop}" for hop in hops)]]
    kinds = dict.fromkeys((m.client, m.place, m.tokens) for m in measurements)
    clients = list(dict.fromkeys(client for client, _, _ in kinds))
    for client, place, tokens in sorted(kinds, key=lambda k: (clients.index(k[0]), PLACES.index(k[1]), k[2])):
        found = [cells.get((client, place, tokens, hop), "") for hop in hops]
        rows.append([client, SHOWN[place], required[place], tokens, *found])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cell(measurement: Measurement) -> str:
    seconds = measurement.seconds
    took = f"{seconds:.2f} s" if seconds >= 0.5 else f"{seconds * 1000:.0f} ms"
    return f"{took}, {measurement.version or 'no credentials'}"


def _needed(found: Needed) -> str:
    four = "none" if found.ipv4 is None else str(found.ipv4)
    return four if found.ipv6 in (None, found.ipv4) else f"{four} (IPv6: {found.ipv6})"
