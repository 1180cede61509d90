"""From spec.target to a Target: each module makes its own, or says that it is not meant.

Adding a target is adding its module here and its member to the spec.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec
from caretaker.aws.calls import Aws
from caretaker.aws.identity import Keys
from caretaker.kube.client import KubeClient
from caretaker.s3refresh.credentials import secret_data
from caretaker.s3refresh.targets import Target, http, job, storagegateway


class Tools(msgspec.Struct, frozen=True):
    """What targets are made of."""

    aws: Aws
    client: KubeClient
    resource: WireMeta
    keys: Keys | None = None  # of spec.aws.credentialsSecretRef
    egress_allow: Collection[str] = ()  # what the http target may call though it is refused otherwise


def _gateway(spec: Spec, tools: Tools) -> Target | None:
    meant = spec.target.storage_gateway
    return storagegateway.of(spec.aws, meant, tools.aws, tools.keys) if meant is not None else None


def _job(spec: Spec, tools: Tools) -> Target | None:
    meant = spec.target.job
    return job.Jobs(tools.client, tools.resource, meant, spec.filter.buckets) if meant is not None else None


def _http(spec: Spec, tools: Tools) -> Target | None:
    meant = spec.target.http
    if meant is None:
        return None
    return http.HttpCalls(
        meant,
        spec.filter.buckets,
        partial(secret_data, tools.client, tools.resource.namespace),
        api_server=tools.client.host,
        allowed=tools.egress_allow,
        guard=tools.client.guard,
    )


_MAKERS: Final[tuple[Callable[[Spec, Tools], Target | None], ...]] = (_gateway, _job, _http)


def make(spec: Spec, tools: Tools) -> Target:
    """The target that the spec means. ValueError when it means none."""
    found = next((made for maker in _MAKERS if (made := maker(spec, tools)) is not None), None)
    if found is None:
        raise ValueError("spec.target: must name what to refresh, storageGateway for one")
    return found
