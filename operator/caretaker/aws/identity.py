"""Identity, region and endpoint of a call: the key of its client.

Pure. Inputs: spec.aws and the data of the Secret that it names, if any. Two equal keys share one client; no
secret may be printed.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.hashing import h10

# The keys of the Secret, as in the environment of every AWS tool.
ACCESS_KEY_ID = "AWS_ACCESS_KEY_ID"
SECRET_ACCESS_KEY = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - a name
SESSION_TOKEN = "AWS_SESSION_TOKEN"  # noqa: S105
# RoleSessionName must match [\w+=,.@-]{2,64} (AWS STS API reference, AssumeRole).
MAX_CHARACTERS: Final = 64
_INVALID: Final = re.compile(r"[^A-Za-z0-9_=.@-]")
UNNAMED: Final = "caretaker"  # stands for a cluster without a known name


class Keys(msgspec.Struct, frozen=True):
    """An access key. Its repr shows the ID alone, which is no secret."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""

    def __repr__(self) -> str:
        return f"Keys({self.access_key_id!r})"

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Self:
        """Keys from a Secret's `data`, values in base64. Raises ValueError with the key's name, no value."""
        values = {}
        for name in (ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN):
            try:
                # `echo` leaves a line break at the end; it is never part of a key.
                values[name] = base64.b64decode(data.get(name, ""), validate=True).decode("ascii").strip()
            except (binascii.Error, UnicodeDecodeError):
                raise ValueError(f"its key {name} is not base64 of plain text") from None
        for name in (ACCESS_KEY_ID, SECRET_ACCESS_KEY):
            if not values[name]:
                raise ValueError(f"it lacks the key {name}")
        return cls(*values.values())


class User(msgspec.Struct, frozen=True):
    """The resource that a role is assumed for. `kind`: its short name. Empty name: all of the kind."""

    namespace: str  # "" = cluster-scoped
    kind: str
    name: str


def session_name(cluster: str, user: User | None) -> str:
    """RoleSessionName: CLUSTER,NAMESPACE,KIND,NAME. CloudTrail shows it, and a trust policy may require it
    (sts:RoleSessionName). "+", which no Kubernetes name contains, marks a part that was cut or had characters
    replaced; a hash of all parts is then appended."""
    parts = [cluster or UNNAMED] + ([user.namespace, user.kind, user.name] if user is not None else [])
    valid = [_INVALID.sub("+", part) for part in parts]
    if valid == parts and len(",".join(valid)) <= MAX_CHARACTERS:
        return ",".join(valid)
    shortened = valid[:]
    while len(",".join((*shortened, h10()))) > MAX_CHARACTERS:
        longest = max(range(len(shortened)), key=lambda at: len(shortened[at]))
        shortened[longest] = shortened[longest].removesuffix("+")[:-1] + "+"
    return ",".join((*shortened, h10(*parts)))


class Identity(msgspec.Struct, frozen=True):
    """The identity whose credentials sign.

    keys              None = the standard chain of the process: the operator's own
    role_arn          assumed with those; "" = not
    external_id       part of the identity: the same role under another external ID is another identity
    sts_region        where the role is assumed; "" without a role, so that regions share an identity
    sts_endpoint_url  "" = AWS_ENDPOINT_URL_STS, else AWS's own
    user              the resource that the role is assumed for: each has its own session; None without a role
    """

    keys: Keys | None = None
    role_arn: str = ""
    external_id: str = ""
    sts_region: str = ""
    sts_endpoint_url: str = ""
    user: User | None = None

    @classmethod
    def of(cls, spec: AwsSpec, keys: Keys | None = None, user: User | None = None) -> Self:
        """The identity spec.aws asks for. `keys` are its Secret's. ValueError if only one is there."""
        if bool(spec.secret_name) != (keys is not None):
            raise ValueError("spec.aws.credentialsSecretRef and the Secret's keys must come together")
        if not spec.role_arn:
            return cls(keys)
        return cls(keys, spec.role_arn, spec.external_id, spec.region, spec.endpoint_url("sts"), user)

    @property
    def namespace(self) -> str:
        """That of the user; "" without one."""
        return self.user.namespace if self.user is not None else ""

    @property
    def source(self) -> "Identity":
        """The identity that assumes the role."""
        return Identity(self.keys)


class ClientKey(msgspec.Struct, frozen=True):
    """One client: service as boto3 names it, region, endpoint ("" = AWS_ENDPOINT_URL_*, else AWS's own).

    `once`: botocore does not retry, for calls that must not be repeated after a lost response.
    `namespace`: that of the resource, which has a limited number of the threads. Of a resource without one:
    its endpoint; "" = AWS itself, and no limit.
    """

    service: str
    region: str
    identity: Identity = Identity()
    endpoint_url: str = ""
    once: bool = False
    namespace: str = ""

    @classmethod
    def of(
        cls,
        spec: AwsSpec,
        service: str,
        keys: Keys | None = None,
        *,
        region: str = "",
        user: User | None = None,
    ) -> Self:
        """The key for `service` under spec.aws; `region` overrides the spec's."""
        identity = Identity.of(spec, keys, user)
        endpoint_url = spec.endpoint_url(service)
        namespace = (user.namespace or endpoint_url) if user is not None else ""
        return cls(service, region or spec.region, identity, endpoint_url, namespace=namespace)

    @property
    def shared(self) -> "ClientKey":
        """The key without its user, for everything that the users of a role share, such as AWS's limits."""
        shared = msgspec.structs.replace(self, namespace="") if self.namespace else self
        return shared.used_by(None)

    def used_by(self, user: User | None) -> "ClientKey":
        """The key with this user."""
        identity = self.identity
        if not identity.role_arn or identity.user == user:
            return self
        return msgspec.structs.replace(self, identity=msgspec.structs.replace(identity, user=user))
