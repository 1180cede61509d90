"""The client factory: one long-lived botocore client for each identity, region, service and endpoint.

Inputs: ClientKeys. Every method blocks and belongs in a worker thread; calls.py is the front for the event
loop. It must not take an identity from the instance metadata service unless allowed to, nor open a connection
for a call that an open one could serve.

    the process's own chain  --+
    keys of a Secret         --+-->  Session  -->  clients (calls | long polls)
    AssumeRole by one of them -+
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import botocore
import botocore.loaders
import botocore.session
import msgspec
from botocore.config import Config
from botocore.credentials import CredentialResolver, Credentials, DeferredRefreshableCredentials

from caretaker import __version__
from caretaker.aws import responses
from caretaker.aws.connections import EgressCheck, Hooks, RequestBlocked
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity, Keys, session_name
from caretaker.aws.services import CONNECT_SECONDS, POLL_READ_SECONDS, READ_SECONDS, policy

# A constant: botocore builds its own for each request, a sixth of a call's CPU time (450 instead of 530 µs
# for a DeleteMessageBatch of 10, network excluded).
USER_AGENT: Final = f"caretaker/{__version__} Botocore/{botocore.__version__}"
UNUSED_SECONDS: Final = 3600.0
MOST_CLIENTS: Final = 96  # of a namespace: regions and external IDs are free text. A client takes 300 KiB
REPLACED_SECONDS: Final = 60.0  # unused for so long, one of too many is replaced: making one takes 9 to 30 ms
TOO_MANY: Final = f"the namespace uses {MOST_CLIENTS} clients; a region and service of an identity is one"
# Between two attempts to assume a role: botocore would try at every call, all day if a policy is wrong.
RENEWAL_SECONDS: Final = 5.0
# It logs a traceback for every attempt; the caller gets the error, and metrics count it.
logging.getLogger("botocore.credentials").setLevel(logging.ERROR)


class Options(msgspec.Struct, frozen=True):
    """Limits of a pool, and its sources of credentials.

    threads            calls at a time
    per_client         calls at a time of one client, and so its connections: an endpoint that hangs leaves
                       threads to others
    polls              long polls at a time
    per_namespace, polls_per_namespace  resources without a namespace have all
    endpoint_threads, endpoint_polls  the same for endpoints from a spec, in threads of their own
    endpoint_per_namespace, endpoint_polls_per_namespace  or per endpoint of resources without a namespace
    instance_identity  take credentials from the instance metadata service where there are no others
    connect_seconds, read_seconds  of one request that is no long poll; the Lease must outlive their sum
    egress_check       checks the addresses of endpoints from a spec. None: no check, for commands that a user
                       runs. Endpoints from the environment are an administrator's and are not checked
    cluster            name of the cluster, for the session names of roles; "" = not known
    """

    threads: int = 16
    per_client: int = 8
    polls: int = 280
    per_namespace: int = 4
    polls_per_namespace: int = 264
    endpoint_threads: int = 32
    endpoint_per_namespace: int = 2
    endpoint_polls: int = 128
    endpoint_polls_per_namespace: int = 16
    instance_identity: bool = False
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    egress_check: EgressCheck | None = None
    cluster: str = ""


def utc_now() -> datetime:
    """The time that credentials expire by."""
    return datetime.now(UTC)


class ClientPool:
    """Clients and sessions, created once, dropped when unused for an hour; of a namespace with too many after
    a minute, the least recently used first.

    `now` is the time for the renewal of credentials, `clock` (seconds) the time for unused clients.
    """

    def __init__(
        self,
        options: Options,
        hooks: Hooks,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._now = now
        self._clock = clock
        self._create_lock = threading.RLock()  # creation takes a second
        self._lock = threading.Lock()  # of the clients' table; held for moments
        # Shared by the users of a role; with the time of creation.
        self._sessions: dict[Identity, tuple[botocore.session.Session, float]] = {}
        # One for each user of a role; with the time of its last use.
        self._roles: dict[Identity, tuple[DeferredRefreshableCredentials, float]] = {}
        self._signer = threading.local()  # .identity: signs the calls of this thread
        self._failures: dict[Identity, tuple[float, Exception]] = {}  # until when each is raised again
        self._clients: dict[_Key, _PoolEntry] = {}

    def acquire(self, client_key: ClientKey, *, poll: bool = False) -> "PooledClient":
        """The client of a key; a context manager. The client is not closed while it is in use.

        poll: a client for long polls, whose reads time out later.

        Raises the errors of botocore: no region, no credentials, a profile that is not there.
        """
        key = (client_key.shared, poll)
        client = self._pooled(key, client_key.identity)
        if client is not None:
            return client
        with self._create_lock:
            client = self._pooled(key, client_key.identity)
            if client is not None:
                return client
            self._drop_unused(client_key.namespace)
            entry = _PoolEntry(self._create(client_key.shared, poll=poll), client_key.namespace)
            with self._lock:
                self._clients[key] = entry
                return self._acquired(entry, client_key.identity)

    def renew(self, identity: Identity) -> None:
        """Get credentials that are not about to expire: blocks on STS where a role has to be assumed.

        Raises the errors of botocore.
        """
        with self._create_lock:
            if identity.role_arn:
                credentials = self._assumed(identity)
            else:
                credentials = self._session(identity).get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()

    def fresh(self, identity: Identity) -> bool:
        """Whether renew() would return at once."""
        if not identity.role_arn:
            return True  # the process's own chain, resolved at its first use, or keys that do not expire
        role = self._roles.get(identity)
        return role is not None and not role[0].refresh_needed()

    def retire(self, keys: Keys) -> None:
        """These keys were replaced: close their clients, those in use after their calls."""
        with self._lock:
            for key, entry in list(self._clients.items()):
                if key[0].identity.keys == keys:
                    entry.retire()
                    del self._clients[key]

    def close(self) -> None:
        """Close every connection that is not in use; those in use are closed after their call."""
        with self._lock:
            for entry in self._clients.values():
                entry.retire()
            self._clients.clear()

    def release(self, entry: "_PoolEntry") -> None:
        """PooledClient.__exit__."""
        with self._lock:
            entry.in_use -= 1
            entry.used = self._clock()
            if entry.retired and not entry.in_use:
                entry.client.close()

    @contextlib.contextmanager
    def signing(self, identity: Identity) -> Iterator[None]:
        """Sign the calls of this thread for this identity. Contexts nest: assuming a role is a call within a
        call."""
        before = getattr(self._signer, "identity", None)
        self._signer.identity = identity
        try:
            yield
        finally:
            self._signer.identity = before

    def _pooled(self, key: "_Key", identity: Identity) -> "PooledClient | None":
        with self._lock:
            entry = self._clients.get(key)
            return self._acquired(entry, identity) if entry is not None else None

    def _acquired(self, entry: "_PoolEntry", identity: Identity) -> "PooledClient":
        entry.in_use += 1
        entry.used = self._clock()
        return PooledClient(self, entry, identity)

    def _drop_unused(self, namespace: str) -> None:
        """A Secret's new key or a deleted resource leaves clients that are never used again. `namespace` gets
        another one: AwsError if it has too many."""
        now = self._clock()
        since, replaced = now - UNUSED_SECONDS, now - REPLACED_SECONDS
        with self._lock:
            own = sum(entry.namespace == namespace for entry in self._clients.values())
            surplus, dropped = own - MOST_CLIENTS + 1 if namespace else 0, set[Identity]()
            for key, entry in sorted(self._clients.items(), key=lambda item: item[1].used):
                too_many = surplus > 0 and entry.namespace == namespace and entry.used < replaced
                if not entry.in_use and (entry.used < since or too_many):
                    entry.retire()
                    del self._clients[key]
                    surplus -= entry.namespace == namespace
                    dropped.add(key[0].identity)
            if surplus > 0:
                raise AwsError(ErrorClass.TRANSIENT, "TooManyClients", TOO_MANY)
            self._failures = {i: r for i, r in self._failures.items() if r[0] > since}
            for identity in [one for one, (_, used) in self._roles.items() if used < since]:
                del self._roles[identity]
            identities = {client_key.identity for client_key, _ in self._clients}
        identities |= {identity.source for identity in identities}
        for identity in self._sessions.keys() - identities:
            # A new session has no client yet: its role is being assumed.
            if identity in dropped or self._sessions[identity][1] < since:
                del self._sessions[identity]

    # ---------------------------------------------------------------- clients

    def _create(self, client_key: ClientKey, *, poll: bool) -> Any:
        egress_check = self._options.egress_check if client_key.endpoint_url else None
        config = self._config(client_key.service, poll=poll, once=client_key.once)
        if egress_check is not None:
            # A proxy resolves the name itself, so its addresses could not be checked.
            config = config.merge(Config(proxies={}))
        client = self._session(client_key.identity).create_client(
            client_key.service,
            region_name=client_key.region or None,
            endpoint_url=client_key.endpoint_url or None,
            config=config,
        )
        self._hooks.install(client, client_key.service, timed=not poll, egress_check=egress_check)
        return client

    def _config(self, service: str, *, poll: bool = False, once: bool = False) -> Config:
        options = self._options
        # Pollers repeat their calls themselves.
        attempts = 1 if once or poll else policy(service).attempts
        return Config(
            connect_timeout=options.connect_seconds,
            read_timeout=POLL_READ_SECONDS if poll else options.read_seconds,
            # Never fewer than callers: urllib3 opens a connection beyond its pool's size and drops it again.
            max_pool_connections=options.polls if poll else max(options.threads, options.endpoint_threads),
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": attempts},
            user_agent=USER_AGENT,
        )

    # ---------------------------------------------------------------- credentials

    def _session(self, identity: Identity) -> botocore.session.Session:
        if identity not in self._sessions:
            session = botocore.session.Session()
            session.register_component("data_loader", _loader())
            responses.install(session)
            # For the clients that the chain makes by itself, such as STS for a web identity.
            session.set_default_client_config(self._config("sts"))
            if identity.role_arn:
                session.register_component(
                    "credential_provider", _StaticCredentialResolver(_ThreadCredentials(self._signed))
                )
            elif identity.keys is not None:
                keys = identity.keys
                static = Credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
                session.register_component("credential_provider", _StaticCredentialResolver(static))
            elif not self._options.instance_identity:
                # A resource must not get the node's permissions. No attempts, on every path: the chain's own,
                # a profile's credential_source, the region of AWS_DEFAULTS_MODE=auto.
                session.set_config_variable("metadata_service_num_attempts", 0)
            self._sessions[identity] = session, self._clock()
        return self._sessions[identity][0]

    def _signed(self) -> Any:
        """The frozen credentials of the identity that signs in this thread."""
        return self._assumed(self._signer.identity).get_frozen_credentials()

    def _assumed(self, identity: Identity) -> DeferredRefreshableCredentials:
        """Credentials that assume the role at their first use and again 15 minutes before they end."""
        with self._lock:
            role = self._roles.get(identity)
            credentials = (
                role[0]
                if role is not None
                else DeferredRefreshableCredentials(
                    lambda: self._assume(identity), method="assume-role", time_fetcher=self._now
                )
            )
            self._roles[identity] = credentials, self._clock()
            return credentials

    def _assume(self, identity: Identity) -> dict[str, str]:
        failed = self._failures.get(identity)
        if failed is not None and self._clock() < failed[0]:
            raise failed[1].with_traceback(None)
        try:
            found = self._assume_role(identity)
        except Exception as error:  # noqa: BLE001 - raised below
            # Without its cause, whose frames have the whole answer.
            known = responses.error_from(error, service="sts", operation="AssumeRole", write=False)
            failure = known or error
        else:
            self._failures.pop(identity, None)
            return found
        self._failures[identity] = (self._clock() + RENEWAL_SECONDS, failure)
        raise failure

    def _assume_role(self, identity: Identity) -> dict[str, str]:
        endpoint_url, namespace = identity.sts_endpoint_url, identity.namespace
        source = ClientKey("sts", identity.sts_region, identity.source, endpoint_url, namespace=namespace)
        name = session_name(self._options.cluster, identity.user)
        params = {"RoleArn": identity.role_arn, "RoleSessionName": name}
        if identity.external_id:
            params["ExternalId"] = identity.external_id
        try:
            with self.acquire(source) as sts:
                found = sts.assume_role(**params)["Credentials"]
        except RequestBlocked as blocked:
            raise blocked.cause from None
        return {
            "access_key": found["AccessKeyId"],
            "secret_key": found["SecretAccessKey"],
            "token": found["SessionToken"],
            "expiry_time": found["Expiration"].isoformat(),
        }


_Key = tuple[ClientKey, bool]  # (client key, whether the client is for long polls)


@cache
def _loader() -> botocore.loaders.Loader:
    """The service models are megabytes: parsed once for all identities."""
    return botocore.loaders.create_loader()


class _PoolEntry:
    """A client, the namespace that it was made for, and the number of its users."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.in_use = 0
        self.used = 0.0
        self.retired = False

    def retire(self) -> None:
        self.retired = True
        if not self.in_use:
            self.client.close()


class PooledClient:
    """An acquired client. Inside the context, this thread's calls are signed for one identity."""

    def __init__(self, pool: ClientPool, entry: _PoolEntry, identity: Identity) -> None:
        self._pool = pool
        self._entry = entry
        self._signing = pool.signing(identity)

    def __enter__(self) -> Any:
        self._signing.__enter__()
        return self._entry.client

    def __exit__(self, *_: object) -> None:
        self._signing.__exit__(None, None, None)
        self._pool.release(self._entry)


class _ThreadCredentials(Credentials):  # type: ignore[misc]
    """Returns the credentials of the identity that signs in this thread: all users of a role share its
    clients, because one client takes 300 KiB."""

    def __init__(self, frozen: Callable[[], Any]) -> None:
        super().__init__("", "")
        self._frozen = frozen

    def get_frozen_credentials(self) -> Any:
        """botocore calls this once for each request, in the thread of the request."""
        return self._frozen()


class _StaticCredentialResolver(CredentialResolver):  # type: ignore[misc]
    """Resolves to the identity's own credentials, and to no others."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(providers=[])
        self._credentials = credentials

    def load_credentials(self) -> Credentials:
        return self._credentials
