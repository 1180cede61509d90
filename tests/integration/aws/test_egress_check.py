"""Endpoints from a spec: their addresses are checked when the connection is made."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from caretaker.aws.calls import Aws
from caretaker.aws.connections import EgressCheck
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey, Identity
from caretaker.aws.session import Options
from fakes.aws import Answer, FakeAws, assumed
from testbed import pki

pytestmark = pytest.mark.usefixtures("environment")

METADATA = "169.254.169.254"
API_SERVER = "192.0.2.1"
ROLE = "arn:aws:iam::123456789012:role/team-a"


def reaching(*allowed: str, api_server: str = API_SERVER) -> Aws:
    return Aws(Options(threads=2, per_client=2, egress_check=EgressCheck(allowed, api_server)))


def at(url: str, service: str = "sqs") -> ClientKey:
    return ClientKey(service, "eu-west-1", endpoint_url=url)


def resolving(monkeypatch: pytest.MonkeyPatch, **answers: list[list[str]]) -> list[str]:
    """A name server: each lookup of `name.test` returns its next answer. Returns the names looked up."""
    real, asked = socket.getaddrinfo, []

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(host).removesuffix(".test")
        if name not in answers:
            return real(host, port, *args, **kwargs)
        asked.append(name)
        turn = answers[name][min(asked.count(name), len(answers[name])) - 1]
        return [found for address in turn for found in real(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


async def refused(aws: Aws, target: ClientKey) -> AwsError:
    async with aws:
        with pytest.raises(AwsError) as raised:
            await aws.call(target, "get_queue_url", QueueName="q")
    return raised.value


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "LOCALHOST.", "127.1", "2130706433", "0x7f.1", "[::1]", "0.0.0.0"]
)
async def test_what_target_http_may_not_call_aws_may_not_either(fake: FakeAws, host: str) -> None:
    found = await refused(reaching(), at(f"http://{host}:{fake.port}"))
    assert (found.code, found.invalid, found.status) == ("AddressRefused", True, 0)
    assert (found.service, found.operation) == ("sqs", "GetQueueUrl")
    assert found.message.startswith("endpointURLs: ")
    assert "refused unless `caretaker run --egress-allow` names it" in found.message
    assert fake.connections == 0


@pytest.mark.parametrize("host", [METADATA, "[fd00:ec2::254]", "metadata.test", API_SERVER, "api.test"])
async def test_nor_metadata_services_and_the_api_server(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    resolving(monkeypatch, metadata=[[METADATA]], api=[[API_SERVER]], kubernetes=[[API_SERVER]])
    aws = reaching(api_server="kubernetes.test")
    assert (await refused(aws, at(f"http://{host}/"))).code == "AddressRefused"


@pytest.mark.parametrize("service", ["storagegateway", "ec2", "ecs", "sts", "autoscaling", "cloudwatch"])
async def test_the_rule_is_every_services(fake: FakeAws, service: str) -> None:
    methods = {
        "storagegateway": "list_file_shares",
        "ec2": "describe_instances",
        "ecs": "list_clusters",
        "sts": "get_caller_identity",
        "autoscaling": "describe_auto_scaling_groups",
        "cloudwatch": "list_metrics",
    }
    async with reaching() as aws:
        with pytest.raises(AwsError) as raised:
            await aws.call(at(fake.url, service), methods[service])
    assert (raised.value.code, fake.connections) == ("AddressRefused", 0)


async def test_a_long_poll_is_judged_as_well(fake: FakeAws) -> None:
    async with reaching() as aws:
        with pytest.raises(AwsError, match="AddressRefused"):
            await aws.sqs(at(fake.url)).receive_message(QueueUrl="https://x", WaitTimeSeconds=20)
    assert fake.connections == 0


async def test_the_endpoint_at_which_a_role_is_assumed_is_judged(fake: FakeAws) -> None:
    identity = Identity(None, ROLE, "", "eu-west-1", fake.url)
    found = await refused(reaching(), ClientKey("sqs", "eu-west-1", identity))
    assert (found.code, found.service, found.operation) == ("AddressRefused", "sts", "AssumeRole")
    assert fake.connections == 0
    fake.on("AssumeRole", assumed("ASIA1", "2030-01-01T00:00:00Z"))
    async with reaching("127.0.0.1") as aws:
        await aws.call(ClientKey("sqs", "eu-west-1", identity), "get_queue_url", QueueName="q")
    assert fake.actions() == ["AssumeRole", "GetQueueUrl"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1", "127.0.0.0/8"), ("localhost", "localhost"), ("LocalHost.", "localhost")],
)
async def test_an_administrator_may_allow_it(fake: FakeAws, host: str, allowed: str) -> None:
    async with reaching(allowed) as aws:
        await aws.call(at(f"http://{host}:{fake.port}"), "get_queue_url", QueueName="q")
    assert fake.actions() == ["GetQueueUrl"]


async def test_endpoints_of_the_environment_are_an_administrators(fake: FakeAws) -> None:
    async with reaching() as aws:
        await aws.call(at(""), "get_queue_url", QueueName="q")
    assert fake.actions() == ["GetQueueUrl"]


async def test_what_is_judged_is_what_is_connected_to(fake: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is not looked up twice: the second lookup could return another address (DNS rebinding)."""
    asked = resolving(monkeypatch, rebound=[["127.0.0.1"], [METADATA]])
    fake.on("GetQueueUrl", Answer(headers={"Connection": "close"}))
    async with reaching("127.0.0.1") as aws:
        target = at(f"http://rebound.test:{fake.port}")
        await aws.call(target, "get_queue_url", QueueName="q")
        assert asked == ["rebound"]
        assert fake.calls[0].headers["Host"] == f"rebound.test:{fake.port}"
        with pytest.raises(AwsError, match="AddressRefused"):
            await aws.call(target, "get_queue_url", QueueName="q")
    assert len(fake.calls) == 1


async def test_of_several_addresses_only_those_that_may_be_called_are(
    fake: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, both=[[METADATA, "127.0.0.2", "127.0.0.1"]])
    async with reaching("127.0.0.1", "127.0.0.2") as aws:  # nobody listens on the second
        await aws.call(at(f"http://both.test:{fake.port}"), "get_queue_url", QueueName="q")
        assert fake.actions() == ["GetQueueUrl"]
    resolving(monkeypatch, other=[["127.0.0.1", "127.0.0.2"]])
    async with reaching("127.0.0.2") as aws:
        with pytest.raises(AwsError, match="Unreachable"):
            await aws.call(at(f"http://other.test:{fake.port}"), "get_queue_url", QueueName="q")
    assert len(fake.calls) == 1


async def test_a_name_that_nobody_knows_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    for aws in (reaching(), reaching(api_server="nobody.invalid")):
        found = await refused(aws, at("http://nobody.invalid/"))
        assert (found.code, found.transient, found.unknown_outcome) == ("Unreachable", True, False)


async def test_nothing_is_called_while_the_api_server_is_not_known(fake: FakeAws) -> None:
    aws = reaching("127.0.0.1", api_server="nobody.invalid")
    assert (await refused(aws, at(fake.url))).code == "Unreachable"
    assert fake.connections == 0


async def test_no_proxy_is_used(fake: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would connect to addresses that we refuse."""
    with FakeAws() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with reaching("127.0.0.1") as aws:
            await aws.call(at(fake.url), "get_queue_url", QueueName="q")
        assert (await refused(reaching(), at(f"http://{METADATA}/"))).code == "AddressRefused"
        assert (proxy.connections, len(fake.calls)) == (0, 1)


async def test_a_redirect_is_not_followed(fake: FakeAws) -> None:
    with FakeAws() as other:
        fake.on("GetQueueUrl", Answer("{}", 307, {"Location": other.url}))
        found = await refused(reaching("127.0.0.1"), at(fake.url))
        assert (found.code, found.status, other.connections) == ("UnreadableAnswer", 307, 0)


async def test_the_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, localhost=[["127.0.0.1"]], other=[["127.0.0.1"]])
    made = pki.write(tmp_path / "pki")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(made.ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)
    named: list[str] = []
    context.sni_callback = lambda _socket, name, _context: named.append(name)  # type: ignore[assignment]
    with FakeAws(context) as server:
        async with reaching("127.0.0.1") as aws:
            await aws.call(at(f"https://localhost:{server.port}"), "get_queue_url", QueueName="q")
            with pytest.raises(AwsError, match="CertificateNotTrusted: its certificate is for other names"):
                await aws.call(at(f"https://other.test:{server.port}"), "get_queue_url", QueueName="q")
    assert set(named) == {"localhost", "other.test"}
    assert len(server.calls) == 1
