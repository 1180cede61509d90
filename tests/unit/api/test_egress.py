"""Which addresses may be called, and which URLs can be read in one way only."""

from collections.abc import Collection

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caretaker.api.egress import Egress, host_of

API_SERVER = ("10.96.0.1", "fd00::1")


@pytest.mark.parametrize(
    "address",
    ["203.0.113.7", "10.1.2.3", "192.168.0.1", "100.64.0.1", "2001:db8::1", "fd00::2", "::ffff:10.1.2.3"],
)
def test_public_and_private_addresses_may_be_called(address: str) -> None:
    assert Egress().refusal("host", address, API_SERVER) == ""


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("fd00:ec2::254", "EC2"),
        ("fd00:ec2::23", "EC2"),
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("::ffff:0:169.254.169.254", "link-local"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b:1::a9fe:a9fe", "cannot be told"),
        ("64:ff9b:1:a9fe:a9:fe00::", "cannot be told"),
        ("168.63.129.16", "cloud"),
        ("fd20:ce::254", "cloud"),
        ("100.100.100.200", "cloud"),
        ("::ffff:100.100.100.200", "cloud"),
        ("192.0.0.192", "cloud"),
        ("10.96.0.1", "API server"),
        ("fd00::1", "API server"),
        ("::ffff:10.96.0.1", "API server"),
    ],
)
def test_these_may_not(address: str, what: str) -> None:
    assert what in Egress().refusal("host", address, API_SERVER)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("169.254.169.254", "link-local, where metadata services are"),
        ("fd00:ec2::254", "a service of the EC2 instance, such as its metadata"),
        ("64:ff9b:1::1", "translated to an IPv4 address that cannot be told"),
        ("168.63.129.16", "a service of the machine's cloud"),
        ("10.96.0.1", "the API server's"),
    ],
)
def test_what_a_refusal_says(address: str, what: str) -> None:
    assert Egress().refusal("a.example", address, API_SERVER) == (
        f"a.example leads to {address}, which is {what}, and refused unless "
        "`caretaker run --egress-allow` names it"
    )


@pytest.mark.parametrize(
    ("allowed", "address"),
    [
        (["127.0.0.0/8"], "127.0.0.1"),
        (["127.0.0.1"], "127.0.0.1"),
        (["127.0.0.1/8"], "127.9.9.9"),
        (["127.0.0.1"], "::ffff:127.0.0.1"),
        (["::1"], "::1"),
        (["10.96.0.1"], "10.96.0.1"),
        (["host"], "169.254.169.254"),
        (["Host."], "10.96.0.1"),
    ],
    ids=str,
)
def test_unless_the_operator_allows_it(allowed: Collection[str], address: str) -> None:
    assert Egress(allowed).refusal("host", address, API_SERVER) == ""


def test_a_host_is_allowed_in_any_case_and_with_a_last_dot() -> None:
    assert Egress(["A.AX."]).refusal(host_of("http://a.ax"), "127.0.0.1", API_SERVER) == ""


@pytest.mark.parametrize(
    "allowed", [["127.0.0.0/8"], ["other"], ["host.example"], ["169.254.169.253"]], ids=str
)
def test_and_that_one_alone(allowed: Collection[str]) -> None:
    assert Egress(allowed).refusal("host", "169.254.169.254", API_SERVER)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.com", "example.com"),
        ("https://Example.COM.:8443/a/b?c=d&e=%20", "example.com"),
        ("http://my_service.ns.svc/x", "my_service.ns.svc"),
        ("http://[2001:db8::1]:80/", "2001:db8::1"),
        ("http://example.com?x", "example.com"),
        ("http://XML.example.AX./", "xml.example.ax"),
    ],
)
def test_the_host_of_a_url(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/a",
        "ftp://example.com",
        "file:///etc/passwd",
        "http://",
        "http:///a",
        "http://user:password@example.com/",
        "http://example.com@169.254.169.254/",
        "http://example.com\\@169.254.169.254/",
        "http://example.com#@169.254.169.254/",
        "http://example.com/ HTTP/1.1",
        "http://example.com/\r\nHost: other",
        "http://example.com/\n",
        "http://bücher.example/",
        "http://example.com:port/",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        host_of(url)
    assert str(raised.value) == (
        "must be http:// or https://, a host, and a path of ASCII characters; credentials go into headersFrom"
    )


@pytest.mark.parametrize(
    "host",
    [
        "a..b",
        ".a",
        ".",
        "..",
        "a..",
        "a" * 64,
        f"b.{'a' * 64}",
        "[1::2::3]",
        "[1.2.3.4]",
        "[....]",
        "[::1::]",
    ],
)
def test_a_host_that_no_resolver_takes_is_none(host: str) -> None:
    with pytest.raises(ValueError, match="has no host") as raised:
        host_of(f"https://{host}:443/")
    assert str(raised.value) == (
        "has no host: parts of a name have 1 to 63 characters, and only an IPv6 address has brackets"
    )


@given(st.lists(st.sampled_from(["", "a", "0", "-", "_", "a-1_", "x" * 63, "y" * 64]), max_size=3))
def test_a_name_is_a_host_where_a_resolver_takes_it(parts: list[str]) -> None:
    host = ".".join(parts)
    assume(0 < len(host) < 254)
    try:
        host.encode("idna")  # as getaddrinfo() does
    except UnicodeError:
        with pytest.raises(ValueError, match="has no host"):
            host_of(f"https://{host}/")
    else:
        assert host_of(f"https://{host}/") == host.removesuffix(".")


def test_a_port_that_nothing_listens_at_is_none() -> None:
    assert host_of("https://a:65535/") == "a"
    with pytest.raises(ValueError, match="has no port") as raised:
        host_of("https://a:65536/")
    assert str(raised.value) == "has no port: the last one is 65535"
