"""The test's side of a double: plain JSON under `/_control/`, for `controlclient.ControlClient`.

What every double of ours has: settings, faults, the ledger of AWS's calls. Each adds calls of its own.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from awsdoubles.faults import F, FaultList

PREFIX: Final = "/_control/"

Json = dict[str, Any]
Handler = Callable[[Json], Any]  # answers a value, or an awaitable of one


class BadRequestError(Exception):
    """The test asked for something that makes no sense."""


class World(Protocol):
    """What a double's own has."""

    @property
    def settings(self) -> Any:
        """A dataclass."""

    @property
    def calls(self) -> list[Json]:
        """The ledger: each has its `operation`."""


class ControlBase:
    """Every call is a POST of an object and answers a value."""

    def __init__(self, calls: Mapping[str, Handler]) -> None:
        self._calls = calls

    async def handle(self, request: web.Request) -> web.Response:
        """One call; what is wrong with it comes back as 400 and `error`."""
        name = request.match_info["name"]
        handler = self._calls.get(name)
        if handler is None:
            return web.json_response({"error": f"no call {name!r}: {', '.join(self._calls)}"}, status=404)
        try:
            answer = handler(await request.json())
            return web.json_response(await answer if inspect.isawaitable(answer) else answer)
        except (BadRequestError, TypeError, ValueError, KeyError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)


def common(world: World, faults: FaultList[F], fault: Callable[..., F]) -> dict[str, Handler]:
    """The calls that every double has. `fault` makes one of the fields that a test gives."""

    def settings(body: Json) -> Json:
        for name, value in body.items():
            if not hasattr(world.settings, name):
                raise BadRequestError(f"no setting {name!r}")
            setattr(world.settings, name, value)
        return dataclasses.asdict(world.settings)

    def add(body: Json) -> Json:
        made = fault(**body)
        faults.all.append(made)
        return made.view()

    return {
        "settings": settings,
        "fault": add,
        "clear-faults": lambda _: faults.all.clear(),
        "faults": lambda _: [one.view() for one in faults.all],
        "calls": lambda body: [c for c in world.calls if body.get("operation") in {None, c["operation"]}],
        "clear-calls": lambda _: world.calls.clear(),
    }
