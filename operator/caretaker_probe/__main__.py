"""`python -m caretaker_probe`: look once, print the finding as one JSON object, end.

The object also goes to the container's termination message, where a DaemonTask reads it as results. Exit 0
with every finding, good or bad; 2 with a line on stderr where the endpoint cannot be used.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from caretaker_probe.classify import classify
from caretaker_probe.observe import MAX_ID, EndpointError, endpoint_of, observe

# Docs of EC2, "Access instance metadata for an EC2 instance".
IPV4: Final = "http://169.254.169.254"
IPV6: Final = "http://[fd00:ec2::254]"
# Names of the AWS SDKs: "AWS SDKs and Tools Reference Guide", IMDS credential provider.
ENDPOINT: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
MODE: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"
# "off": no request without a token. EC2 counts those (the CloudWatch metrics MetadataNoToken and
# MetadataNoTokenRejected). Not a flag alone, so that an older image is not stopped by it.
IMDSV1: Final = "CARETAKER_PROBE_IMDSV1"
EXPECTED: Final = "CARETAKER_PROBE_EXPECTED_INSTANCE"
TERMINATION_LOG: Final = "/dev/termination-log"


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """The exit code."""
    options = _parser(environment).parse_args(arguments)
    try:
        endpoint = endpoint_of(options.endpoint or (IPV6 if options.mode.lower() == "ipv6" else IPV4))
    except EndpointError as error:
        print(f"caretaker-probe: {error}", file=sys.stderr)
        return 2
    tokenless = options.imdsv1 != "off"
    found = classify(observe(endpoint, options.expected_instance, tokenless=tokenless)).as_json()
    for field in ("instanceId", "detail"):
        found[field] = _plain(found[field], 4 * MAX_ID if field == "detail" else MAX_ID)
    text = json.dumps(found, separators=(",", ":"))
    print(text)
    _leave(text, options.termination_log)
    return 0


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="caretaker-probe", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "--endpoint",
        default=environment.get(ENDPOINT, ""),
        metavar="URL",
        help=f"default: {ENDPOINT}, else {IPV4} or {IPV6}",
    )
    parser.add_argument(
        "--mode",
        default=environment.get(MODE, "IPv4"),
        metavar="IPv4|IPv6",
        help=f"which of the two; default: {MODE}, else IPv4",
    )
    parser.add_argument(
        "--expected-instance",
        default=environment.get(EXPECTED, ""),
        metavar="ID",
        help=f"the instance that must answer; default: {EXPECTED}, else any",
    )
    parser.add_argument(
        "--imdsv1",
        default=environment.get(IMDSV1, "on"),
        metavar="on|off",
        help=f"off: nothing is requested without a token; default: {IMDSV1}, else on",
    )
    parser.add_argument(
        "--termination-log",
        default=TERMINATION_LOG,
        metavar="FILE",
        help=f"where the finding goes, too, if the file exists; default: {TERMINATION_LOG}",
    )
    return parser


def _plain(text: str | None, most: int) -> str | None:
    """The text of an unknown server, as results take it: printable and short; None for nothing."""
    return "".join(c for c in (text or "")[:most] if c.isprintable()) or None


def _leave(text: str, path: str) -> None:
    """Write it to the file that the kubelet has made. Outside a Pod there is none, and none is made."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    except FileNotFoundError:
        return
    with os.fdopen(handle, "w") as log:
        log.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
