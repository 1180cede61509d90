"""Address and credentials of the API server: kubeconfig or service account, TLS, tokens.

Inputs: a kubeconfig and context, or the defaults of the kubernetes package. The package reads the
configuration, runs exec plugins and reloads tokens; none of its models or requests are used. It must not
send anything to the API server.
"""

import asyncio
import ipaddress
import logging
import os.path
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

# A token is read again after this time; the package's hook returns it from memory until it expires.
_TOKEN_SECONDS = 10.0
# A 401 that persists after a reload does not reload the configuration on every request.
_RELOAD_SECONDS = 10.0


class ConfigError(Exception):
    """No usable configuration was found, or it could not be read. `fix`: the action for the user."""

    def __init__(
        self, why: str, fix: str = "set KUBECONFIG, or give --kubeconfig FILE and --context NAME"
    ) -> None:
        super().__init__(why)
        self.fix = fix


@dataclass(frozen=True)
class _LoadedConfig:
    """A configuration as it was read once."""

    configuration: Any  # kubernetes.client.Configuration: host, api_key, refresh_api_key_hook
    namespace: str
    request: dict[str, Any] = field(
        default_factory=dict
    )  # ssl, server_hostname, proxy: as aiohttp takes them


class RestConfig:
    """The API server's address and credentials, kept fresh.

    host        https://..., without a trailing slash
    namespace   the context's or service account's own, else "default"
    request     keyword arguments of an aiohttp request: TLS and proxy
    generation  counts reloads; callers pass it to reload(), so that many failing requests cause one reload
    """

    def __init__(self, load: Callable[[], _LoadedConfig], config: _LoadedConfig) -> None:
        self._load = load
        self._config = config
        self._lock = asyncio.Lock()
        self._authorization: str | None = None
        self._token_known = False
        self._fresh_until = 0.0
        self._reloaded_at = 0.0
        self.generation = 0

    @classmethod
    async def load(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        service_account: str = SERVICE_ACCOUNT,
    ) -> Self:
        """Read the configuration: the kubeconfig given, else $KUBECONFIG or ~/.kube/config, else in-cluster.

        Raises ConfigError. Runs in a thread: an exec plugin may take seconds.
        """

        def load() -> _LoadedConfig:
            return _load(kubeconfig, context, service_account)

        return cls(load, await asyncio.to_thread(load))

    @property
    def host(self) -> str:
        """The server's URL."""
        return str(self._config.configuration.host).rstrip("/")

    @property
    def namespace(self) -> str:
        """The namespace to work in when none is named."""
        return self._config.namespace

    @property
    def request(self) -> dict[str, Any]:
        """TLS and proxy, as keyword arguments of an aiohttp request."""
        return self._config.request

    async def authorization(self) -> str | None:
        """The Authorization header, from a token that has not expired; None with client certificates."""
        if self._expired():
            async with self._lock:
                if self._expired():
                    await self._read_token()
        return self._authorization

    def _expired(self) -> bool:
        """Requests use the last token while a new one is read; before the first one they wait.

        A request without a token is not refused with 401: it counts as anonymous, and gets 403.
        """
        return not self._token_known or time.monotonic() >= self._fresh_until

    async def reload(self, generation: int) -> bool:
        """Read the configuration again after a 401; returns whether a retry may succeed.

        The package's hook misses a rotated token file, client certificate or CA, and an exec plugin's
        credential that ended before its time. A failed reload changes nothing.
        """
        async with self._lock:
            if generation != self.generation:
                return True
            if self._reloaded_at and time.monotonic() - self._reloaded_at < _RELOAD_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            try:
                self._config = await asyncio.to_thread(self._load)
            except ConfigError as problem:
                log.warning("credentials were refused and could not be read again: %s", problem)
                return False
            self.generation += 1
            await self._read_token()
            return True

    async def _read_token(self) -> None:
        self._fresh_until = time.monotonic() + _TOKEN_SECONDS
        configuration = self._config.configuration
        try:
            self._authorization = await asyncio.to_thread(
                configuration.get_api_key_with_prefix, "BearerToken"
            )
        # The token file is being replaced, or the plugin fails: the last token may still be valid.
        except Exception as problem:  # noqa: BLE001
            log.warning("the token could not be read: %s", problem)
        self._token_known = True


def _load(kubeconfig: str | None, context: str | None, service_account: str) -> _LoadedConfig:
    # The package takes half a second and 34 MB to import: `--help` does not import it.
    from kubernetes import config  # noqa: PLC0415
    from kubernetes.client import Configuration  # noqa: PLC0415

    configuration = Configuration()
    try:
        file = _kubeconfig_file(kubeconfig, config.KUBE_CONFIG_DEFAULT_LOCATION, service_account)
        if file:
            config.load_kube_config(file, context, configuration)
            namespace = _context_namespace(config.list_kube_config_contexts(file), context)
        else:
            namespace = _load_service_account(configuration, service_account)
        return _LoadedConfig(configuration, namespace or "default", _request_arguments(configuration))
    # The package lets yaml.YAMLError, OSError, TypeError and ssl.SSLError through besides its own.
    except Exception as problem:
        if "No usable temporary directory" in str(problem):  # tempfile's words
            why = f"certificates and keys in a kubeconfig are put into temporary files: {problem}"
            raise ConfigError(why, "set TMPDIR to a directory that can be written to") from problem
        raise ConfigError(f"no access to a Kubernetes API server: {problem}") from problem


def _existing(locations: str) -> str | None:
    """$KUBECONFIG as it stands if any of its files exists."""
    paths = (os.path.expanduser(path) for path in locations.split(os.pathsep) if path)
    return locations if any(os.path.exists(path) for path in paths) else None


def _kubeconfig_file(kubeconfig: str | None, locations: str, service_account: str) -> str | None:
    """The kubeconfig to read; None for the Pod's service account.

    Raises FileNotFoundError that names the locations; the package's own message names none.
    """
    if kubeconfig and not _existing(kubeconfig):
        raise FileNotFoundError(f"the kubeconfig {kubeconfig} names no file that exists")
    file = kubeconfig or _existing(locations)
    token = os.path.join(service_account, "token")
    if not file and not os.path.exists(token):
        raise FileNotFoundError(
            f"KUBECONFIG is not set, ~/.kube/config does not exist, and this is no pod (no {token})"
        )
    return file


def _context_namespace(found: tuple[list[dict[str, Any]], dict[str, Any]], context: str | None) -> str:
    contexts, current = found
    chosen = next((c for c in contexts if c["name"] == context), current)
    return str(chosen["context"].get("namespace") or "")


def _load_service_account(configuration: Any, folder: str) -> str:
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    InClusterConfigLoader(
        token_filename=os.path.join(folder, "token"), cert_filename=os.path.join(folder, "ca.crt")
    ).load_and_set(configuration)
    with open(os.path.join(folder, "namespace"), encoding="utf-8") as file:
        return file.read().strip()


def _request_arguments(configuration: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"proxy": _proxy(configuration)}
    if urlsplit(configuration.host).scheme != "https":
        return arguments
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    # Python 3.13 turned on RFC 5280 strictness, which the CAs of many clusters, EKS among them, do not
    # meet; client-go does not ask for it either (github.com/kubernetes-client/python/issues/2394).
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    return arguments | {"ssl": tls, "server_hostname": configuration.tls_server_name}


def _proxy(configuration: Any) -> str | None:
    """The proxy to use: always kubeconfig's; the environment's subject to NO_PROXY, and never for
    loopback."""
    proxy, url = configuration.proxy, urlsplit(configuration.host)
    if not proxy or proxy not in urllib.request.getproxies().values():
        return proxy or None
    host = url.hostname or ""
    excluded = urllib.request.proxy_bypass_environment(  # type: ignore[attr-defined]
        host, {"no": configuration.no_proxy or ""}
    )
    return None if excluded or _loopback(host) else str(proxy)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
