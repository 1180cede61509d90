"""The instances of a region as EC2 describes them, merged with what is known from before. Pure: times are
arguments, by time.monotonic().

A description may lag (Amazon EC2 API reference, "Eventual consistency"). So a missing entry proves nothing:
changed instances are read by ID until EC2 reports the values that were sent. An instance is gone if EC2 says
so, or if two responses lack it.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import convert
from msgspec.structs import replace

from caretaker.api.imds import Options, described_options
from caretaker.aws.ec2 import Instance, MetadataOptions
from caretaker.imds.checks import ENDED, OWN_SECONDS, ObservedInstance

# From a response that lacks an instance to the next one, which counts.
LOST_SECONDS: Final = 10.0
# How long a gone instance is remembered: longer than any resyncInterval.
GONE_SECONDS: Final = 2 * 86400.0
# How long our changes are remembered: longer than the slowest read of another identity takes.
OWN_KEPT_SECONDS: Final = 900.0
# Tag keys that the metadata service supports (Amazon EC2 user guide, "View tags for your EC2 instances using
# instance metadata").
TAG_KEY: Final = re.compile(r"(?!(?:\.|\.\.|_index)$)[0-9a-zA-Z\-_+=,.@:]{1,255}")
GROUP_TAG: Final = "aws:autoscaling:groupName"
# Cluster tags (Amazon EKS user guide, "Tag your Amazon EKS resources"; Kubernetes cloud provider for AWS).
EKS_TAG: Final = "aws:eks:cluster-name"
OWNED_TAG: Final = "kubernetes.io/cluster/"
# Of instances of managed node groups (Amazon EKS user guide, "Managed node groups").
NODEGROUP_CLUSTER_TAG: Final = "eks:cluster-name"
# Set on every instance from a launch template (Amazon EC2 user guide, "Tag your Amazon EC2 resources").
TEMPLATE_TAG: Final = "aws:ec2launchtemplate:id"
VERSION_TAG: Final = "aws:ec2launchtemplate:version"
# The fields of ObservedInstance that come from tags.
BY_TAGS: Final = ("tagged", "group", "unfit_tags", "template", "version", "cluster", "clusters")
# An instance that EC2 has not described yet.
_NEVER: Final = ObservedInstance(Options(), state="", tagged=False)


class OwnChanges:
    """Our last changes, whichever identity sent them: another one may read a description that lacks them.
    `made`: instance -> (when, new values); `tried`: instance -> (when, parameters) of a call without an
    answer."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self.tried: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def forget(self, since: float) -> None:
        """Those up to then."""
        for changes in (self.made, self.tried):
            for one in [one for one, (at, _) in changes.items() if at <= since]:
                del changes[one]


class Observations:
    """The instances of one region as one identity sees them. `known`: instance -> its description, replaced
    whole; `lost`: instance -> time of the first response that lacks it; `partial`: those without some
    option."""

    def __init__(self, own: OwnChanges | None = None) -> None:
        self.known: dict[str, ObservedInstance] = {}
        self.lost: dict[str, float] = {}
        self.partial: set[str] = set()
        self._before: Mapping[str, ObservedInstance] = {}  # the instances before the last full read
        self._own = own or OwnChanges()
        self._gone: dict[str, float] = {}  # instance -> when it was last found to be gone
        self._stripped: dict[str, float] = {}  # instance -> time of the first response without its group tag

    def due(self, now: float) -> set[str]:
        """Instances that the last response lacked, and that are due for the next read."""
        known, every = self.known, (*self.lost, *self.partial)
        return {one for one in every if one not in known or now - known[one].at >= LOST_SECONDS}

    def read_at(self, instance: str) -> float:
        """Time of its last read; -inf = the known values may be wrong."""
        observed = self.known.get(instance)
        return observed.at if observed is not None else -math.inf

    def applied(self, instance: str, options: Mapping[str, Any]) -> bool:
        """Whether EC2's last report has these options as applied."""
        one = self.known.get(instance)
        return one is not None and not one.under_way and _changed(one.options, options) == one.options

    # ---------------------------------------------------------------- our own changes

    def changed(self, instance: str, options: MetadataOptions, now: float) -> bool:
        """EC2 answered our change with the new values, which a description has to confirm. Whether the
        instance is known."""
        self._own.made[instance] = now, options
        self._own.tried.pop(instance, None)
        before = self.known.get(instance)
        if before is None:
            return False
        after = replace(before, options=_changed(before.options, options), confirmed=False, at=now)
        self.known = {**self.known, instance: after}
        return True

    def doubt(self, instance: str, options: Mapping[str, Any], now: float) -> None:
        """The instance is being sent these options: until EC2 answers, its known values count as too old."""
        self._own.tried[instance] = now, options
        if (before := self.known.get(instance)) is not None:
            self.known = {**self.known, instance: replace(before, at=-math.inf)}

    def refused(self, instance: str) -> None:
        """EC2 refused the change: descriptions count at once again."""
        self._own.tried.pop(instance, None)

    def gone(self, instance: str, now: float) -> None:
        """EC2 no longer knows it."""
        self._gone[instance] = now
        self.known = {one: observed for one, observed in self.known.items() if one != instance}

    # ---------------------------------------------------------------- responses

    def read(self, found: Iterable[Instance], ids: set[str], asked: float, *, whole: bool) -> set[str]:
        """Merge a response; returns the running instances in it. `ids`: those that were asked for; `whole`:
        the cluster's instances too; `asked`: time of the request."""
        observed = self._described(found, asked)
        self._keep_own(observed, asked)
        running = {one for one, instance in observed.items() if instance.state == "running"}
        observed |= self._missing(ids - observed.keys(), asked)
        others = {} if whole else {one: self.known[one] for one in self.known.keys() - ids}
        if whole:
            self._before = self.known
        self.known = {**others, **observed}
        self.lost = {one: at for one, at in self.lost.items() if one in self.known}
        self.partial &= self.known.keys()
        self._stripped = {one: at for one, at in self._stripped.items() if one in self.known}
        return running

    def _last(self, instance: str) -> ObservedInstance | None:
        """Its last description."""
        return self.known.get(instance) or self._before.get(instance)

    def _missing(self, ids: Iterable[str], asked: float) -> dict[str, ObservedInstance]:
        """Instances that a response lacks: unknown at first, gone at the second time."""
        kept = {}
        for one in ids:
            if one in self._gone or asked - self.lost.setdefault(one, asked) >= LOST_SECONDS:
                self._gone[one] = max(asked, self._gone.get(one, asked))
            else:
                kept[one] = replace(self._last(one) or _NEVER, lost=True, at=asked)
        self._gone = {one: at for one, at in self._gone.items() if asked - at < GONE_SECONDS}
        return kept

    def _described(self, found: Iterable[Instance], asked: float) -> dict[str, ObservedInstance]:
        """By ID, without instances that were found to be gone after the request."""
        every = {one["InstanceId"]: observed_instance(one, asked) for one in found}
        observed = {}
        for name, one in every.items():
            if self._gone.get(name, -math.inf) >= asked:
                continue
            self._gone.pop(name, None)
            before = self._last(name)
            observed[name] = self._tagged(name, self._whole(name, one, before), before)
        return observed

    def _whole(self, name: str, one: ObservedInstance, before: ObservedInstance | None) -> ObservedInstance:
        """With the previous value of each option that the response lacks: that is no other value."""
        had = dict(before.options.given()) if before is not None and one.state not in ENDED else {}
        options = convert({**had, **dict(one.options.given())}, Options)
        self.lost.pop(name, None)
        if not one.lost and options == one.options:
            self.partial.discard(name)
            return one
        self.partial.add(name)
        return replace(one, options=options, lost=True)

    def _tagged(self, name: str, one: ObservedInstance, before: ObservedInstance | None) -> ObservedInstance:
        """With the previous tags, if the response has none: it would leave its group, and another policy
        might select it. If the group's tag alone is missing, a later response must confirm that."""
        if not one.tagged:
            return one if before is None or before.ungrouped_at else _retagged(one, before)
        if one.group:
            self._stripped.pop(name, None)
            return one
        since = self._stripped.setdefault(name, one.at)
        if one.at - since >= OWN_SECONDS:
            return one
        if before is not None and before.group:
            return _retagged(one, before)
        return replace(one, ungrouped_at=since)

    def _keep_own(self, observed: dict[str, ObservedInstance], asked: float) -> None:
        """A description with the values from before our change does not count for OWN_SECONDS. Values of a
        later change of ours without an answer are unconfirmed until EC2 reports them."""
        since = asked - OWN_SECONDS
        made = {one: given for one, (at, given) in self._own.made.items() if at > since}
        tried = {one: given for one, (at, given) in self._own.tried.items() if at > since}
        self._own.forget(asked - OWN_KEPT_SECONDS)  # another read may have begun before this one
        for one in (made.keys() | tried.keys()) & observed.keys():
            described, known, given = observed[one], self.known.get(one), tried.get(one, {})
            ours = described.options
            if one in made:
                ours = known.options if known is not None and not known.lost else _changed(ours, made[one])
            if described.options not in (ours, _changed(ours, given)):
                observed[one] = replace(described, options=ours, confirmed=False)
            elif described.lost or _changed(described.options, given) != described.options:
                observed[one] = replace(described, confirmed=False)


def _changed(options: Options, given: Mapping[str, Any]) -> Options:
    return convert({**dict(options.given()), **dict(described_options(given).given())}, Options)


def observed_instance(instance: Instance, asked: float) -> ObservedInstance:
    """The instance as the decisions see it. `asked`: time of the request, by time.monotonic()."""
    described = instance.get("MetadataOptions") or {}
    options = described_options(described)
    state = (instance.get("State") or {}).get("Name", "")
    tags = {tag.get("Key", ""): tag.get("Value", "") for tag in instance.get("Tags", ())}
    launched = instance.get("LaunchTime")
    return ObservedInstance(
        options=options,
        state=state,
        pending=described.get("State") == "pending",
        # EC2 describes these for every running instance.
        lost=state not in ENDED
        and None in (options.http_tokens, options.http_put_response_hop_limit, options.http_endpoint),
        managed=bool((instance.get("Operator") or {}).get("Managed")),
        tagged=bool(tags),
        group=tags.get(GROUP_TAG, ""),
        unfit_tags=any(TAG_KEY.fullmatch(key) is None for key in tags) if tags else None,
        at=asked,
        launched=launched.timestamp() if launched is not None else 0.0,
        template=tags.get(TEMPLATE_TAG, ""),
        version=tags.get(VERSION_TAG, ""),
        cluster=tags.get(EKS_TAG) or tags.get(NODEGROUP_CLUSTER_TAG, ""),
        clusters=tuple(sorted(_clusters(tags))),
    )


def _clusters(tags: Mapping[str, str]) -> set[str]:
    """All clusters in the tags of an instance."""
    clusters = {tags.get(EKS_TAG, ""), tags.get(NODEGROUP_CLUSTER_TAG, "")}
    clusters |= {key.removeprefix(OWNED_TAG) for key in tags if key.startswith(OWNED_TAG)}
    return clusters - {""}


def _retagged(observed: ObservedInstance, before: ObservedInstance) -> ObservedInstance:
    tags = {field: getattr(before, field) for field in BY_TAGS}
    return replace(observed, **tags)
