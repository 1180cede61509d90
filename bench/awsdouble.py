"""`python -m bench.awsdouble CERTIFICATE KEY`: an AWS endpoint on loopback that counts its connections.

Answers GetQueueAttributes and DescribeInstances over TLS, ANSWER_SECONDS after the request. Prints its port;
then, for each line on stdin, its counts since the last one as JSON. Ends with its stdin.
"""

import asyncio
import contextlib
import json
import ssl
import sys
from typing import Final

ANSWER_SECONDS: Final = 0.005
_SQS: Final = json.dumps({"Attributes": {"ApproximateNumberOfMessages": "7"}}).encode()
_EC2: Final = (
    b'<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
    b"<reservationSet><item><reservationId>r-1</reservationId><instancesSet><item><instanceId>i-1</instanceId>"
    b"<instanceState><code>16</code><name>running</name></instanceState></item></instancesSet></item>"
    b"</reservationSet></DescribeInstancesResponse>"
)


class Double:
    """Counts: connections accepted, the most open at a time, requests."""

    def __init__(self) -> None:
        self.open = 0
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        self.accepted = self.requests = 0
        self.most_open = self.open

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is closed."""
        self.accepted += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                while True:
                    await self._answer(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.requests += 1
        await asyncio.sleep(ANSWER_SECONDS)
        json_wanted = b"x-amz-target" in head
        body = _SQS if json_wanted else _EC2
        kind = b"application/x-amz-json-1.0" if json_wanted else b"text/xml"
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)
        )
        await writer.drain()


async def main(certificate: str, key: str) -> None:
    """Serve until stdin ends."""
    double = Double()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(double.serve, "127.0.0.1", 0, ssl=context, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        counts = {"accepted": double.accepted, "most_open": double.most_open, "requests": double.requests}
        double.reset()
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
