"""From spec.target to a Target: each module makes its own, or says that it is not meant.

Adding a target is adding its module here and its member to the spec.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.aws import identity
from caretaker.aws.calls import Aws
from caretaker.aws.identity import Keys
from caretaker.s3refresh.targets import Target, storagegateway


class Tools(msgspec.Struct, frozen=True):
    """What targets are made of."""

    aws: Aws
    keys: Keys | None  # of spec.aws.credentialsSecretRef


def _gateway(spec: Spec, tools: Tools) -> Target | None:
    meant = spec.target.storage_gateway
    if meant is None:
        return None
    return storagegateway.StorageGatewayShares(
        {
            region: tools.aws.storagegateway(
                identity.Target.of(spec.aws, "storagegateway", tools.keys, region=region)
            )
            for region in meant.regions or (spec.aws.region,)
        },
        meant,
    )


_MAKERS: Final[tuple[Callable[[Spec, Tools], Target | None], ...]] = (_gateway,)


def make(spec: Spec, tools: Tools) -> Target:
    """The target that the spec means. ValueError when it means none."""
    found = next((made for maker in _MAKERS if (made := maker(spec, tools)) is not None), None)
    if found is None:
        raise ValueError("spec.target: must name what to refresh, storageGateway for one")
    return found
