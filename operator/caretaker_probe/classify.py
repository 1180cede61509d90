"""The meaning of an observation of the metadata service.

Pure: Observation -> Finding, by a chain of rules of which the first that applies decides. Rules: docs of EC2,
"Use the Instance Metadata Service to access instance metadata" (tokens, status codes; the service calls
itself EC2ws) and "Configure the Instance Metadata Service options" (the hop limit is that of the answer to
the PUT alone). Fast connect, silent PUT is the signature of a hop limit that is too small.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

SERVER: Final = "EC2ws"
TIMEOUT: Final = "timeout"
REFUSED: Final = "ECONNREFUSED"

Verdict = Literal[
    "Reachable",  # a token and the instance's id came
    "HopLimited",  # the answer with the token dies on its way: the hop limit is too small for this place
    "Blocked",  # no connection: a network policy, a firewall, no route
    "Refused",  # no server listens: a proxy that is down, or no metadata service
    "EndpointDisabled",  # HttpEndpoint is disabled
    "Forbidden",  # a token is refused, and metadata without one were not asked for: one of those two
    "Proxied",  # a server on the way refuses tokens: a proxy that adds X-Forwarded-For
    "Emulated",  # something else answers in its place: no verdict about EC2
    "Silent",  # connections are taken, and nothing is answered, though the hop limit cannot be why
    "Unexpected",  # an answer that no rule knows; `detail` has it
]
Imdsv1 = Literal["Open", "Closed"]


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: str = ""
    server: str = ""  # the header Server
    milliseconds: float = 0.0  # from the request until it was read


@dataclass(frozen=True)
class NoAnswer:
    """A request that was not answered; `why` is TIMEOUT, or the error that broke the connection."""

    why: str


Reply = Answer | NoAnswer | None  # None: not asked


@dataclass(frozen=True)
class Observation:
    """The observations of the probe, in its order."""

    failure: str = ""  # of the connect: empty, TIMEOUT, or the error's name as of errno(3)
    connect_milliseconds: float = 0.0
    needed_hops: int | None = None  # None: no TTL that was tried connects, or none was tried
    token: Reply = None  # PUT /latest/api/token
    instance: Reply = None  # GET the instance's id, with the token
    without: Reply = None  # the same without a token
    expected: str = ""  # the instance's id, where it is known


@dataclass(frozen=True)
class Finding:
    """The meaning of an Observation. Figures that were not measured are None."""

    verdict: Verdict
    detail: str
    latency_ms: float | None = None  # from nothing to the instance's id: connect, token, id
    needed_hops: int | None = None
    imdsv1: Imdsv1 | None = None
    instance_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as a DaemonTask's results name them."""
        return {
            "verdict": self.verdict,
            "latencyMs": self.latency_ms,
            "neededHops": self.needed_hops,
            "imdsv1": self.imdsv1,
            "instanceId": self.instance_id,
            "detail": self.detail,
        }


def classify(seen: Observation) -> Finding:
    """The first rule that applies."""
    return next(found for rule in _RULES if (found := rule(seen)) is not None)


def imdsv1(seen: Observation) -> Imdsv1 | None:
    """Whether metadata is given without a token; None where that was not learned."""
    if not isinstance(seen.without, Answer):
        return None
    return {200: "Open", 401: "Closed"}.get(seen.without.status)  # type: ignore[return-value]


def _no_connection(seen: Observation) -> Finding | None:
    if not seen.failure:
        return None
    if seen.failure == REFUSED:
        return Finding("Refused", "the connection is refused: a proxy that is down, or no metadata service")
    if seen.failure == TIMEOUT:
        return Finding("Blocked", "no connection: a network policy, a firewall, or no route")
    return Finding("Blocked", f"no connection ({seen.failure}): a network policy, a firewall, or no route")


def _foreign(seen: Observation) -> Finding | None:
    """Some answer was another server's. Any server may send a 403: it has a rule of its own."""
    answers = [reply for reply in (seen.token, seen.instance, seen.without) if isinstance(reply, Answer)]
    other = next((a for a in answers if a.server != SERVER and a.status != 403), None)
    if other is None:
        return None
    return Finding("Emulated", f"the server calls itself {other.server or 'nothing'}, EC2's {SERVER}")


def _another_instance(seen: Observation) -> Finding | None:
    told = _instance_id(seen)
    if not told or not seen.expected or told == seen.expected:
        return None
    return Finding("Emulated", f"it reports instance {told}, the node is {seen.expected}", instance_id=told)


def _reachable(seen: Observation) -> Finding | None:
    told = _instance_id(seen)
    if not told or not isinstance(seen.token, Answer) or not isinstance(seen.instance, Answer):
        return None
    total = seen.connect_milliseconds + seen.token.milliseconds + seen.instance.milliseconds
    detail = "the token and the instance's id came"
    return Finding("Reachable", detail, round(total, 2), seen.needed_hops, imdsv1(seen), told)


def _silent_token(seen: Observation) -> Finding | None:
    """The token does not come. The hop limit is why where other answers do come, which it does not hold up,
    and where one hop is not enough, since the limit is never below one. If no other answer was asked for, the
    scan alone decides."""
    if seen.token != NoAnswer(TIMEOUT):
        return None
    other = isinstance(seen.without, Answer) or (seen.without is None and seen.needed_hops is not None)
    if seen.needed_hops == 1 or not other:
        return Finding(
            "Silent",
            "connected, but no token came, and the hop limit is not why: look for what answers in its place",
            needed_hops=seen.needed_hops,
            imdsv1=imdsv1(seen),
        )
    needs = f"at least {seen.needed_hops}" if seen.needed_hops else "a larger one"
    return Finding(
        "HopLimited",
        f"connected, but no token came: the hop limit is too small, this place needs {needs}",
        needed_hops=seen.needed_hops,
        imdsv1=imdsv1(seen),
    )


def _forbidden(seen: Observation) -> Finding | None:
    if not isinstance(seen.token, Answer) or seen.token.status != 403:
        return None
    hops = seen.needed_hops
    if isinstance(seen.without, Answer) and seen.without.status != 403:
        detail = "a token is refused (403) while metadata answers: a proxy on the way, or an emulator"
        return Finding("Proxied", detail, needed_hops=hops, imdsv1=imdsv1(seen))
    if seen.without is None:
        detail = "a token is refused (403): HttpEndpoint is disabled, or a proxy on the way"
        return Finding("Forbidden", detail, needed_hops=hops)
    if not isinstance(seen.without, Answer):
        return None  # whether metadata is given without a token was not learned
    return Finding(
        "EndpointDisabled", "everything is refused (403): HttpEndpoint is disabled", needed_hops=hops
    )


def _unexpected(seen: Observation) -> Finding:
    told = {"token": seen.token, "id": seen.instance, "id without token": seen.without}
    detail = "; ".join(f"{what}: {_word(reply)}" for what, reply in told.items() if reply is not None)
    return Finding("Unexpected", detail, needed_hops=seen.needed_hops, imdsv1=imdsv1(seen))


_RULES: Final[tuple[Callable[[Observation], Finding | None], ...]] = (
    _no_connection,
    _foreign,
    _another_instance,
    _reachable,
    _silent_token,
    _forbidden,
    _unexpected,
)


def _instance_id(seen: Observation) -> str:
    """The instance's id as the service gave it with a token; "" = it gave none."""
    token, told = seen.token, seen.instance
    if not isinstance(token, Answer) or not isinstance(told, Answer):
        return ""
    return told.body.strip() if (token.status, told.status) == (200, 200) else ""


def _word(reply: Answer | NoAnswer) -> str:
    return f"HTTP {reply.status}" if isinstance(reply, Answer) else reply.why
