"""AWS for the event loop: calls in a bounded pool of threads, long polls in threads of their own.

Inputs: ClientKeys and operations as boto3 names them. Every call passes its identity's token bucket, of reads
or of writes; writes pass the guard a moment before they are sent. It must not retry beyond botocore:
callers interpret failures.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, Self, cast
from weakref import WeakValueDictionary

from caretaker.aws.bucket import Limiter
from caretaker.aws.cloudfront import CloudFront
from caretaker.aws.cloudwatch import CloudWatch
from caretaker.aws.connections import Hooks, RequestBlocked
from caretaker.aws.ec2 import AutoScaling, Ec2, Ec2Writer
from caretaker.aws.ecs import Ecs
from caretaker.aws.errors import AwsError
from caretaker.aws.eventbridge import EventBridge
from caretaker.aws.functions import Lambda
from caretaker.aws.identity import ClientKey, Identity, Keys
from caretaker.aws.large_answers import Hold, ThreadSlots, hold_of_poll, reading
from caretaker.aws.responses import error_from
from caretaker.aws.s3control import S3Control
from caretaker.aws.services import Rate, api_name, is_write, policy
from caretaker.aws.session import ClientPool, Options, utc_now
from caretaker.aws.sns import Sns
from caretaker.aws.sqs import Sqs
from caretaker.aws.storagegateway import StorageGateway
from caretaker.aws.threads import DaemonPool


class Aws:
    """All calls to AWS.

    hooks  `hooks.guard` is called before each write, in the thread that sends it, with the seconds the write
           may take; it raises (NotLeader) to prevent the write. `hooks.observer` is notified of requests,
           connections and long polls, in their threads
    rates  overrides of services.policy, by service

    Calls raise AwsError and the guard's errors. A cancelled call that was already sent goes on: its outcome
    is not known.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        rates: Mapping[str, Rate] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        options = options or Options()
        self.hooks = Hooks(options.connect_seconds, options.read_seconds)
        self._clients = ClientPool(options, self.hooks, now=now)
        self._pools = _Pools(
            DaemonPool("aws-call", options.threads, per_owner=options.per_namespace),
            DaemonPool("aws-poll", options.polls, per_owner=options.polls_per_namespace),
        )
        # A tenant may run the endpoint, or the name server of its host, and delay every answer.
        self._endpoint_pools = _Pools(
            DaemonPool(
                "aws-endpoint-call", options.endpoint_threads, per_owner=options.endpoint_per_namespace
            ),
            DaemonPool(
                "aws-endpoint-poll", options.endpoint_polls, per_owner=options.endpoint_polls_per_namespace
            ),
        )
        self._limiter = Limiter()
        self._rates = dict(rates or {})
        self._per_client = options.per_client
        # One semaphore for each endpoint, for all users of a role in a namespace.
        self._semaphores = WeakValueDictionary[tuple[ClientKey, str], asyncio.Semaphore]()
        self._roles = WeakValueDictionary[Identity, asyncio.Lock]()

    async def call(self, client_key: ClientKey, operation: str, /, **params: Any) -> dict[str, Any]:
        """One operation (`describe_instances`) with AWS's own parameter names; the decoded answer."""
        key = (client_key.shared, client_key.namespace)
        async with self._semaphores.setdefault(key, asyncio.Semaphore(self._per_client)):
            return await self._call(client_key, operation, params, poll=False)

    async def poll(self, client_key: ClientKey, operation: str, /, **params: Any) -> dict[str, Any]:
        """One long poll, which the service answers after 20 s at most.

        The caller sets the service's own parameter for it (WaitTimeSeconds). Cancelling returns at once; the
        poll itself goes on to its end, and messages that it still receives are lost to us. An answer that is
        large delays other large ones until large_answers.kept() ends.
        """
        return await self._call(client_key, operation, params, poll=True)

    def autoscaling(self, client_key: ClientKey) -> AutoScaling:
        """Auto Scaling for a client key of service autoscaling."""
        return cast(AutoScaling, _Operations(self, client_key, "autoscaling"))

    def cloudwatch(self, client_key: ClientKey) -> CloudWatch:
        """CloudWatch for a client key of service cloudwatch."""
        return cast(CloudWatch, _Operations(self, client_key, "cloudwatch"))

    def cloudfront(self, client_key: ClientKey) -> CloudFront:
        """CloudFront for a client key of service cloudfront."""
        return cast(CloudFront, _Operations(self, client_key, "cloudfront"))

    def ec2(self, client_key: ClientKey) -> Ec2:
        """EC2 for a client key of service ec2."""
        return cast(Ec2, _Operations(self, client_key, "ec2"))

    def ec2_writer(self, client_key: ClientKey) -> Ec2Writer:
        """The write operations of EC2, for a client key of service ec2."""
        return cast(Ec2Writer, _Operations(self, client_key, "ec2"))

    def ecs(self, client_key: ClientKey) -> Ecs:
        """ECS for a client key of service ecs."""
        return cast(Ecs, _Operations(self, client_key, "ecs"))

    def events(self, client_key: ClientKey) -> EventBridge:
        """EventBridge for a client key of service events."""
        return cast(EventBridge, _Operations(self, client_key, "events"))

    def lambda_(self, client_key: ClientKey) -> Lambda:
        """Lambda for a client key of service lambda."""
        return cast(Lambda, _Operations(self, client_key, "lambda"))

    def s3control(self, client_key: ClientKey) -> S3Control:
        """S3 Control for a client key of service s3control."""
        return cast(S3Control, _Operations(self, client_key, "s3control"))

    def sns(self, client_key: ClientKey) -> Sns:
        """SNS for a client key of service sns."""
        return cast(Sns, _Operations(self, client_key, "sns"))

    def sqs(self, client_key: ClientKey) -> Sqs:
        """SQS for a client key of service sqs; receive_message goes to the long polls."""
        return cast(Sqs, _Operations(self, client_key, "sqs"))

    def storagegateway(self, client_key: ClientKey) -> StorageGateway:
        """Storage Gateway for a client key of service storagegateway."""
        return cast(StorageGateway, _Operations(self, client_key, "storagegateway"))

    def retire(self, keys: Keys) -> None:
        """These keys were replaced: their clients are closed, those in use after their calls."""
        self._clients.retire(keys)

    async def close(self) -> None:
        """Accept no further calls and close idle connections. Returns at once, without waiting for calls."""
        self._pools.close()
        self._endpoint_pools.close()
        self._clients.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---------------------------------------------------------------- one call

    async def _call(
        self, client_key: ClientKey, operation: str, params: dict[str, Any], *, poll: bool
    ) -> dict[str, Any]:
        await self._assume(client_key.identity)
        # Writes have their own bucket: many discoveries at once must not delay a due refresh.
        key = (
            client_key.shared.identity,
            client_key.region,
            client_key.service,
            client_key.endpoint_url,  # whose answers, such as "throttled", say nothing about AWS itself
            is_write(api_name(operation)),
        )
        rate = self._rates.get(client_key.service) or policy(client_key.service).rate
        clock = asyncio.get_running_loop().time
        # A call that is cancelled while it waits has spent its token.
        if (seconds := self._limiter.take(key, rate, clock())) > 0:
            await asyncio.sleep(seconds)
        pools = self._endpoint_pools if client_key.endpoint_url else self._pools
        try:
            hold = (hold_of_poll if poll else Hold)(client_key.namespace)
            send = partial(self._send, client_key, operation, params, reading(hold, pools.slots), poll=poll)
            return await (pools.polls if poll else pools.calls).run(send, client_key.namespace)
        except AwsError as error:
            if error.throttled:
                self._limiter.throttled(key, rate, clock())
            raise

    def _send(
        self,
        client_key: ClientKey,
        operation: str,
        params: dict[str, Any],
        reading_it: AbstractContextManager[None],
        *,
        poll: bool,
    ) -> dict[str, Any]:
        """In a worker thread. An error is raised without its cause, whose frames have the whole answer: the
        callers keep errors."""
        name, write = api_name(operation), False
        try:
            with (
                reading_it,
                self._clients.acquire(client_key, poll=poll) as client,
                self._counted(poll=poll),
            ):
                name = client.meta.method_to_api_mapping[operation]
                write = is_write(name)  # an error before means that no request was sent
                return cast(dict[str, Any], getattr(client, operation)(**params))
        except RequestBlocked as blocked:
            known = error_from(blocked.cause, service=client_key.service, operation=name, write=write)
            raised = known or _with_call(blocked.cause, client_key.service, name)
        except Exception as error:
            known = error_from(error, service=client_key.service, operation=name, write=write)
            if known is None:
                raise
            raised = known
        raise raised

    @contextlib.contextmanager
    def _counted(self, *, poll: bool) -> Iterator[None]:
        observer = self.hooks.observer if poll else None
        if observer is not None:
            observer.polls(+1)
        try:
            yield
        finally:
            if observer is not None:
                observer.polls(-1)

    async def _assume(self, identity: Identity) -> None:
        """Assume the identity's role: once for all waiting calls, in one thread."""
        if self._clients.fresh(identity):
            return
        async with self._roles.setdefault(identity, asyncio.Lock()):
            if not self._clients.fresh(identity):
                pools = self._endpoint_pools if identity.sts_endpoint_url else self._pools
                owner = identity.namespace or identity.sts_endpoint_url
                await pools.calls.run(partial(self._renew, identity, pools.slots, owner), owner)

    def _renew(self, identity: Identity, slots: ThreadSlots, owner: str) -> None:
        """In a worker thread."""
        try:
            with reading(Hold(owner), slots):
                return self._clients.renew(identity)
        except AwsError as error:  # the endpoint is refused
            raise _with_call(error, "sts", "AssumeRole") from None
        except Exception as error:
            known = error_from(error, service="sts", operation="AssumeRole", write=False)
            if known is None:
                raise
            raised = known
        raise raised


def _with_call(error: Exception, service: str, operation: str) -> Exception:
    """Adds the name of the call to an error that was raised before a request was made."""
    if isinstance(error, AwsError) and not error.service:
        error.service, error.operation = service, operation
    return error


class _Pools:
    """The threads of calls and of long polls, and the slots of their large answers. AWS and the endpoints
    from specs have their own: those delay no answer of AWS."""

    def __init__(self, calls: DaemonPool, polls: DaemonPool) -> None:
        self.calls = calls
        self.polls = polls
        self.slots = ThreadSlots(1)

    def close(self) -> None:
        self.calls.close()
        self.polls.close()


class _Operations:
    """A service's narrow Protocol, each method a call of the same name."""

    def __init__(self, aws: Aws, client_key: ClientKey, service: str) -> None:
        if client_key.service != service:
            raise ValueError(f"the client key is for {client_key.service}, not for {service}")
        self._aws = aws
        self._client_key = client_key

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_"):
            raise AttributeError(operation)
        if operation == "receive_message":
            return partial(self._aws.poll, self._client_key, operation)
        return partial(self._aws.call, self._client_key, operation)
