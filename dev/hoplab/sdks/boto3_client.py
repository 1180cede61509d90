"""A client of the lab: for every line on stdin it resolves credentials afresh and prints the seconds.

Runs as a file of its own in a namespace. One line of JSON each; `{}` when it is ready. It ends with
stdin, so that it cannot outlive the lab, and must not print a credential.
"""

import json
import sys
import time

import boto3


def resolve() -> str:
    """Run the default chain; what kept it from finding credentials, or nothing."""
    try:
        found = boto3.session.Session().get_credentials()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the measurement's result
        return f"{type(error).__name__}: {error}"
    return "" if found else "no credentials"


def main() -> None:
    """Until stdin ends."""
    print("{}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        error = resolve()
        print(json.dumps({"seconds": time.perf_counter() - started, "error": error}), flush=True)


if __name__ == "__main__":
    main()
