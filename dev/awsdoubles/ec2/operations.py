"""EC2's operations on instances and on the account's defaults for them.

Input: a decoded request whose members and enums are right. Every rule names the page of the manuals that it
is from; what they leave open is a switch in `state.Settings`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from awsdoubles.clients import ACCOUNT
from awsdoubles.ec2.errors import AwsError, invalid_value
from awsdoubles.ec2.faults import Fault
from awsdoubles.ec2.filters import Read, matcher
from awsdoubles.ec2.instances import GONE, HOP_LIMITS, NEVER, OPTIONS, STATES, Instance
from awsdoubles.ec2.paging import Pages
from awsdoubles.ec2.state import IMDSV1_REFUSED, World

INSTANCE_ID: Final = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
PAGES: Final = Pages("MaxResults", least=5, most=1000)
DEFAULT_MEMBERS: Final = (*OPTIONS, "ManagedBy", "ManagedExceptionMessage", "HttpTokensEnforced")

Json = dict[str, Any]


def describe_instances(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "DescribeInstances"; terminated instances stay in it until the test removes them."""
    now = world.clock.now()
    ids = body.get("InstanceIds")
    if ids:
        if "MaxResults" in body:  # "Query requests for Amazon EC2", under Pagination
            raise AwsError(
                "InvalidParameterCombination",
                "The parameter instancesSet cannot be used with the parameter maxResults",
            )
        here = _named(world, region, ids)
    else:
        here = [one for one in world.instances.values() if one.region == region]
    wanted = matcher(body.get("Filters", []), _fields(now), lambda one: one.tags)
    hidden = not body.get("IncludeManagedResources", False)
    found = [
        (one.number, one)
        for one in here
        if wanted(one)
        and not (hidden and one.operator.get("HiddenByDefault"))
        and one.id not in world.settings.omit
    ]
    page, token = PAGES.take(found, body, eager=world.settings.eager_tokens)
    reservations: dict[str, Json] = {}
    for one in page:
        reservation = reservations.setdefault(
            one.reservation, {"ReservationId": one.reservation, "OwnerId": ACCOUNT, "Instances": []}
        )
        reservation["Instances"].append(_described(one, now, tags=not world.settings.omit_tags))
    return {"Reservations": list(reservations.values()), **token}


def modify_metadata_options(world: World, region: str, body: Json, taken: Mapping[str, Fault]) -> Json:
    """ "ModifyInstanceMetadataOptions"; options that are not given, the endpoint too, stay as they are ("If
    this parameter is not specified, the existing state is maintained")."""
    now = world.clock.now()
    one = _named(world, region, [body["InstanceId"]])[0]
    changes: Json = {name: body[name] for name in OPTIONS if name in body}
    _possible(world, one, changes)
    seconds = NEVER if "stay_pending" in taken else world.settings.apply_seconds
    if not body.get("DryRun"):
        one.modify(changes, now, seconds=seconds, stale=world.settings.stale_seconds)
    return {
        "InstanceId": one.id,
        "InstanceMetadataOptions": {**one.metadata_options(now), "State": "pending"},
    }


def metadata_defaults(world: World, region: str, _body: Json, _: Mapping[str, Fault]) -> Json:
    """ "GetInstanceMetadataDefaults"; what was never set is left out."""
    known = world.defaults.get(region, {})
    level = {name: known[name] for name in DEFAULT_MEMBERS if name in known}
    return {"AccountLevel": {"ManagedBy": "account", **level}}


def valid_options(body: Json) -> None:
    """What is refused before anybody looks at the instance."""
    limit = body.get("HttpPutResponseHopLimit")
    if limit is not None and limit not in HOP_LIMITS:
        raise invalid_value(
            f"Value ({limit}) for parameter HttpPutResponseHopLimit is invalid. It must be from 1 to 64."
        )
    _well_formed([body["InstanceId"]])


def _possible(world: World, one: Instance, changes: Json) -> None:
    """Whether this instance can have these options."""
    settings = world.settings
    if one.state in GONE:
        raise AwsError(
            settings.gone_code, f"The instance '{one.id}' is not in a state that allows this: {one.state}."
        )
    if one.operator.get("Managed"):
        owner = one.operator.get("Principal", "a service")
        raise AwsError(settings.managed_code, f"The instance '{one.id}' is managed by {owner}.")
    if changes.get("InstanceMetadataTags") == "enabled" and (key := one.unfit_tag_key()):
        raise invalid_value(
            f"'{key}' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{{1,255}}), "
            "and must not be a reserved name ('.', '..', '_index')"
        )
    alone = settings.endpoint_off_stands_alone and len(changes) > 1
    if alone and changes.get("HttpEndpoint") == "disabled":
        raise AwsError(
            "InvalidParameterCombination", "With HttpEndpoint disabled no other option can be specified."
        )
    # "Enforce IMDSv2 at the account level": no way back to IMDSv1, and nothing for those that allow it still.
    back = changes.get("HttpTokens") == "optional" and one.options["HttpTokens"] == "required"
    if back and world.enforces_tokens(one.region):
        raise AwsError("UnsupportedOperation", IMDSV1_REFUSED)


def _named(world: World, region: str, ids: list[str]) -> list[Instance]:
    """All of these, or the error: one wrong id fails the whole call."""
    _well_formed(ids)
    unknown = [one for one in ids if one not in world.instances or world.instances[one].region != region]
    if len(unknown) == 1:
        raise AwsError("InvalidInstanceID.NotFound", f"The instance ID '{unknown[0]}' does not exist")
    if unknown:
        raise AwsError("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")
    return sorted((world.instances[one] for one in dict.fromkeys(ids)), key=lambda one: one.number)


def _well_formed(ids: list[str]) -> None:
    for one in ids:
        if not INSTANCE_ID.fullmatch(one):
            raise AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{one}"')


def _fields(now: float) -> dict[str, Read]:
    """The filters of "DescribeInstances" that the double has."""

    def option(name: str) -> Read:
        return lambda one: [str(one.described_options(now)[name])]

    return {
        "instance-id": lambda one: [one.id],
        "instance-state-name": lambda one: [one.state],
        "instance-type": lambda one: [one.instance_type],
        "private-dns-name": lambda one: [one.private_dns],
        "availability-zone": lambda one: [one.zone],
        "reservation-id": lambda one: [one.reservation],
        "tag-key": lambda one: list(one.tags),
        "operator.managed": lambda one: [str(bool(one.operator.get("Managed"))).lower()],
        "operator.principal": lambda one: [one.operator.get("Principal", "")],
        "metadata-options.state": option("State"),
        "metadata-options.http-tokens": option("HttpTokens"),
        "metadata-options.http-put-response-hop-limit": option("HttpPutResponseHopLimit"),
        "metadata-options.http-endpoint": option("HttpEndpoint"),
        "metadata-options.http-protocol-ipv6": option("HttpProtocolIpv6"),
        "metadata-options.instance-metadata-tags": option("InstanceMetadataTags"),
    }


def _described(one: Instance, now: float, *, tags: bool) -> Json:
    found: Json = {
        "InstanceId": one.id,
        "InstanceType": one.instance_type,
        "ImageId": "ami-00000000000000000",
        "LaunchTime": one.launched_at,
        "PrivateDnsName": one.private_dns,
        "PrivateIpAddress": one.address,
        "Placement": {"AvailabilityZone": one.zone, "Tenancy": "default"},
        "State": {"Code": STATES[one.state], "Name": one.state},
        "MetadataOptions": one.described_options(now),
        "Operator": one.operator or {"Managed": False},
    }
    if tags:
        found["Tags"] = [{"Key": key, "Value": value} for key, value in one.tags.items()]
    return found
