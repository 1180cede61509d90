"""Pages of a describe call: "Pagination in the Amazon EC2 API".

A token names the last thing that was seen and the call that it belongs to, so things that come or go
between two pages move nothing, and a token is of no use to another call. Pure.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from awsdoubles.ec2.errors import AwsError, invalid_value

T = TypeVar("T")


@dataclass(frozen=True)
class Pages:
    """How an operation pages: the parameter for the size, what that may be, and what it is if not given."""

    size: str
    least: int
    most: int
    usual: int | None = None  # None: everything at once
    bad_token: str = "InvalidPaginationToken"  # noqa: S105

    def take(
        self, found: Sequence[tuple[int, T]], body: dict[str, Any], *, eager: bool = False
    ) -> tuple[list[T], dict[str, str]]:
        """One page of `found`, which are things after rising numbers, and the NextToken of the answer.

        `eager`: a page that is just full has a token too.
        """
        limit = body.get(self.size, self.usual)
        if limit is not None and not self.least <= limit <= self.most:
            side, bound = ("greater", self.least) if limit < self.least else ("less", self.most)
            name = self.size[0].lower() + self.size[1:]
            raise invalid_value(
                f"Value ( {limit} ) for parameter {name} is invalid. Expecting a value {side} than {bound}."
            )
        call = _digest({name: value for name, value in body.items() if name not in {self.size, "NextToken"}})
        after = self._read(body["NextToken"], call) if "NextToken" in body else 0
        rest = [pair for pair in found if pair[0] > after]
        page = rest[:limit]
        more = len(page) < len(rest) or (eager and len(page) == limit)
        token = {"NextToken": _token(page[-1][0], call)} if more and page else {}
        return [thing for _, thing in page], token

    def _read(self, token: str, call: str) -> int:
        try:
            after, given = json.loads(base64.urlsafe_b64decode(token))
        except (binascii.Error, ValueError, TypeError):
            given = None
        if given != call:
            raise AwsError(self.bad_token, f"The token '{token}' is invalid")
        return int(after)


def _token(after: int, call: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([after, call]).encode()).decode()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
