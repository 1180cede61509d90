"""Shared by the resources of one operator: their workers, the claims to queues, the calls of gateways, keys.

Memory only. gather.py reads it, apply.py changes it. It is lost with the process.
"""

from collections.abc import Callable, Collection

import msgspec

from caretaker.api.grants import Grants
from caretaker.aws.calls import Aws
from caretaker.kube.client import KubeClient
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.admission import QueueClaims
from caretaker.s3refresh.concurrency import ConcurrencyLimiter
from caretaker.s3refresh.credentials import KeyRing
from caretaker.s3refresh.metrics import S3RefreshMetrics
from caretaker.s3refresh.object_counts import ObjectCounts
from caretaker.s3refresh.receiver import Queues
from caretaker.s3refresh.worker import Worker


class Dependencies(msgspec.Struct, frozen=True):
    """The parts of the process that the controller is made from.

    add        asks for a pass, at once if urgent
    owner      this process, in claims
    namespace  the only namespace that is served; empty = all
    """

    client: KubeClient
    aws: Aws
    grants: Grants
    metrics: S3RefreshMetrics
    add: Callable[..., None]
    owner: str
    namespace: str = ""
    egress_allow: Collection[str] = ()


class Shared:
    """See the module. `stopping`: no further call is begun. `keeps_requests`: the CRD has status.requests."""

    def __init__(self, of: Dependencies) -> None:
        self.claims = QueueClaims()
        self.queues = Queues(of.aws, self.claims.has_source)
        self.limiter = ConcurrencyLimiter()
        self.counts = ObjectCounts()
        self.key_ring = KeyRing(of.client, of.add, of.aws.retire)
        self.workers: dict[Key, Worker] = {}
        self.stopping = self.keeps_requests = False
