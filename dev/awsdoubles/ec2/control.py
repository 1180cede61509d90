"""Steer an EC2 double, and look into it: from a test, the demo, another process.

Blocking, standard library only. Instances are named by their ids, launch templates and groups by their names.
Options, template data and groups are spelled as in the API of AWS.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from awsdoubles.controlclient import ControlClient, ControlError

__all__ = ["Control", "ControlError"]

Json = dict[str, Any]
REGION: Final = "eu-west-1"
DENIAL: Final = "You are not authorized to perform this operation."


class Control(ControlClient):
    """`url` is the double's address, the same that AWS_ENDPOINT_URL_EC2 holds."""

    def reset(self) -> None:
        """Forget all instances, templates, groups, calls and faults; settings and clock as at the start."""
        self._call("reset")

    def settings(self, **changes: Any) -> Json:
        """Change and return the settings: the fields of `state.Settings`."""
        return dict(self._call("settings", **changes))

    def now(self) -> float:
        """The double's time, Unix seconds."""
        return float(self._call("clock")["now"])

    def stop_clock(self) -> float:
        """Let no time pass but by `advance`; the double's time."""
        return float(self._call("clock", stop=True)["now"])

    def start_clock(self) -> float:
        """Run on with the machine's clock; the double's time."""
        return float(self._call("clock", go=True)["now"])

    def speed_clock(self, speed: float) -> float:
        """Let so many seconds pass in one of the machine's, buckets and all; the double's time."""
        return float(self._call("clock", speed=speed)["now"])

    def advance(self, seconds: float) -> float:
        """Let seconds pass at once; the double's time after them."""
        return float(self._call("clock", advance=seconds)["now"])

    def add_nodes(
        self,
        count: int = 1,
        *,
        region: str = REGION,
        tags: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        template: Mapping[str, str] | None = None,
        group: str = "",
        state: str = "running",
        **more: Any,
    ) -> list[Json]:
        """Launch instances that are all alike: {id, providerID, privateDns, options, inForce, ...} each.

        `template` is {"LaunchTemplateName" or "LaunchTemplateId", "Version"}; a group's own is used when it
        has one. Options that are not given come from the template, the account's defaults, the AMI. `more`:
        the `operator` that manages them, their `age` in seconds.
        """
        launch = {"tags": dict(tags or {}), "options": dict(options or {}), "template": template}
        more = {"operator": {}, "state": state, **more}
        return list(self._call("add-nodes", count=count, region=region, group=group, **launch, **more))

    def instances(self, ids: Sequence[str] | None = None) -> list[Json]:
        """These, or all in the order of their launch; `options` as asked for last, `inForce` as in effect."""
        return list(self._call("instances", ids=ids))

    def instance(self, instance: str) -> Json:
        """One of them."""
        return self.instances([instance])[0]

    def put_options(self, ids: Sequence[str] | None = None, **options: Any) -> list[Json]:
        """Change options as somebody else would: in force at once, and not in the ledger."""
        return list(self._call("put-options", ids=ids, options=options))

    def apply(self, ids: Sequence[str] | None = None) -> list[Json]:
        """Let pending options come into force now."""
        return list(self._call("apply", ids=ids))

    def set_state(self, state: str, ids: Sequence[str] | None = None) -> list[Json]:
        """pending, running, shutting-down, terminated, stopping or stopped."""
        return list(self._call("set-state", ids=ids, state=state))

    def set_tags(self, tags: Mapping[str, str], ids: Sequence[str] | None = None) -> list[Json]:
        """Replace all tags."""
        return list(self._call("set-tags", ids=ids, tags=dict(tags)))

    def remove(self, ids: Sequence[str]) -> None:
        """As an hour after termination: nobody has ever heard of them."""
        self._call("remove", ids=ids)

    def defaults(self, region: str = REGION, **values: Any) -> Json:
        """Set the account's defaults of a region, by the members of InstanceMetadataDefaultsResponse (also
        HttpTokensEnforced, with which launches are refused as by EC2); None takes one away."""
        return dict(self._call("defaults", region=region, **values))

    def deny(self, operation: str, message: str = DENIAL) -> None:
        """Take the permission for an operation away."""
        self._call("deny", operation=operation, message=message)

    def allow(self, operation: str) -> None:
        """Give it back."""
        self._call("deny", operation=operation, message="")

    def put_template(
        self,
        name: str,
        versions: Iterable[Mapping[str, Any]] = (),
        *,
        default: int = 0,
        tags: Mapping[str, str] | None = None,
        region: str = REGION,
    ) -> Json:
        """A launch template, or further versions of it: {id, name, default, latest}.

        A version is its LaunchTemplateData, as {"MetadataOptions": {"HttpTokens": "required"}}.
        """
        data = [dict(one) for one in versions]
        return dict(
            self._call("put-template", region=region, name=name, versions=data, default=default, tags=tags)
        )

    def put_group(self, name: str, *, region: str = REGION, **fields: Any) -> Json:
        """An Auto Scaling group, whole: LaunchTemplate, Tags, ...; `add_nodes` fills it."""
        return dict(self._call("put-group", region=region, name=name, fields=fields))

    def remove_group(self, name: str, *, region: str = REGION) -> None:
        """As if it had been deleted; its instances stay."""
        self._call("put-group", region=region, name=name, fields=None)

    def counts(self) -> dict[str, dict[str, int]]:
        """The ledger, counted: {"DescribeInstances": {"ok": 10}, ...}, by the codes of refusals."""
        return dict(self._call("counts"))
