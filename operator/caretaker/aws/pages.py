"""The pages of a list, one after the other, until there is no further one.

Inputs: the call, and its parameters. It must not trust a token: one that comes again would be followed for
ever, and the list would never be told to be whole.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from caretaker.aws.answers import UNREADABLE
from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError

P = TypeVar("P", bound=Mapping[str, Any])

# A page holds 100 at least, and no list that is asked for so many.
MOST_PAGES: Final = 10_000


async def pages(
    call: Callable[..., Awaitable[P]], /, *, by: str = "NextToken", sent_as: str = "", **given: Any
) -> AsyncIterator[P]:
    """Each page. `by`: the member that leads on, which is sent as `sent_as`, or by its own name."""
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
