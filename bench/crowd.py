"""`python -m bench.crowd METRICS_PORT HEALTH_PORT SECONDS`: scrapers, and connections that never ask.

200 clients read /metrics again and again; 4,000 connections send half a request and stay. In a process of its
own, so that what it costs is not mistaken for the operator's. Prints how many scrapes were answered, and how
many connections were kept until the end.
"""

import asyncio
import contextlib
import resource
import sys
from typing import Final

SCRAPERS: Final = 200
HALF_OPEN: Final = 4000
AT_A_TIME: Final = 50


async def main(metrics: int, health: int, seconds: float) -> None:
    """For so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    opened = [
        await asyncio.gather(*(_open(port) for _ in range(AT_A_TIME))) for port in _ports(metrics, health)
    ]
    scrapes = await asyncio.gather(*(_scrape(metrics, until) for _ in range(SCRAPERS)))
    kept = sum(one is not None and not one.at_eof() for batch in opened for one in batch)
    print(sum(scrapes), kept, flush=True)


def _ports(metrics: int, health: int) -> list[int]:
    return [metrics, health] * (HALF_OPEN // AT_A_TIME // 2)


async def _open(port: int) -> asyncio.StreamReader | None:
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
        _held.append(writer)
        return reader
    return None


_held: Final[list[asyncio.StreamWriter]] = []


async def _scrape(port: int, until: float) -> int:
    """How many scrapes were answered."""
    answered, loop = 0, asyncio.get_running_loop()
    while loop.time() < until:
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                answered += (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
        except (OSError, TimeoutError):
            await asyncio.sleep(0.1)
    return answered


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
