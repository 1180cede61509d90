"""The source of the future nodes of each group, and whether they will be compliant. Pure.

NodeSources (groups of like nodes, with the wanted options) and LaunchSnapshot -> Findings.

    Compliant    every option that this policy decides is set as it should be, or is the account's default
    Drifted      one is set to another value
    Unset        one is not set: another default of the account applies, or the AMI's, which is not inferred
    LaunchesFail the account refuses what it launches, whatever else differs
    EKSOwned     EKS made the launch template by itself, and it is not as it should be; it must not be edited
    IaCOwned     not as it should be, and a CloudFormation stack would set it back
    Ephemeral    Karpenter's launch templates come and go, and no EC2NodeClass of theirs is in this cluster
    Unsupported  a launch configuration, or something that is not there any more
    Unknown      it could not be read
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.imds import GroupStatus, Options, SourceState, SourceStatus, ec2_name
from caretaker.imds.drift import OptionChange, changes, differences, without_inherited
from caretaker.imds.launching import (
    DEFAULT,
    DEFAULTED,
    LATEST,
    LaunchSnapshot,
    TemplateRef,
    refused_launch,
)
from caretaker.imds.merge import DesiredOption
from caretaker.imds.node_sources import GroupName, Kind, LaunchSource, NodeSource, shut, targets
from caretaker.imds.remediation import NewVersion, Script, group_commands, patch_node_class

MAX_MESSAGE: Final = 1024
SHOWN: Final = 3
_NOT_SEEN: Final = "the launch template could not be looked at"
_NO_DEFAULTS: Final = Options()
# The worst first: that of a group's sources is shown.
_ORDER: Final[tuple[SourceState, ...]] = (
    "LaunchesFail",
    "Drifted",
    "Unset",
    "IaCOwned",
    "EKSOwned",
    "Unknown",
    "Unsupported",
    "Ephemeral",
    "Compliant",
)
COUNTED: Final = frozenset(("LaunchesFail", "Drifted", "Unset"))
WRONG: Final = COUNTED | {"IaCOwned", "EKSOwned"}


class Findings(msgspec.Struct, frozen=True):
    """A source for each group that has one. `wrong`, `unknown`: groups, as `kind/name: state`."""

    groups: Mapping[GroupName, SourceStatus] = {}
    launch_templates: int = 0  # in a state of COUNTED
    node_classes: int = 0
    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def on(self, groups: Sequence[GroupStatus]) -> tuple[GroupStatus, ...]:
        """The same groups, with their sources."""
        return tuple(
            msgspec.structs.replace(one, source=self.groups.get((one.kind, one.name))) for one in groups
        )


def audit(
    node_sources: Iterable[NodeSource],
    others: Callable[[], Iterable[NodeSource]],
    launching: LaunchSnapshot,
    me: str,
    own: frozenset[str],
) -> Findings:
    """The findings of `me`, which names the options `own`. `others`: nodes that it does not select; asked for
    only where something has to change."""
    mine = list(node_sources)
    checker = _SourceChecker(launching, lambda: [*mine, *others()])
    desired = _desired(mine, me, own)
    found: dict[GroupName, list[SourceStatus]] = {}
    for group, launch in sorted(desired):
        found.setdefault(group, []).append(checker.of(launch, desired[group, launch]))
    shown = {group: _worst(sources) for group, sources in found.items()}
    return Findings(
        groups=shown,
        launch_templates=_count(s.launch_template for s in shown.values() if s.state in COUNTED),
        node_classes=_count(s.node_class for s in shown.values() if s.state in COUNTED),
        wrong=_names(shown, WRONG),
        unknown=_names(shown, frozenset(_ORDER) - WRONG - {"Compliant"}),
    )


def _count(names: Iterable[str]) -> int:
    return len(set(names) - {""})


def _names(shown: Mapping[GroupName, SourceStatus], states: frozenset[str]) -> tuple[str, ...]:
    return tuple(f"{kind}/{name}: {s.state}" for (kind, name), s in shown.items() if s.state in states)


def _worst(sources: Sequence[SourceStatus]) -> SourceStatus:
    """The source in the worst state; its message counts the other sources that are not compliant."""
    first, *more = sorted(sources, key=lambda one: _ORDER.index(one.state))
    wrong = sum(one.state != "Compliant" for one in more)
    if not wrong:
        return first
    message = f"{first.message[: MAX_MESSAGE - 64]}; and {wrong} more source(s) of the group"
    return msgspec.structs.replace(first, message=message)


def _desired(
    node_sources: Iterable[NodeSource], me: str, own: frozenset[str]
) -> dict[tuple[GroupName, LaunchSource], dict[str, DesiredOption]]:
    """By group and LaunchSource: the options that the policy decides for every node of them."""
    found: dict[tuple[GroupName, LaunchSource], dict[str, DesiredOption]] = {}
    for node_source in node_sources:
        won = {
            field: one
            for field, one in node_source.fields.items()
            if field in own and not one.rivals and me not in one.losers
        }
        for group in node_source.groups:
            before = found.get((group, node_source.launch), won)
            found[group, node_source.launch] = {field: one for field, one in won.items() if field in before}
    return found


class _SourceChecker:
    """Verdicts on LaunchSources."""

    def __init__(self, launching: LaunchSnapshot, node_sources: Callable[[], Sequence[NodeSource]]) -> None:
        self._launching = launching
        self._node_sources = node_sources
        self._all: dict[tuple[str, ...], dict[str, set[Any]]] | None = None
        self._every: Sequence[NodeSource] | None = None

    def of(self, launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:
        """One LaunchSource against the wanted options of a policy."""
        ways: dict[Kind, Callable[[LaunchSource, Mapping[str, DesiredOption]], SourceStatus]] = {
            "EC2NodeClass": self._node_class,
            "Karpenter": self._karpenter,
            "EKSTemplate": self._eks_template,
            "EKS": self._eks,
            "AutoScalingGroup": self._group,
        }
        found = ways[launch.kind](launch, desired)
        account, message = self._launching.accounts.get(launch.region), found.message
        if account is not None and account.held and "the account" in message:
            message += f"; {account.held}"
        return msgspec.structs.replace(found, message=message[:MAX_MESSAGE])

    def _refused(self, region: str, tokens: str | None) -> tuple[bool | None, str]:
        return refused_launch(self._launching.accounts.get(region), tokens)

    # ---------------------------------------------------------------- Karpenter

    def _node_class(self, launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:
        classes, name = self._launching.classes, launch.name
        if classes is None:
            return SourceStatus("Unknown", node_class=name, message="EC2NodeClasses could not be listed")
        if name not in classes:
            message = f"there is no EC2NodeClass {name} in this cluster"
            return SourceStatus("Ephemeral", node_class=name, message=message)
        differs, tokens = changes(classes[name], desired), classes[name].http_tokens
        fails, refusal = self._refused(launch.region, tokens)
        state = _state(differs, fails)
        if not differs:
            return SourceStatus(state, node_class=name, message=refusal)
        # Karpenter has no such field, and sets it to disabled on all that it launches.
        cannot = [one for one in differs if one.field == "instanceMetadataTags"]
        target, contested, left = self._target(("class", name), differs, launch.region, tokens)
        target.pop("instanceMetadataTags", None)
        refused = self._refused(launch.region, target.get("httpTokens", tokens))[1]
        why = cannot and "an EC2NodeClass cannot set instanceMetadataTags"
        message = _joined(differences(differs), why, contested, refusal, refused, left)
        if contested or refused or not any(one.field in target for one in differs):
            return SourceStatus(state, node_class=name, message=message)
        message += "; Karpenter then replaces all nodes of the class"
        command = patch_node_class(name, target)
        return SourceStatus(state, node_class=name, message=message, mend=command)

    @staticmethod
    def _karpenter(launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:  # noqa: ARG004 - as the others
        message = f"no label names the EC2NodeClass of node pool {launch.name}"
        return SourceStatus("Ephemeral", message=message)

    # ---------------------------------------------------------------- EKS

    def _eks(self, launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:
        """EKS' own template, which is read and never edited: the node group would be DEGRADED."""
        of, key = SourceStatus("EKSOwned", launch.template, launch.version), (launch.region, launch.template)
        if launch.template and key not in self._launching.templates:
            return msgspec.structs.replace(of, state="Unknown", message=_NOT_SEEN)
        template = self._launching.templates.get(key)
        version = template.version(launch.version) if template is not None else None
        options = version.options if version is not None else _NO_DEFAULTS
        differs = changes(options, desired)
        fails, refusal = self._refused(launch.region, options.http_tokens)
        if version is not None and (fails or not differs):
            of = msgspec.structs.replace(of, state=_state(differs, fails))
        if version is not None and not differs:
            return msgspec.structs.replace(of, message=refusal)
        message = (
            "EKS made this launch template by itself, and it must not be edited: make a node group with a "
            "launch template of your own"
        )
        if version is not None:
            message = _joined(differences(differs), message, refusal)
        return msgspec.structs.replace(of, message=message)

    def _eks_template(self, launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:
        ref = TemplateRef(launch.template, launch.version)
        found = self._launched(launch.region, ref, desired)
        if not found.differs or found.no_command:
            return found.status
        if (why := self._mixed(launch)) != "":
            return msgspec.structs.replace(found.status, message=f"{found.status.message}; {why}")
        script = Script(launch.region)
        script.nodegroup(launch.cluster, launch.name, found.new.template, found.new)
        message = f"{found.status.message}; EKS then replaces all nodes of the node group"
        return msgspec.structs.replace(found.status, message=message, mend=str(script))

    def _mixed(self, launch: LaunchSource) -> str:
        """Why there is no command while the nodes of a node group come from different versions or images:
        they do not show which one EKS launches from next."""
        every = (one.launch for one in self._known_sources())
        mine = (launch.kind, launch.name, launch.region)
        here = [one for one in every if (one.kind, one.name, one.region) == mine]
        different = sorted({f"version {one.version} {one.image}".rstrip() for one in here})
        if len(different) < 2:
            return ""
        return (
            f"its nodes come from {' and '.join(different[:SHOWN])}: an update of the node group is "
            "running or has failed; there is no command until it is complete"
        )

    # ---------------------------------------------------------------- Auto Scaling

    def _group(self, launch: LaunchSource, desired: Mapping[str, DesiredOption]) -> SourceStatus:
        name, region = launch.name, launch.region
        of = SourceStatus("Unknown", auto_scaling_group=name)
        if (region, name) not in self._launching.groups:
            return msgspec.structs.replace(of, message="the Auto Scaling group could not be looked at")
        group = self._launching.groups[region, name]
        if group is None or not group.templates:
            message = "has a launch configuration, which cannot be changed: give it a launch template"
            message = f"the Auto Scaling group {message if group is not None else 'is not there any more'}"
            return msgspec.structs.replace(of, state="Unsupported", message=message)
        found = {ref: self._launched(region, ref, desired, inherits=True) for ref in group.templates}
        worst = min((one.status for one in found.values()), key=lambda one: _ORDER.index(one.state))
        if worst.state == "Compliant":
            notes = dict.fromkeys(one.status.message for one in found.values() if one.status.message)
            worst = msgspec.structs.replace(worst, message="; ".join(notes))
        status = msgspec.structs.replace(worst, auto_scaling_group=name)
        if status.state not in COUNTED or any(one.no_command for one in found.values()):
            return status
        pinned = [ref for ref, one in found.items() if one.differs and not ref.moves]
        if pinned and group.stack:
            text = f"{status.message}; the Auto Scaling group belongs to CloudFormation stack {group.stack}"
            return msgspec.structs.replace(status, state=_owned(status.state), message=text)
        moving = {ref for ref, one in found.items() if one.differs and ref.moves}
        followers = {
            other.name
            for (where, _), other in self._launching.groups.items()
            if where == region and other is not None and moving.intersection(other.templates)
        }
        wrong = {ref: one.new for ref, one in found.items() if one.differs}
        mend = group_commands(region, group, wrong, {name} | followers) if wrong else ""
        return msgspec.structs.replace(status, mend=mend)

    # ---------------------------------------------------------------- launch templates

    def _launched(
        self,
        region: str,
        ref: TemplateRef,
        desired: Mapping[str, DesiredOption],
        *,
        inherits: bool = False,
    ) -> "_Launched":
        """`inherits`: unset options are the account's."""
        of = SourceStatus("Unknown", ref.template, ref.version)
        key = (region, ref.template)
        if key not in self._launching.templates:
            return _Launched(msgspec.structs.replace(of, message=_NOT_SEEN))
        template = self._launching.templates[key]
        version = template.version(ref.version) if template is not None else None
        if template is None or version is None:
            what = f"version {ref.version} of it" if template is not None else "the launch template"
            message = f"{what} is not there any more: nothing can be launched"
            return _Launched(msgspec.structs.replace(of, state="Unsupported", message=message))
        account = self._launching.accounts.get(region)
        defaults = account.defaults if inherits and account is not None else _NO_DEFAULTS
        differs, inherited = without_inherited(changes(version.options, desired), defaults)
        tokens = version.options.http_tokens or defaults.http_tokens
        fails, refusal = refused_launch(account, tokens, ami=inherits)
        of = msgspec.structs.replace(of, launch_template=template.id, state=_state(differs, fails))
        if not differs:
            of = msgspec.structs.replace(of, message=_joined(inherited, refusal))
            return _Launched(of, no_command=bool(fails))
        shown = differences(differs, defaults)
        unset = all(one.current is None and ec2_name(one.field) in DEFAULTED for one in differs)
        if inherits and account is None and unset:
            message = _joined(shown, "the account's defaults could not be read", refusal)
            return _Launched(msgspec.structs.replace(of, state="Unknown", message=message))
        target, contested, left = self._target(("template", *key, ref.version), differs, region, tokens)
        new = NewVersion(template, version, target).reusing()
        contested = contested or self._displaced((*key, ref.version), new, defaults)
        refused = self._refused(region, new.block.get("HttpTokens") or defaults.http_tokens)[1]
        message = _joined(shown, _follow(ref), contested, refusal, refused, left)
        if template.stack:
            owner = f"it belongs to CloudFormation stack {template.stack}: change that"
            message = _joined(shown, owner, refusal, refused, left)
            of = msgspec.structs.replace(of, state=_owned(of.state))
        of = msgspec.structs.replace(of, message=message)
        fixable = differs if any(one.field in target for one in differs) else ()
        return _Launched(of, fixable, new, no_command=bool(contested or template.stack or refused))

    def _target(
        self, key: tuple[str, ...], differs: Sequence[OptionChange], region: str, tokens: str | None
    ) -> tuple[dict[str, Any], str, str]:
        """All options that nodes from there should have, by all policies; which of those in question cannot
        be had, since nodes from there should differ; and why optional tokens are left out: launches with
        them fail, or may."""
        fields = self._everybody()[key]
        contested = sorted(one.field for one in differs if len(fields[one.field]) > 1)
        names = ", ".join(contested)
        message = f"other nodes from this source need another {names}: give this group its own source"
        target = {field: next(iter(values)) for field, values in fields.items() if len(values) == 1}
        if left := self._refused(region, target.get("httpTokens"))[1]:
            del target["httpTokens"]
            left = left if any(one.field == "httpTokens" for one in differs) else ""
            left += "; the rest can be set without it" if left and len(differs) > 1 else ""
        held = shut(key, tokens, target, self._known_sources(), self._launching)
        return target, message if contested else held, left

    def _everybody(self) -> Mapping[tuple[str, ...], Mapping[str, set[Any]]]:
        """The desired options of all policies, by source: see targets()."""
        if self._all is None:
            self._all = targets(self._known_sources(), self._launching)
        return self._all

    def _known_sources(self) -> Sequence[NodeSource]:
        if self._every is None:
            self._every = self._node_sources()
        return self._every

    def _displaced(self, key: tuple[str, str, str], new: NewVersion, defaults: Options) -> str:
        """Why the new version must not be made: it would be $Latest, and nodes that follow that would come
        from it, with the account's `defaults` for unset options."""
        region, template, version = key
        followers = self._everybody().get(("template", region, template, LATEST))
        if version == LATEST or new.reuse or followers is None:
            return ""
        latest = new.template.version(LATEST)
        alike = latest is not None and latest.rest == new.source.rest
        has = dict(defaults.given())
        if alike and all(
            values == {new.block.get(ec2_name(one), has.get(one))} for one, values in followers.items()
        ):
            return ""
        return (
            "a new version would become $Latest, which other nodes follow and which should differ: give this "
            "group a source of its own"
        )


class _Launched(msgspec.Struct, frozen=True):
    """A launch template by one reference. `differs`: () = there is nothing to set; `no_command`: none can
    fix it."""

    status: SourceStatus
    differs: tuple[OptionChange, ...] = ()
    new: Any = None  # a NewVersion where it differs
    no_command: bool = False


def _follow(ref: TemplateRef) -> str:
    return "all that follow $Default follow the change" if ref.version == DEFAULT else ""


def _joined(*parts: Any) -> str:
    return "; ".join(dict.fromkeys(filter(None, parts)))


def _owned(state: SourceState) -> SourceState:
    return state if state == "LaunchesFail" else "IaCOwned"


def _state(differs: Sequence[OptionChange], fails: bool | None) -> SourceState:
    """`fails`: as of refused_launch()."""
    if fails:
        return "LaunchesFail"
    if not differs:
        return "Unknown" if fails is None else "Compliant"
    return "Unset" if all(one.current is None for one in differs) else "Drifted"
