"""What stands in the Secrets that a spec names.

Inputs: a client that may read Secrets in the resource's namespace, by a Role there. No key is logged, kept in
status or put into a message.
"""

import base64
import binascii

import msgspec

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.aws.identity import Keys
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.s3refresh.snapshots import Refusal

FIELD = "spec.aws.credentialsSecretRef.name"


class _Secret(msgspec.Struct):
    data: dict[str, str] | None = None


async def keys_of(client: KubeClient, namespace: str, name: str) -> Keys | Refusal:
    """The Secret's keys, or why there are none. Raises ApiError when the API server does not answer."""
    try:
        secret = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{name}", _Secret)
    except ApiError as error:
        if error.not_found:
            return _refusal(f"there is no Secret {name} in namespace {namespace}")
        if error.missing_permission is not None:
            return _refusal(
                f"the operator may not read Secret {name}: bind a Role that lets it get this Secret "
                f"in namespace {namespace}"
            )
        raise
    try:
        return Keys.from_secret(secret.data or {})
    except ValueError as error:
        return _refusal(f"Secret {name}: {error}")


async def secret_data(client: KubeClient, namespace: str, name: str) -> dict[str, str]:
    """A Secret's keys with their decoded values. Raises ApiError, or ValueError with the key's name."""
    secret = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{name}", _Secret)
    found = {}
    for key, value in (secret.data or {}).items():
        try:
            found[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError(f"key {key} is not base64 of plain text") from None
    return found


def _refusal(message: str) -> Refusal:
    return Refusal(Reason.CREDENTIALS_UNAVAILABLE, f"{FIELD}: {message}")
