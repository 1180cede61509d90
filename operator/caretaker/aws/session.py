"""The client factory: one long-lived botocore client for each identity, region, service and endpoint.

Inputs: ClientKeys. Every method blocks and belongs in a worker thread; calls.py is the front for the event
loop. It must not take an identity from the instance metadata service unless told to, nor open a connection
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
from caretaker.aws import parsers
from caretaker.aws.connections import Hooks, Refused
from caretaker.aws.identity import ClientKey, Identity, session_name
from caretaker.aws.reach import Reach
from caretaker.aws.services import CONNECT_SECONDS, POLL_READ_SECONDS, READ_SECONDS, policy

# Given whole: botocore puts its own together anew for each request, a sixth of a call's CPU time (450 instead
# of 530 µs for a DeleteMessageBatch of 10 without its network).
USER_AGENT: Final = f"caretaker/{__version__} Botocore/{botocore.__version__}"
UNUSED_SECONDS: Final = 3600.0
# Between two tries to assume a role: botocore would try at every call, all day if a policy is wrong.
RENEWAL_SECONDS: Final = 5.0
# It writes a traceback at every try; the caller hears the reason, and metrics count it.
logging.getLogger("botocore.credentials").setLevel(logging.ERROR)


class Options(msgspec.Struct, frozen=True):
    """How many, and from where.

    threads            calls at a time
    per_client         calls at a time of one client, and so its connections: an endpoint that hangs leaves
                       threads to others
    polls              long polls at a time
    instance_identity  take credentials from the instance metadata service where there are no others
    connect_seconds, read_seconds  of one request that is no long poll; together what the Lease must outlive
    reach              checks the addresses of endpoints from a spec. None: no check, for commands that a user
                       runs. Endpoints from the environment are an administrator's and are not checked
    cluster            name of the cluster, for the session names of roles; "" = not known
    """

    threads: int = 16
    per_client: int = 8
    polls: int = 256
    instance_identity: bool = False
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS
    reach: Reach | None = None
    cluster: str = ""


def utc_now() -> datetime:
    """The time that credentials expire by."""
    return datetime.now(UTC)


class Clients:
    """Clients and sessions, made once, dropped when unused for an hour.

    `now` tells when credentials are to be renewed, `clock` (seconds) when a client is unused.
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
        self._making = threading.RLock()  # making one takes a second and may ask a service for credentials
        self._lock = threading.Lock()  # of the clients' table; held for moments
        self._sessions: dict[Identity, botocore.session.Session] = {}  # shared by the users of a role
        self._roles: dict[Identity, DeferredRefreshableCredentials] = {}  # one for each user of a role
        self._used: dict[Identity, float] = {}  # when each of these was last used
        self._signer = threading.local()  # .identity: signs the calls of this thread
        self._refusals: dict[Identity, tuple[float, Exception]] = {}  # until when each is believed
        self._made: dict[Identity, float] = {}  # when each session was
        self._clients: dict[_Key, _Entry] = {}

    def borrow(self, client_key: ClientKey, *, poll: bool = False) -> "Lent":
        """The client of a target, kept from being closed while it is lent; a context manager.

        poll is for long polls: they have clients of their own, whose reads time out later.

        Raises what botocore raises: no region, no credentials, a profile that is not there.
        """
        key = (client_key.shared, poll)
        lent = self._lend(key, client_key.identity)
        if lent is not None:
            return lent
        with self._making:
            lent = self._lend(key, client_key.identity)
            if lent is not None:
                return lent
            self._drop_unused()
            entry = _Entry(self._make(client_key.shared, poll=poll))
            with self._lock:
                self._clients[key] = entry
                return self._loan(entry, client_key.identity)

    def renew(self, identity: Identity) -> None:
        """Have credentials ready that last: blocks on STS where a role has to be assumed.

        Raises what botocore raises.
        """
        with self._making:
            if identity.role_arn:
                credentials = self._assumed(identity)
            else:
                credentials = self._session(identity).get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()

    def fresh(self, identity: Identity) -> bool:
        """Whether renew() would have nothing to wait for."""
        if not identity.role_arn:
            return True  # by the process's own chain, at its first use, or keys that do not end
        credentials = self._roles.get(identity)
        return credentials is not None and not credentials.refresh_needed()

    def close(self) -> None:
        """Close every connection that is not in use; those in use are closed after their call."""
        with self._lock:
            for entry in self._clients.values():
                entry.retire()
            self._clients.clear()

    def give_back(self, entry: "_Entry") -> None:
        """Lent.__exit__."""
        with self._lock:
            entry.lent -= 1
            entry.used = self._clock()
            if entry.retired and not entry.lent:
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

    def _lend(self, key: "_Key", identity: Identity) -> "Lent | None":
        with self._lock:
            entry = self._clients.get(key)
            return self._loan(entry, identity) if entry is not None else None

    def _loan(self, entry: "_Entry", identity: Identity) -> "Lent":
        entry.lent += 1
        entry.used = self._clock()
        return Lent(self, entry, identity)

    def _drop_unused(self) -> None:
        """A Secret's new key, or a resource that went, leaves clients that nobody asks for again."""
        since = self._clock() - UNUSED_SECONDS
        with self._lock:
            for key, entry in list(self._clients.items()):
                if not entry.lent and entry.used < since:
                    entry.retire()
                    del self._clients[key]
            self._refusals = {i: r for i, r in self._refusals.items() if r[0] > since}
            for identity in [one for one, used in self._used.items() if used < since]:
                del self._roles[identity], self._used[identity]
            identities = {client_key.identity for client_key, _ in self._clients}
        identities |= {identity.source for identity in identities}
        for identity in self._sessions.keys() - identities:
            # One made a moment ago has no client yet: its role is being assumed.
            if self._made[identity] < since:
                del self._sessions[identity], self._made[identity]

    # ---------------------------------------------------------------- clients

    def _make(self, client_key: ClientKey, *, poll: bool) -> Any:
        reach = self._options.reach if client_key.endpoint_url else None
        config = self._config(client_key.service, poll=poll, once=client_key.once)
        if reach is not None:
            # A proxy resolves the name itself, so its addresses could not be checked.
            config = config.merge(Config(proxies={}))
        client = self._session(client_key.identity).create_client(
            client_key.service,
            region_name=client_key.region or None,
            endpoint_url=client_key.endpoint_url or None,
            config=config,
        )
        self._hooks.install(client, client_key.service, timed=not poll, reach=reach)
        return client

    def _config(self, service: str, *, poll: bool = False, once: bool = False) -> Config:
        options = self._options
        # A poller comes back by itself.
        attempts = 1 if once or poll else policy(service).attempts
        return Config(
            connect_timeout=options.connect_seconds,
            read_timeout=POLL_READ_SECONDS if poll else options.read_seconds,
            # Never fewer than callers: urllib3 opens a connection beyond its pool's size and drops it again.
            max_pool_connections=options.polls if poll else options.threads,
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": attempts},
            user_agent=USER_AGENT,
        )

    # ---------------------------------------------------------------- credentials

    def _session(self, identity: Identity) -> botocore.session.Session:
        session = self._sessions.get(identity)
        if session is None:
            session = botocore.session.Session()
            session.register_component("data_loader", _loader())
            parsers.install(session)
            # For the clients that the chain makes by itself, such as STS for a web identity.
            session.set_default_client_config(self._config("sts"))
            if identity.role_arn:
                session.register_component("credential_provider", _Fixed(_Signers(self._signed)))
            elif identity.keys is not None:
                keys = identity.keys
                fixed = Credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
                session.register_component("credential_provider", _Fixed(fixed))
            elif not self._options.instance_identity:
                # What the node may do is not what a resource may do. No attempts, for every way there: the
                # chain's own, a profile's credential_source, the region of AWS_DEFAULTS_MODE=auto.
                session.set_config_variable("metadata_service_num_attempts", 0)
            self._made[identity] = self._clock()
            self._sessions[identity] = session
        return session

    def _signed(self) -> Any:
        """The frozen credentials of the identity that signs in this thread."""
        return self._assumed(self._signer.identity).get_frozen_credentials()

    def _assumed(self, identity: Identity) -> DeferredRefreshableCredentials:
        """Credentials that assume the role at their first use and again 15 minutes before they end."""
        with self._lock:
            self._used[identity] = self._clock()
            if identity not in self._roles:
                self._roles[identity] = DeferredRefreshableCredentials(
                    lambda: self._assume(identity), method="assume-role", time_fetcher=self._now
                )
            return self._roles[identity]

    def _assume(self, identity: Identity) -> dict[str, str]:
        refused = self._refusals.get(identity)
        if refused is not None and self._clock() < refused[0]:
            raise refused[1].with_traceback(None)
        try:
            found = self._ask_sts(identity)
        except Exception as error:
            self._refusals[identity] = (self._clock() + RENEWAL_SECONDS, error)
            raise
        self._refusals.pop(identity, None)
        return found

    def _ask_sts(self, identity: Identity) -> dict[str, str]:
        client_key = ClientKey("sts", identity.sts_region, identity.source, identity.sts_endpoint_url)
        name = session_name(self._options.cluster, identity.user)
        params = {"RoleArn": identity.role_arn, "RoleSessionName": name}
        if identity.external_id:
            params["ExternalId"] = identity.external_id
        try:
            with self.borrow(client_key) as sts:
                found = sts.assume_role(**params)["Credentials"]
        except Refused as refused:
            raise refused.cause from None
        return {
            "access_key": found["AccessKeyId"],
            "secret_key": found["SecretAccessKey"],
            "token": found["SessionToken"],
            "expiry_time": found["Expiration"].isoformat(),
        }


_Key = tuple[ClientKey, bool]  # (target, whether the client is for long polls)


@cache
def _loader() -> botocore.loaders.Loader:
    """The descriptions of services are megabytes: parsed once, whatever the number of identities."""
    return botocore.loaders.create_loader()


class _Entry:
    """A client and who uses it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.lent = 0
        self.used = 0.0
        self.retired = False

    def retire(self) -> None:
        self.retired = True
        if not self.lent:
            self.client.close()


class Lent:
    """A client on loan. While it is entered, this thread's calls are signed for one identity."""

    def __init__(self, clients: Clients, entry: _Entry, identity: Identity) -> None:
        self._clients = clients
        self._entry = entry
        self._signing = clients.signing(identity)

    def __enter__(self) -> Any:
        self._signing.__enter__()
        return self._entry.client

    def __exit__(self, *_: object) -> None:
        self._signing.__exit__(None, None, None)
        self._clients.give_back(self._entry)


class _Signers(Credentials):  # type: ignore[misc]
    """Returns the credentials of the identity that signs in this thread: all users of a role share its
    clients, because one client takes 300 KiB."""

    def __init__(self, frozen: Callable[[], Any]) -> None:
        super().__init__("", "")
        self._frozen = frozen

    def get_frozen_credentials(self) -> Any:
        """botocore calls this once for each request, in the thread of the request."""
        return self._frozen()


class _Fixed(CredentialResolver):  # type: ignore[misc]
    """A chain of one: what an identity says, never something found on the way."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(providers=[])
        self._credentials = credentials

    def load_credentials(self) -> Credentials:
        return self._credentials
