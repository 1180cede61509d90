"""The Secrets that are sent as headers, and the URLs that they are sent to."""

import base64
from collections.abc import Collection

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.objects import WireMeta
from caretaker.s3refresh.targets.headers import NotSentError, Secret, headers_of

MEANT = {names.SECRET_HEADERS: "true"}


def secret(hosts: str = "", labels: dict[str, str] | None = None, **data: str) -> Secret:
    meta = WireMeta(name="token", labels=labels, annotations={names.SECRET_HOSTS: hosts})
    return Secret(meta, {key: base64.b64encode(value.encode()).decode() for key, value in data.items()})


def refusal(found: Secret, url: str, allowed: Collection[str] = ()) -> tuple[str, str]:
    """(code, message)."""
    with pytest.raises(NotSentError) as refused:
        headers_of(found, url, allowed)
    return refused.value.code, str(refused.value)


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        ("a.example", "https://a.example/purge?x=1"),
        ("a.example", "https://A.Example:443"),
        ("a.example", "https://a.example./"),
        ("A.example", "https://a.example"),
        ("a.example:443", "https://a.example"),
        ("b.example, a.example", "https://a.example"),
        ("b.example,a.example", "https://a.example"),
        ("b.example\na.example:8443", "https://a.example:8443/x"),
        ("[fd00::2]", "https://[fd00::2]/"),
        ("[fd00::2]:8443", "https://[FD00::2]:8443/"),
        ("10.1.2.3", "https://10.1.2.3"),
    ],
)
def test_it_goes_to_the_hosts_that_it_names(hosts: str, url: str) -> None:
    assert headers_of(secret(hosts, MEANT, A="b\n"), url, ()) == {"A": "b"}


@pytest.mark.parametrize(
    ("hosts", "url", "named"),
    [
        ("", "https://a.example", "add a.example to"),
        ("a.example", "https://b.example/", "add b.example to"),
        ("a.example", "https://a.example:8443/", "add a.example:8443 to"),
        ("a.example:8443", "https://a.example/", "add a.example to"),
        ("a.example", "https://x.a.example/", "add x.a.example to"),
        ("*.example", "https://a.example/", "add a.example to"),
        ("a.example", "https://a.example.b.example/", "add a.example.b.example to"),
        ("a.example", "https://b.example?@a.example/", "add b.example to"),
        ("fd00::2", "https://[fd00::2]/", "add [fd00::2] to"),
    ],
)
def test_and_to_no_other(hosts: str, url: str, named: str) -> None:
    code, message = refusal(secret(hosts, MEANT, A="b"), url)
    assert code == "HeadersRefused"
    assert message.startswith("spec.target.http.headersFrom: Secret token is not meant for")
    assert named in message


@pytest.mark.parametrize("labels", [None, {}, {names.SECRET_HEADERS: ""}, {names.SECRET_HEADERS: "false"}])
def test_a_secret_without_the_label_goes_nowhere(labels: dict[str, str] | None) -> None:
    code, message = refusal(secret("a.example", labels, A="b"), "https://a.example")
    assert (code, "label it caretaker.dev/headers=true" in message) == ("HeadersRefused", True)


@pytest.mark.parametrize(
    ("url", "allowed", "sent"),
    [
        ("http://a.example", (), False),
        ("http://a.example", ("a.example", "10.0.0.0/8"), False),
        ("http://a.example", ("http://b.example",), False),
        ("http://a.example", ("http://a.example",), True),
        ("http://a.example:80", ("http://a.example",), True),
        ("http://A.example/x", ("http://a.example",), True),
    ],
)
def test_without_tls_it_goes_where_the_operator_allows_it(
    url: str, allowed: tuple[str, ...], sent: bool
) -> None:
    found = secret("a.example", MEANT, A="b")
    if sent:
        assert headers_of(found, url, allowed) == {"A": "b"}
    else:
        code, message = refusal(found, url, allowed)
        assert code == "HeadersRefused"
        assert "https://, or name http://a.example in `caretaker run --egress-allow`" in message


def test_without_tls_the_host_is_to_be_named_by_the_secret_as_well() -> None:
    assert refusal(secret("b.example", MEANT, A="b"), "http://a.example", ("http://a.example",))
    found = secret("a.example", MEANT, A="b")
    assert refusal(found, "http://a.example:443", ("http://a.example",))


@pytest.mark.parametrize("key", ["AWS_ACCESS_KEY_ID", "AWS_X", "aws_secret_access_key"])
def test_aws_keys_are_never_sent(key: str) -> None:
    code, message = refusal(secret("a.example", MEANT, **{"A": "b", key: "s3cret"}), "https://a.example")
    assert (code, key in message, "s3cret" in message) == ("HeadersRefused", True, False)


def test_a_port_that_cannot_be_is_no_crash() -> None:
    code, message = refusal(secret("a.example", MEANT, A="b"), "https://a.example:99999")
    assert (code, message) == (
        "HeadersRefused",
        "spec.target.http.headersFrom: spec.target.http.url has an invalid port",
    )


@pytest.mark.parametrize("annotations", [None, {}])
@pytest.mark.parametrize("url", ["https://a.example", "https://xxxx"])
def test_a_secret_that_names_no_host_goes_nowhere(annotations: dict[str, str] | None, url: str) -> None:
    found = Secret(WireMeta(name="token", labels=MEANT, annotations=annotations), {"A": "Yg=="})
    assert refusal(found, url)[0] == "HeadersRefused"


@pytest.mark.parametrize(
    ("key", "value"),
    [("Host", "s3cret"), ("host", "s3cret"), ("A", "s3cret\r\nHost: b"), ("A", "s3cret\x00")],
)
def test_what_cannot_be_a_header_is_told_by_its_name(key: str, value: str) -> None:
    assert refusal(secret("a", MEANT, **{key: value}), "https://a") == (
        "HeaderInvalid",
        f"Secret token: {key} cannot be a header, by its name or by a control character",
    )


@pytest.mark.parametrize("value", ["Yg==!", "b", "/w=="])
def test_what_is_no_text_in_base64_is_told_by_its_secret(value: str) -> None:
    found = msgspec.structs.replace(secret("a", MEANT), data={"A": value})
    assert refusal(found, "https://a") == ("SecretUnreadable", "Secret token cannot be decoded")


@pytest.mark.parametrize(
    ("value", "sent"), [("b\r\n\n", "b"), ("b \t\n", "b \t"), ("BOX\n", "BOX"), ("\nb", None)]
)
def test_line_breaks_at_the_end_are_of_the_file_that_it_was_made_from(value: str, sent: str | None) -> None:
    found = secret("a", MEANT, A=value)
    if sent is None:
        assert refusal(found, "https://a")[0] == "HeaderInvalid"
    else:
        assert headers_of(found, "https://a", ()) == {"A": sent}


def test_an_empty_secret_is_no_header() -> None:
    assert (
        headers_of(Secret(WireMeta(labels=MEANT, annotations={names.SECRET_HOSTS: "a"})), "https://a", ())
        == {}
    )
