"""The test's side of the double: plain JSON under `/_control/`.

`control.Control` is its client; what each call does stands there.
"""

from collections import Counter

from awsdoubles.clients import ACCOUNT
from awsdoubles.controlapi import BadRequestError, ControlBase, Handler, Json, common
from awsdoubles.ec2.answers import fits
from awsdoubles.ec2.faults import Fault, Faults
from awsdoubles.ec2.instances import Instance, checked
from awsdoubles.ec2.operations import DEFAULT_MEMBERS
from awsdoubles.ec2.protocol import SERVICES, model
from awsdoubles.ec2.state import Template, World


class ControlApi(ControlBase):
    """Every call is a POST of an object and answers a value."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        own: dict[str, Handler] = {
            "reset": self._reset,
            "clock": self._clock,
            "add-nodes": self._add_nodes,
            "instances": lambda body: self._views(self._named(body)),
            "put-options": self._put_options,
            "set-state": self._set_state,
            "set-tags": self._set_tags,
            "remove": self._remove,
            "apply": self._apply,
            "defaults": self._defaults,
            "deny": self._deny,
            "put-template": self._put_template,
            "put-group": self._put_group,
            "counts": self._counts,
        }
        super().__init__({**common(world, faults, Fault), **own})

    def _reset(self, _: Json) -> None:
        self._faults.all.clear()
        self._world.reset()

    def _clock(self, body: Json) -> Json:
        clock = self._world.clock
        if body.get("stop"):
            clock.stop()
        clock.advance(body.get("advance", 0.0))
        if "speed" in body:
            clock.run_at(body["speed"])
        if body.get("go"):
            clock.go()
        return {"now": clock.now(), "running": clock.running, "speed": clock.speed}

    def _add_nodes(self, body: Json) -> list[Json]:
        return self._views(self._world.launch(**body))

    def _put_options(self, body: Json) -> list[Json]:
        options = checked(body["options"])
        for one in self._named(body):
            one.put(options)
        return self._views(self._named(body))

    def _set_state(self, body: Json) -> list[Json]:
        now, seconds = self._world.clock.now(), self._world.settings.apply_seconds
        for one in self._named(body):
            one.become(body["state"], now, seconds)
        return self._views(self._named(body))

    def _set_tags(self, body: Json) -> list[Json]:
        for one in self._named(body):
            one.tags = dict(body["tags"])
        return self._views(self._named(body))

    def _remove(self, body: Json) -> None:
        for one in self._named(body):
            del self._world.instances[one.id]

    def _apply(self, body: Json) -> list[Json]:
        for one in self._named(body):
            one.put({})
        return self._views(self._named(body))

    def _defaults(self, body: Json) -> Json:
        region = body.pop("region")
        if wrong := body.keys() - set(DEFAULT_MEMBERS):
            raise BadRequestError(f"no account default {', '.join(wrong)}: {', '.join(DEFAULT_MEMBERS)}")
        members = model("ec2").shape_for("InstanceMetadataDefaultsResponse").members
        for name in body.keys() & members:
            values = getattr(members[name], "enum", None)
            if values and body[name] not in {*values, None}:
                raise BadRequestError(f"{name} {body[name]!r} is none of {values}")
        known = {**self._world.defaults.get(region, {}), **body}
        self._world.defaults[region] = {name: value for name, value in known.items() if value is not None}
        return self._world.defaults[region]

    def _deny(self, body: Json) -> Json:
        operation, message = body["operation"], body["message"]
        if not any(operation in service.operations for service in SERVICES.values()):
            raise BadRequestError(f"no operation {operation!r}")
        self._world.denied.pop(operation, None)
        if message:
            self._world.denied[operation] = message
        return self._world.denied

    def _put_template(self, body: Json) -> Json:
        """A new one by its name, or further versions of a known one."""
        world, region, name = self._world, body["region"], body["name"]
        for data in body["versions"]:
            fits(model("ec2").shape_for("ResponseLaunchTemplateData"), data)
        known = world.template(region, name)
        made: Template = known or world.add_template(region, name, [], {})
        made.versions += body["versions"]
        if body.get("tags") is not None:
            made.tags = dict(body["tags"])
        if body.get("default"):
            made.default = body["default"]
        if not 0 < made.default <= len(made.versions):
            raise BadRequestError(f"{name} has no version {made.default}")
        return made.view()

    def _put_group(self, body: Json) -> Json:
        world, region, name, fields = self._world, body["region"], body["name"], body["fields"]
        if fields is None:
            return world.groups.pop((region, name))
        arn = f"arn:aws:autoscaling:{region}:{ACCOUNT}:autoScalingGroup::autoScalingGroupName/{name}"
        group: Json = {
            "AutoScalingGroupName": name,
            "AutoScalingGroupARN": arn,
            "CreatedTime": world.clock.now(),
            **fields,
        }
        fits(model("autoscaling").shape_for("AutoScalingGroup"), group)
        world.groups[region, name] = group
        return group

    def _counts(self, _: Json) -> Json:
        """By operation: how often which outcome."""
        found: dict[str, Counter[str]] = {}
        for one in self._world.calls:
            found.setdefault(one["operation"], Counter())[one["code"] or "ok"] += 1
        return {name: dict(counted) for name, counted in found.items()}

    def _named(self, body: Json) -> list[Instance]:
        """Those of `ids`, in their order, or all."""
        ids = body.get("ids")
        known = self._world.instances
        if unknown := [one for one in ids or [] if one not in known]:
            raise BadRequestError(f"no instance {', '.join(unknown)}")
        return list(known.values()) if ids is None else [known[one] for one in ids]

    def _views(self, instances: list[Instance]) -> list[Json]:
        now = self._world.clock.now()
        return [one.view(now) for one in instances]
