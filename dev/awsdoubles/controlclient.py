"""The control calls of a double: JSON to its own address, beside AWS's. Blocking, standard library only."""

import json
import urllib.error
import urllib.request
from typing import Any

from awsdoubles.loopback import DIRECT


class ControlError(Exception):
    """The double refused a control call; the message is its own."""


class ControlClient:
    """`url` is the double's address, the same that its AWS_ENDPOINT_URL_* holds."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def _call(self, call: str, /, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{self._url}/_control/{call}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with DIRECT.open(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise ControlError(f"{call}: {json.load(error).get('error')}") from None

    def fault(self, action: str, **how: Any) -> dict[str, Any]:
        """Let something go wrong; `how` has the fields of the double's Fault, which has the actions, too."""
        return dict(self._call("fault", action=action, **how))

    def faults(self) -> list[dict[str, Any]]:
        """The faults that were set, each with how often it was `used`."""
        return list(self._call("faults"))

    def clear_faults(self) -> None:
        """Let nothing go wrong any more."""
        self._call("clear-faults")

    def calls(self, operation: str | None = None) -> list[dict[str, Any]]:
        """The AWS calls in their order, each with its region, operation, input, time, status and code."""
        return list(self._call("calls", operation=operation))

    def clear_calls(self) -> None:
        """Forget the calls."""
        self._call("clear-calls")
