"""Configuration and credentials: where they come from, and that they never grow stale."""

import asyncio
import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.rest_config import ConfigError, RestConfig
from fakes.answers import unauthorized
from fakes.apiserver import FakeApiServer, answer, status

VERSION = "/version"
OPERATOR = Path(__file__).resolve().parents[3] / "operator"
NOWHERE = (
    "KUBECONFIG is not set, ~/.kube/config does not exist, and this is no pod "
    "(no /var/run/secrets/kubernetes.io/serviceaccount/token)"
)


class Guarded:
    """A handler that lets some tokens in."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.seen: list[str | None] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization")
        self.seen.append(token)
        known = token is not None and token.removeprefix("Bearer ") in self.tokens
        return answer({"ok": True}) if known else status(unauthorized())


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


def plugin(folder: Path, expires: str) -> dict[str, Any]:
    """A kubeconfig user whose exec plugin hands out token-1, token-2 ..., one at each call."""
    script = folder / "plugin.py"
    script.write_text(
        f"""
import json, pathlib
calls = pathlib.Path({str(folder / "calls")!r})
number = int(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text(str(number))
status = {{"token": f"token-{{number}}", "expirationTimestamp": {expires!r}}}
kind = {{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}}
print(json.dumps(kind | {{"status": status}}))
"""
    )
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
            "interactiveMode": "Never",
        }
    }


class TestToken:
    async def test_a_token_is_sent(self, api: FakeApiServer, tmp_path: Path) -> None:
        guarded = Guarded("secret")
        api.on("GET", VERSION, guarded)
        async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
            assert await client.get(VERSION) == {"ok": True}
        assert guarded.seen == ["Bearer secret"]

    async def test_no_request_is_anonymous_while_the_first_token_is_read(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded("secret")
        api.on("GET", VERSION, guarded)
        async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
            await asyncio.gather(*(client.get(VERSION) for _ in range(5)))
        assert guarded.seen == ["Bearer secret"] * 5

    async def test_a_rotated_token_file_is_read_again_when_the_old_token_is_refused(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded("old")
        api.on("GET", VERSION, guarded)
        token = tmp_path / "token"
        token.write_text("old")
        async with await KubeClient.connect(api.kubeconfig(tmp_path, {"tokenFile": str(token)})) as client:
            await client.get(VERSION)
            guarded.tokens = {"new"}
            token.write_text("new")
            assert await client.get(VERSION) == {"ok": True}
        assert guarded.seen == ["Bearer old", "Bearer old", "Bearer new"]

    async def test_a_refused_watch_reads_the_credentials_again(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded("old")
        api.on("GET", VERSION, guarded)
        token = tmp_path / "token"
        token.write_text("old")
        async with await KubeClient.connect(api.kubeconfig(tmp_path, {"tokenFile": str(token)})) as client:
            await client.get(VERSION)
            guarded.tokens = {"new"}
            token.write_text("new")
            with pytest.raises(ApiError):
                await anext(client.stream(VERSION, {}))
            await client.get(VERSION)
        assert guarded.seen[-1] == "Bearer new"

    async def test_a_credential_that_stays_refused_is_an_error_and_not_a_loop(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded()
        api.on("GET", VERSION, guarded)
        async with await KubeClient.connect(api.kubeconfig(tmp_path)) as client:
            for _ in range(3):
                with pytest.raises(ApiError) as caught:
                    await client.get(VERSION)
                assert caught.value.status == 401
        assert len(guarded.seen) == 4  # read again once, not at every request

    async def test_a_token_file_that_is_gone_changes_nothing(
        self, api: FakeApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        guarded = Guarded("good")
        api.on("GET", VERSION, guarded)
        token = tmp_path / "token"
        token.write_text("good")
        kubeconfig = api.kubeconfig(tmp_path, {"tokenFile": str(token)})
        async with await KubeClient.connect(kubeconfig) as client:
            await client.get(VERSION)
            guarded.tokens = set()
            token.unlink()
            with pytest.raises(ApiError):
                await client.get(VERSION)
            guarded.tokens = {"good"}
            await client.get(VERSION)
        assert "could not be read again" in caplog.text

    async def test_an_exec_plugin_is_run_again_when_its_token_has_expired(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded("token-2")
        api.on("GET", VERSION, guarded)
        user = plugin(tmp_path, "2001-01-01T00:00:00Z")
        async with await KubeClient.connect(api.kubeconfig(tmp_path, user)) as client:
            assert await client.get(VERSION) == {"ok": True}

    async def test_an_exec_plugin_is_not_run_while_its_token_is_good(
        self, api: FakeApiServer, tmp_path: Path
    ) -> None:
        guarded = Guarded("token-1")
        api.on("GET", VERSION, guarded)
        user = plugin(tmp_path, "2999-01-01T00:00:00Z")
        async with await KubeClient.connect(api.kubeconfig(tmp_path, user)) as client:
            for _ in range(3):
                await client.get(VERSION)
        assert (tmp_path / "calls").read_text() == "1"


UNUSABLE = {
    "a file that does not exist": None,
    "a file that is not YAML": "{",
    "an empty file": "",
    "a context that does not exist": "{current-context: x, contexts: [], clusters: [], users: []}",
}


class TestConfiguration:
    async def test_the_namespace_is_the_contexts(self, api: FakeApiServer, tmp_path: Path) -> None:
        config = await RestConfig.load(api.kubeconfig(tmp_path, namespace="team-a"))
        assert (config.namespace, config.host) == ("team-a", api.url)
        assert (await RestConfig.load(api.kubeconfig(tmp_path))).namespace == "default"

    async def test_a_namespace_given_wins(self, api: FakeApiServer, tmp_path: Path) -> None:
        kubeconfig = api.kubeconfig(tmp_path, namespace="team-a")
        async with await KubeClient.connect(kubeconfig, namespace_default="mine") as client:
            assert client.default_namespace == "mine"

    async def test_a_context_may_be_named(self, api: FakeApiServer, tmp_path: Path) -> None:
        path = api.kubeconfig(tmp_path, others={"other": "there"})
        assert (await RestConfig.load(path, "other")).namespace == "there"

    @pytest.mark.parametrize("case", UNUSABLE)
    async def test_what_cannot_be_used_is_one_error(self, tmp_path: Path, case: str) -> None:
        path, text = tmp_path / "kubeconfig", UNUSABLE[case]
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match="no access to a Kubernetes API server"):
            await RestConfig.load(str(path))

    async def test_without_a_temporary_directory_that_is_the_cause(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, inline = tmp_path / "kubeconfig", base64.b64encode(b"inline").decode()
        user = {"name": "u", "user": {"client-certificate-data": inline, "client-key-data": inline}}
        cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"current-context": "x", "contexts": [context], "clusters": [cluster], "users": [user]}
        path.write_text(json.dumps(config))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/no/such/directory"])
        with pytest.raises(ConfigError, match=r"temporary files: .*/no/such/directory") as caught:
            await RestConfig.load(str(path))
        assert "API server" not in str(caught.value)
        assert "TMPDIR" in caught.value.fix

    async def test_a_proxy_of_the_environment_is_not_used_for_loopback(
        self, api: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await RestConfig.load(api.kubeconfig(tmp_path))).request["proxy"] is None

    @pytest.mark.parametrize(
        ("no_proxy", "proxy"), [("", "http://proxy.example:3128"), (".example.com", None), ("*", None)]
    )
    async def test_a_proxy_of_the_environment_is_used_as_no_proxy_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str, proxy: str | None
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
        monkeypatch.setenv("no_proxy", no_proxy)
        api = FakeApiServer()
        api.url = "http://api.example.com:6443"
        assert (await RestConfig.load(api.kubeconfig(tmp_path))).request["proxy"] == proxy


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        pytest.param({}, NOWHERE, id="nothing is set"),
        pytest.param({"KUBECONFIG": ""}, NOWHERE, id="set to nothing", marks=pytest.mark.slow),
        pytest.param(
            {"KUBECONFIG": "/no/such:/nor/this"},
            "the kubeconfig /no/such:/nor/this names no file that exists",
            id="files that are gone",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_where_no_cluster_is_found_the_places_and_the_mend_are_told(
    env: dict[str, str], missing: str, tmp_path: Path
) -> None:
    """In a process: the kubernetes package reads KUBECONFIG once, when it is imported."""
    argv = (sys.executable, "-m", "caretaker", "status", "dtask/t")
    source = {"HOME": str(tmp_path), "PYTHONPATH": str(OPERATOR)}
    said = subprocess.run(argv, env=source | env, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == (
        f"caretaker status: no access to a Kubernetes API server: {missing}; "
        "set KUBECONFIG, or give --kubeconfig FILE and --context NAME\n"
    )
