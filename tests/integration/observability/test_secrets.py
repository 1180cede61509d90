"""No secret leaves the operator, whatever AWS and the services that it calls write into their answers.

Secrets are planted wherever the operator gets one: keys of its own, a resource's, headers, an external ID,
the token for the API server. The services echo all that they were sent, as AWS does in SignatureDoesNotMatch.
Then everything that anybody can read is searched: the log at its finest, metrics, Events, statuses.
"""

import base64
import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from awsdoubles.launch import free_port
from fakes.apiserver import FakeApiServer
from fakes.aws import Answer, Call, FakeAws, error, query_error
from testbed.admin import Json, path
from testing.refreshing import PLURAL, add_headers, grants, operator
from testing.refreshplace import Place

ROLE = "arn:aws:iam::000000000000:role/refresher"
SIGNED = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
    "Access Key and signing method. Consult the service documentation for details.\n\nThe Canonical String "
    "for this request should have been\n'POST\n/\n\n"
)


class Planted:
    """A secret for each place, and what it looks like in Base64."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def __call__(self, where: str) -> str:
        return self.found.setdefault(where, f"planted{secrets.token_hex(12)}")

    def forms(self) -> Iterator[tuple[str, str]]:
        for where, value in self.found.items():
            yield where, value
            yield f"{where} in Base64", base64.b64encode(value.encode()).decode().rstrip("=")

    def leaks(self, where: str, text: str) -> list[str]:
        return [f"{what} in {where}" for what, value in self.forms() if value in text]


def echo(call: Call) -> str:
    """All that was sent, as AWS shows it to whoever signed it wrongly."""
    headers = "\n".join(f"{name.lower()}:{value}" for name, value in call.headers.items())
    return f"{SIGNED}{headers}\n\n{call.body}'"


def refusing(call: Call) -> Answer:
    return error("SignatureDoesNotMatch", echo(call), 403)


def refusing_query(call: Call) -> Answer:
    text = echo(call).replace("&", "&amp;").replace("<", "&lt;")
    return query_error("SignatureDoesNotMatch", text)


async def mirror(request: web.Request) -> web.StreamResponse:
    """A service that shows what it was sent, in everything that it answers with."""
    shown = json.dumps(dict(request.headers))
    return web.Response(status=403, reason=shown.replace("\n", ""), text=shown, headers={"X-Echo": shown})


async def secret(place: Place, name: str, data: Mapping[str, str]) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(data)}
    await place.admin.create(path("secrets", place.namespace), body)


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws() as fake:
        for action in ("GetQueueAttributes", "ReceiveMessage", "ListFileShares"):
            fake.on(action, refusing)
        fake.on("AssumeRole", refusing_query)
        yield fake


async def test_planted_secrets_are_nowhere_to_be_read(place: Place, aws: FakeAws, tmp_path: Path) -> None:
    planted = Planted()
    env = {
        **place.aws.environment(place.gateway.url, place.sqs.url),
        "AWS_SECRET_ACCESS_KEY": planted("the operator's key"),
        "AWS_SESSION_TOKEN": planted("the operator's session token"),
    }
    args = (
        *grants(tmp_path),
        "--log-level",
        "DEBUG",
        "--egress-allow",
        "localhost,127.0.0.1,http://localhost",
    )
    running = operator(place.cluster.kubeconfig, tmp_path, env, args=args, namespace=place.namespace)
    async with FakeApiServer() as service:
        service.on("POST", "/purge", mirror)
        with running as process:
            await failing_calls(place, service, planted)
            await failing_aws(place, aws, planted)
            read = {
                "the log": "\n".join(process.lines),
                "the metrics": metrics(process.metrics_port),
                "Events": json.dumps(await place.admin.list(path("events", place.namespace))),
                "statuses": json.dumps(statuses(await place.admin.list(path(PLURAL, place.namespace)))),
            }
        sent = " ".join(
            [*(f"{call.headers} {call.body}" for call in aws.calls), *map(headers_of, service.requests)]
        )

    # They were there to be told: whoever was called has seen them, and AWS's words are shown.
    seen = (
        "a bearer token",
        "an API key",
        "a session token",
        "the operator's session token",
        "an external ID",
    )
    assert [where for where in seen if planted.found[where] not in sent] == []
    assert all("SignatureDoesNotMatch" in read[where] for where in ("the log", "statuses"))
    user = yaml.safe_load(place.cluster.kubeconfig.read_text())["users"][0]["user"]
    planted.found["the token for the API server"] = user["token"]
    assert [leak for where, text in read.items() for leak in planted.leaks(where, text)] == []


async def test_a_proxys_password_is_nowhere_to_be_read(place: Place, tmp_path: Path) -> None:
    planted = Planted()
    proxy = f"http://me:{planted('a password of a proxy')}@127.0.0.1:{free_port()}"
    env = {**place.aws.environment(place.gateway.url, place.sqs.url), "HTTP_PROXY": proxy, "NO_PROXY": ""}
    args = (*grants(tmp_path), "--log-level", "DEBUG")
    with operator(place.cluster.kubeconfig, tmp_path, env, args=args, namespace=place.namespace) as process:
        refresh = await place.create(place.aws.queue(), "proxied")
        found = await refresh.condition("QueueReachable", "False", "QueueUnreachable")
        read = {
            "the log": "\n".join(process.lines),
            "the metrics": metrics(process.metrics_port),
            "Events": json.dumps(await place.admin.list(path("events", place.namespace))),
            "the status": json.dumps((await refresh.get())["status"]),
        }
    assert "proxy" in found["message"].lower()
    assert [leak for where, text in read.items() for leak in planted.leaks(where, text)] == []


async def failing_calls(place: Place, service: FakeApiServer, planted: Planted) -> None:
    """A refresh by HTTP that is refused by somebody who shows what he got."""
    data = {"Authorization": f"Bearer {planted('a bearer token')}", "X-Api-Key": planted("an API key")}
    source = place.aws.source()
    port = service.url.rpartition(":")[2]
    url = f"http://localhost:{port}/purge"
    await add_headers(place.admin, place.namespace, "headers", url, **data)
    http = {"url": url, "headersFrom": [{"secretRef": {"name": "headers"}}]}
    refresh = await place.create(
        source.queue, "http", filter={"buckets": [source.bucket]}, target={"http": http}
    )
    await refresh.condition("Ready")
    await place.put(source.bucket, "in/a")
    await refresh.when(lambda found: "HTTP403" in json.dumps(found["status"]))


async def failing_aws(place: Place, aws: FakeAws, planted: Planted) -> None:
    """Calls to AWS that are refused in words that show what was sent: with a resource's keys, with the
    operator's own, and to assume a role."""
    data = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": planted("a secret key"),
        "AWS_SESSION_TOKEN": planted("a session token"),
    }
    await secret(place, "keys", data)
    queue, refused = place.aws.queue(), dict.fromkeys(("sqs", "storagegateway", "sts"), aws.url)
    for name, identity in (
        ("keys", {"credentialsSecretRef": {"name": "keys"}}),
        ("own", {}),
        ("role", {"roleARN": ROLE, "externalID": planted("an external ID")}),
    ):
        spec = {"region": place.aws.region, "endpointURLs": refused, **identity}
        source = {"sqs": {"queueURL": f"{aws.url}/000000000000/{name}"}}
        refresh = await place.create(queue, name, aws=spec, source=source)
        await refresh.when(lambda found: "SignatureDoesNotMatch" in json.dumps(found["status"]))


def headers_of(request: web.BaseRequest) -> str:
    return str(dict(request.headers))


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


def statuses(found: list[Json]) -> list[Json]:
    """What the operator wrote; a spec is its author's."""
    return [one.get("status", {}) for one in found]
