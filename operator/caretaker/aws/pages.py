"""Reads a paginated list, page by page, to its end.

Inputs: the call and its parameters. It must not trust a token: a token that repeats would make the loop
endless, and an endpoint from a spec may have pages without end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.response_check import UNREADABLE
from caretaker.aws.responses import BYTES, unreadable

P = TypeVar("P", bound=Mapping[str, Any])
T = TypeVar("T")

# A page holds at least 100 items, and no list that we read has a million.
MOST_PAGES: Final = 10_000
# Of pages whose content is kept together, such as those of 15,000 file shares.
MOST_BYTES: Final = 16 << 20
ITEM: Final = 400  # bytes that an item of a list takes beside its own


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items, at most `size` at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


class KeptBytes:
    """Counts the bytes of pages whose content is kept together: MOST_BYTES at most."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, page: Mapping[str, Any]) -> None:
        """Raises AwsError."""
        items = sum(len(member) for member in page.values() if isinstance(member, list))
        self._bytes += page.get("ResponseMetadata", {}).get(BYTES, 0) + ITEM * items
        if self._bytes > MOST_BYTES:
            fault = f"its pages have more than {MOST_BYTES >> 20} MiB"
            raise AwsError(ErrorClass.TRANSIENT, UNREADABLE, unreadable(fault))


async def pages(
    call: Callable[..., Awaitable[P]],
    /,
    *,
    by: str = "NextToken",
    sent_as: str = "",
    kept: KeptBytes | None = None,
    **given: Any,
) -> AsyncIterator[P]:
    """Yields each page. `by`: the member with the token of the next page; it is sent as `sent_as`, by default
    under the same name. `kept` counts the bytes of the pages."""
    seen: set[int] = set()  # hashes
    while True:
        page = await call(**given)
        if kept is not None:
            kept.add(page)
        yield page
        following = page.get(by)
        if not following:
            return
        if hash(following) in seen or len(seen) == MOST_PAGES:
            raise AwsError(ErrorClass.TRANSIENT, UNREADABLE, unreadable(f"{by} leads in circles"))
        seen.add(hash(following))
        given[sent_as or by] = following
