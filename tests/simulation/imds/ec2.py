"""EC2 as it is and as it answers: instances with their whole past, of which a description may be a copy.

A description is up to `lags` old, lacks tags, comes in pages or not at all; a change is refused, throttled,
taken without an answer, or takes a while to be in force.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Final

import msgspec

from caretaker.aws.errors import AwsError, ErrorClass

ASG_TAG: Final = "aws:autoscaling:groupName"
CLUSTER_TAG: Final = "aws:eks:cluster-name"
ENDED_SECONDS: Final = 600.0  # a terminated instance is described for so long
ENDING_SECONDS: Final = 20.0
ERRORS: Final = {
    "refuse": AwsError(ErrorClass.INVALID_REQUEST, "InvalidParameterValue", "no luck"),
    "throttle": AwsError(ErrorClass.THROTTLED, "RequestLimitExceeded"),
    "deny": AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation", "no"),
    "lose": AwsError(ErrorClass.UNKNOWN_OUTCOME, "Timeout"),
    "drop": AwsError(ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
    "state": AwsError(ErrorClass.INVALID_REQUEST, "IncorrectInstanceState", "it is not running"),
    "cut": AwsError(ErrorClass.TRANSIENT, "UnreadableAnswer", "the answer cannot be read"),
    "away": AwsError(ErrorClass.TRANSIENT, "Unreachable"),
    "none": AwsError(ErrorClass.NOT_FOUND, "InvalidInstanceID.NotFound"),
    "dry": AwsError(ErrorClass.INVALID_REQUEST, "DryRunOperation"),
}
TAKEN: Final = frozenset(("", "lose"))  # faults with which a change is made all the same


class Then(msgspec.Struct):
    """State of an instance from `at` on: EC2 reports new options at once and applies them later."""

    at: float
    options: dict[str, Any]
    in_force: float
    state: str = "running"
    by: str = ""  # the policy; "" = another client, or its launch


class Instance:
    """One, with its past. `node`: the name of its Node, even when that is gone."""

    def __init__(
        self, name: str, node: str, options: dict[str, Any], tags: dict[str, str], at: float
    ) -> None:
        self.name, self.node, self.tags = name, node, tags
        self.past = [Then(at, dict(options), at)]
        self.stopped = math.inf  # since when

    @property
    def number(self) -> int:
        """Of its name."""
        return int(self.name.removeprefix("i-"), base=16)

    @property
    def last(self) -> Then:
        """As it is."""
        return self.past[-1]

    @property
    def launched(self) -> dict[str, Any]:
        """With what."""
        return self.past[0].options

    @property
    def asg(self) -> str:
        """The Auto Scaling group, by its tag."""
        return self.tags.get(ASG_TAG, "")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.last.state == "running"

    @property
    def ended(self) -> float | None:
        """When it began to end."""
        return next((then.at for then in self.past if then.state != "running"), None)

    def pending(self, now: float) -> bool:
        """Whether a change is not in force yet."""
        return now < self.last.in_force

    def was_pending(self, since: float) -> bool:
        """Whether a change was not in force at some moment since then."""
        return any(max(then.at, since) < then.in_force for then in self.during(since))

    def pending_since(self, since: float, now: float) -> bool:
        """Whether nothing that was changed since then has ever been in force."""
        changed = [then for then in self.past if then.at >= since]
        ends = [*(then.at for then in changed[1:]), now]
        return all(end < then.in_force for then, end in zip(changed, ends, strict=True))

    def then(self, at: float) -> Then | None:
        """As it was."""
        return next((then for then in reversed(self.past) if then.at <= at), None)

    def during(self, since: float) -> Iterator[Then]:
        """All that it was since."""
        for then in reversed(self.past):
            yield then
            if then.at <= since:
                return

    def values(self, name: str, since: float) -> set[Any]:
        """Of an option."""
        return {then.options[name] for then in self.during(since)}

    def held(self, name: str, value: Any, since: float, until: float) -> bool:
        """Whether it ran with this option in force all the time, by EC2's truth."""
        spans = [then for then in self.during(since) if then.at <= until]
        whole = all(then.state == "running" and then.options[name] == value for then in spans)
        return whole and bool(spans) and self.in_force(name, value) <= since

    def read(
        self, name: str, value: Any, every: float, idle: Sequence[tuple[float, float]] = ()
    ) -> "Instance":
        """The instance as a reader sees it who reads every so many seconds, if not `idle`: without changes by
        others that others revert before the next reading."""
        runs = [
            list(some) for _, some in itertools.groupby(self.past, lambda then: then.options[name] == value)
        ]
        seen, seen.past = copy(self), runs[0]
        for run, back in itertools.zip_longest(runs[1:], runs[2:]):
            others = [*run, *(back or run)[:1]]
            foreign = all(then.state == "running" and not then.by for then in others)
            away = run[0].options[name] != value and back is not None
            if not (away and foreign and _awake(run[0].at, back[0].at, idle) <= every):
                seen.past = seen.past + run
        return seen

    def averted(self, name: str, value: Any) -> bool:
        """Whether the value was taken from it each time before it was in force."""
        spans = [(then, after.at) for then, after in itertools.pairwise(self.past)]
        return self.last.options[name] != value and all(
            until < then.in_force for then, until in spans if then.options[name] == value
        )

    def in_force(self, name: str, value: Any) -> float:
        """Since when it has this option in force; inf = not yet. What is sent once more, while it is not,
        takes the place of what was sent before."""
        since = until = math.inf
        for then in reversed(self.past):
            if then.options[name] != value:
                break
            since = then.in_force if then.in_force <= until else since
            until = then.at
        return since


def _awake(since: float, until: float, idle: Sequence[tuple[float, float]]) -> float:
    """Seconds between the two that are not within `idle`."""
    return until - since - sum(max(min(until, end) - max(since, begin), 0.0) for begin, end in idle)


class Ec2:
    """All instances. `sent` is told of every change before it is made, and says whose it is: (instance,
    options, whether it is taken); `became` of every instance that is another than it was."""

    def __init__(
        self, now: Callable[[], float], sent: Callable[[Instance, dict[str, Any], bool], str]
    ) -> None:
        self._now, self._sent = now, sent
        self.dry = self.denials = 0  # dry runs, and changes that were denied
        self.tells = True  # a dry run gives the answer of the change
        self.became: Callable[[Instance], None] = lambda _: None
        self.lacked_at = -math.inf  # when a description failed or lacked tags, for the last time
        self.instances: dict[str, Instance] = {}
        self.launched: dict[str, datetime] = {}  # instance -> LaunchTime
        self.reads: dict[str, list[float]] = {}  # instance -> the times that its descriptions show
        self.told: dict[str, float] = {}  # instance -> when it was described with all options
        self.lacked: dict[
            str, str
        ] = {}  # instance -> what it was described without, the last time that it was
        self.calm()

    def calm(self) -> None:
        """Nothing more goes wrong."""
        self.faults: list[str] = []  # of the next changes
        self.blind: list[str] = []  # of the next descriptions
        self.lags: Iterator[float] = itertools.repeat(0.0)
        self.longest_lag = 0.0
        self.untold = 0  # each n-th instance is described without `lacking`; 0 = none
        self.lacking = "Tags"  # or the name of an option
        self.lacks_group = False  # descriptions lack the tag of the Auto Scaling group alone
        self.denied: set[str] = set()  # instances, by their tags
        self.denied_option: tuple[str, Any] | None = None  # by a condition key
        self.page = 1000
        self.applies_in = 5.0

    def lag(self, *lags: float) -> None:
        """One after the other, of each description."""
        self.lags, self.longest_lag = itertools.cycle(lags), max(lags)

    # ------------------------------------------------------------ events

    def put(self, one: Instance, *, by: str = "", takes: float | None = None, **changed: Any) -> None:
        """New options."""
        now = self._now()
        in_force = now + (self.applies_in if takes is None else takes)
        one.past.append(Then(now, one.last.options | changed, in_force, one.last.state, by))
        self.became(one)

    def end(self, one: Instance) -> None:
        """It is terminated."""
        if one.runs:
            one.past.append(Then(self._now(), one.last.options, self._now(), "terminated"))
            self.became(one)

    # ------------------------------------------------------------ describe

    def describe(self, given: dict[str, Any]) -> dict[str, Any]:
        """One page."""
        if self.blind or self.untold or self.lacks_group:
            self.lacked_at = self._now()
        if self.blind:
            raise ERRORS[self.blind.pop()]
        at = self._now() - next(self.lags)
        told = [(one, then) for one in self.instances.values() if (then := self._told(one, at)) is not None]
        wanted = [
            one for one in told if all(self._meets(*one, at, term) for term in given.get("Filters", ()))
        ]
        if ids := given.get("InstanceIds"):
            if not set(ids) <= {one.name for one, _ in told}:
                raise ERRORS["none"]
            wanted = [one for one in told if one[0].name in ids]
        first = int(given.get("NextToken", 0))
        page = wanted[first : first + self.page]
        answer: dict[str, Any] = {"Reservations": [{"Instances": [self._answer(*one, at) for one in page]}]}
        return answer | ({"NextToken": str(first + self.page)} if len(wanted) > first + self.page else {})

    def _told(self, one: Instance, at: float) -> Then | None:
        """As EC2 knew it then; None: not at all."""
        then, ended = one.then(at), one.ended
        return None if then is None or (ended is not None and at >= ended + ENDED_SECONDS) else then

    def _meets(self, one: Instance, then: Then, at: float, term: dict[str, Any]) -> bool:
        name, values = term["Name"], term["Values"]
        if name == "instance-id":
            return one.name in values
        if name == "metadata-options.state":
            return ("pending" if at < then.in_force else "applied") in values
        if name == "tag-key":
            return any(value in one.tags for value in values)
        if name == "instance-state-name":
            return self._state(one, then, at) in values
        assert name.startswith("tag:"), name
        return one.tags.get(name[4:]) in values

    def _state(self, one: Instance, then: Then, at: float) -> str:
        ended = one.ended
        ends = then.state != "running" and ended is not None and at < ended + ENDING_SECONDS
        if then.state == "running" and at >= one.stopped:
            return "stopped"
        return "shutting-down" if ends else then.state

    def _answer(self, one: Instance, then: Then, at: float) -> dict[str, Any]:
        state = "pending" if at < then.in_force else "applied"
        lacking = {ASG_TAG} if self.lacks_group else set[str]()
        tags = [{"Key": key, "Value": value} for key, value in one.tags.items() if key not in lacking]
        lacks = self.lacking if self.untold and one.number % self.untold == 0 else ""
        options = {name: value for name, value in then.options.items() if name != lacks}
        self.reads.setdefault(one.name, []).append(at)
        if len(options) == len(then.options):
            self.told[one.name] = self._now()
        else:
            self.lacked[one.name] = lacks
        return {
            "InstanceId": one.name,
            "State": {"Name": self._state(one, then, at)},
            "MetadataOptions": {"State": state, **options},
            **({} if lacks == "Tags" else {"Tags": tags}),
            **({"LaunchTime": self.launched[one.name]} if one.name in self.launched else {}),
        }

    # ------------------------------------------------------------ modify

    def modify(self, given: dict[str, Any]) -> dict[str, Any]:
        """Change one."""
        name, dry = given.pop("InstanceId"), given.pop("DryRun", False)
        one = self.instances[name]
        fault = self.fault(one, given, dry)
        fault = "" if dry and fault == "deny" and not self.tells else fault
        self.dry, self.denials = self.dry + dry, self.denials + (fault == "deny" and not dry)
        by = self._sent(one, {} if dry else given, not dry and fault in TAKEN)
        if not dry and fault in TAKEN:
            self.put(one, by=by, **given)
        if dry or fault:
            raise ERRORS["dry" if dry and fault in (*TAKEN, "drop", "state", "refuse") else fault]
        state = "pending" if one.pending(self._now()) else "applied"
        return {"InstanceId": name, "InstanceMetadataOptions": {"State": state, **one.last.options}}

    def fault(self, one: Instance, given: dict[str, Any], dry: bool) -> str:
        """What becomes of it."""
        if not one.runs:
            return "none"
        if one.name in self.denied or (self.denied_option and self.denied_option in given.items()):
            return "deny"
        if not dry and given.get("HttpEndpoint") == "disabled" and len(given) > 1:
            return "refuse"  # InvalidParameterCombination: it stands alone
        if not self.faults or (dry and self.faults[-1] not in ("deny", "throttle")):
            return ""
        return self.faults.pop()
