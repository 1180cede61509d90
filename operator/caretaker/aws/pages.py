"""Reads a paginated list, page by page, to its end.

Inputs: the call and its parameters. It must not trust a token: a token that repeats would make the loop
endless.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.response_check import UNREADABLE

P = TypeVar("P", bound=Mapping[str, Any])

# A page holds at least 100 items, and no list that we read has a million.
MOST_PAGES: Final = 10_000


async def pages(
    call: Callable[..., Awaitable[P]], /, *, by: str = "NextToken", sent_as: str = "", **given: Any
) -> AsyncIterator[P]:
    """Yields each page. `by`: the member with the token of the next page; it is sent as `sent_as`, by default
    under the same name."""
    seen: set[str] = set()
    while True:
        page = await call(**given)
        yield page
        following = page.get(by)
        if not following:
            return
        if following in seen or len(seen) == MOST_PAGES:
            raise AwsError(
                ErrorClass.TRANSIENT, UNREADABLE, f"the answer cannot be read: {by} leads in circles"
            )
        seen.add(following)
        given[sent_as or by] = following
