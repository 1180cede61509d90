"""Grants of AWS identities, queues, targets and endpoints: the setting, and the check of a spec.

Pure. Without it every user with the right to create a resource could drain any queue that the operator reads.
Inputs: the setting's text and a resource's spec. It must not look up anything.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

import msgspec

from caretaker.api.aws import ARN_FIELDS, AwsSpec, queue_arn
from caretaker.api.egress import is_ipv6

SETTING: Final = "--aws-identities (with Helm: aws.identities)"
# IAM user guide, "IAM and AWS STS quotas".
_EXTERNAL_ID: Final = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)
# The "namespace" of cluster-scoped resources, which are IMDSPolicies.
CLUSTER: Final = ""
# The services of targetARNs, as ARNs name them.
_TARGETS: Final = ("cloudfront", "sns", "sqs", "events", "lambda")


class Grant(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One entry: the identities, queues, targets and endpoints that the namespaces, or IMDSPolicies, may use,
    in any combination.

    Patterns may contain `*` and `?`. In an ARN they match within one of its fields (as in IAM), in a URL
    within scheme, host, port or path. "*" alone matches everything; as a namespace it includes IMDSPolicies.
    """

    namespaces: tuple[str, ...] = ()
    imds_policies: bool = msgspec.field(name="imdsPolicies", default=False)
    role_arns: tuple[str, ...] = msgspec.field(name="roleARNs", default=())
    external_id: str = msgspec.field(name="externalID", default="")  # required with its roles; "" = any
    queue_arns: tuple[str, ...] = msgspec.field(name="queueARNs", default=())
    target_arns: tuple[str, ...] = msgspec.field(name="targetARNs", default=())  # destinations of refreshes
    endpoint_urls: tuple[str, ...] = msgspec.field(name="endpointURLs", default=())
    own_identity: bool = False  # the operator's own credentials

    def concerns(self, namespace: str) -> bool:
        """Whether the entry applies to resources of this namespace."""
        if namespace == CLUSTER:
            return self.imds_policies or "*" in self.namespaces
        return any(glob(pattern, namespace) for pattern in self.namespaces)

    def assumes(self, role: str) -> bool:
        """Whether the entry grants this role."""
        return any(arn_matches(pattern, role) for pattern in self.role_arns)


class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The setting."""

    identities: tuple[Grant, ...]

    @classmethod
    def default(cls, operator_namespace: str) -> Self:
        """The operator's own identity to IMDSPolicies and, for every queue and target, to its own namespace.
        No roles or endpoints."""
        own = Grant((operator_namespace,), queue_arns=("*",), target_arns=("*",), own_identity=True)
        return cls((own, Grant(imds_policies=True, own_identity=True)))

    @classmethod
    def decode(cls, content: Any) -> Self:
        """The setting from a decoded YAML or JSON file. Raises ValueError with the field's path."""
        try:
            found = msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}; the form is `identities: [{{namespaces: [...], ...}}]`") from None
        for index, grant in enumerate(found.identities):
            fault = next(_faults(grant), None)
            if fault is not None:
                raise ValueError(f"identities[{index}].{fault}")
        return found


class Refusal(msgspec.Struct, frozen=True):
    """A field that the namespace may not use: its path in the resource, and a message with the remedy."""

    field: str
    namespace: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class _Need(msgspec.Struct, frozen=True):
    """One thing a spec uses, and how an entry is asked for it."""

    field: str
    granted: Callable[[Grant], bool]
    missing: str
    remedy: str
    after: str = ""  # the field of another need; if that one is denied, this one is not reported


def refusals(
    grants: Grants,
    namespace: str,
    aws: AwsSpec,
    used: Mapping[str, str] | None = None,
    at: str = "spec.aws",
) -> tuple[Refusal, ...]:
    """Why the spec of a resource in `namespace` (CLUSTER: in none) is not allowed; empty when it is.

    `at` is where `aws` stands in the resource. `used` maps the field of each queue that is read
    (spec.source.sqs.queueURL) to its URL, and that of each destination of refreshes to its ARN. One entry has
    to grant it all, so that a role granted for one queue does not open another. Credentials from the
    namespace's own Secret need no grant, nor do the queues read and the targets called with them: they are
    not the operator's. Endpoints always need one, since it is the operator's place in the network that is
    lent.
    """
    found = tuple(_needs(namespace, aws, used or {}, at))
    needs = [n for n in found if isinstance(n, _Need)]
    faults = [n for n in found if isinstance(n, Refusal)]
    entries = [grant for grant in grants.identities if grant.concerns(namespace)]
    denied = {n.field: n for n in needs if not any(map(n.granted, entries))}
    refused = [_refused(n, namespace) for n in denied.values() if n.after not in denied]
    if faults or refused:
        return (*faults, *refused)
    if not needs or any(all(n.granted(entry) for n in needs) for entry in entries):
        return ()
    apart = ", ".join(n.field for n in needs if not n.after)
    message = (
        f"{_are(namespace)} granted {apart} by different entries of {SETTING}, never by one: name "
        f"them together in one entry"
    )
    return (Refusal(needs[0].field, namespace, message),)


def _needs(namespace: str, aws: AwsSpec, used: Mapping[str, str], at: str) -> Iterator[_Need | Refusal]:
    if not aws.secret_name:
        yield from _identity(aws, at)
        for field, url in used.items():
            target = url.startswith("arn:")
            yield _target(field, url) if target else _queue(field, url, aws.region, namespace)
    for service, url in sorted(aws.endpoint_urls.items()):
        if url:
            yield _endpoint(f"{at}.endpointURLs.{service}", url, namespace)


def _identity(aws: AwsSpec, at: str) -> Iterator[_Need]:
    role, external_id = aws.role_arn, aws.external_id
    if not role:
        yield _Need(
            at,
            lambda grant: grant.own_identity,
            "the operator's own AWS identity, used where neither roleARN nor credentialsSecretRef is set",
            "set one of them, or have `ownIdentity: true` added to",
        )
        return
    field = f"{at}.roleARN"
    yield _Need(
        field,
        lambda grant: grant.assumes(role),
        role,
        "use a granted role or a credentialsSecretRef, or have it added to roleARNs of",
    )
    yield _Need(
        f"{at}.externalID",
        lambda grant: grant.assumes(role) and grant.external_id in ("", external_id),
        f"{role} with {'this' if external_id else 'no'} external ID",
        "use the externalID that is fixed by",
        after=field,
    )


def _queue(field: str, url: str, region: str, namespace: str) -> _Need | Refusal:
    try:
        arn = queue_arn(url, region)
    except ValueError as error:
        return Refusal(field, namespace, f"{url} {error}" if url else str(error))
    return _Need(
        field,
        lambda grant: any(arn_matches(p, arn) for p in grant.queue_arns),
        arn,
        "use a granted queue, or have it added to queueARNs of",
    )


def _target(field: str, arn: str) -> _Need:
    return _Need(
        field,
        lambda grant: any(arn_matches(p, arn) for p in grant.target_arns),
        arn,
        "use a granted target, or have it added to targetARNs of",
    )


def _endpoint(field: str, url: str, namespace: str) -> _Need | Refusal:
    fault = _url_fault(url)
    if fault:
        return Refusal(field, namespace, f"{fault}; write https://HOST[:PORT][/PATH]")
    return _Need(
        field,
        lambda grant: any(url_matches(p, url) for p in grant.endpoint_urls),
        url,
        "leave it out, or have it added to endpointURLs of",
    )


def _refused(need: _Need, namespace: str) -> Refusal:
    message = (
        f"{_are(namespace)} not granted {need.missing}: {need.remedy} an entry for "
        f"{namespace or 'imdsPolicies'} in the file of the operator's {SETTING}"
    )
    return Refusal(need.field, namespace, message)


def _are(namespace: str) -> str:
    return f"namespace {namespace} is" if namespace else "IMDSPolicies are"


# ---------------------------------------------------------------- patterns


def arn_matches(pattern: str, arn: str) -> bool:
    """Whether an ARN fits, field by field: `*` for the account never reaches into the resource."""
    if pattern == "*":
        return True
    wanted, found = pattern.split(":", ARN_FIELDS - 1), arn.split(":", ARN_FIELDS - 1)
    return len(wanted) == len(found) == ARN_FIELDS and all(map(glob, wanted, found))


def url_matches(pattern: str, url: str) -> bool:
    """Whether a URL fits, part by part; the path "/" and none are the same."""
    if _url_fault(url):
        return False
    if pattern == "*":
        return True
    # A port pattern of "*" is no number for urlsplit, so the parts are taken from the text.
    return all(map(glob, _url_parts(urlsplit(pattern)), _url_parts(urlsplit(url))))


def _url_parts(url: SplitResult) -> tuple[str, str, str, str]:
    host, port = _host_and_port(url.netloc)
    default = "80" if url.scheme == "http" else "443"
    return url.scheme, host.lower(), port or default, url.path.rstrip("/")


def _host_and_port(netloc: str) -> tuple[str, str]:
    host, colon, port = netloc.rpartition(":")
    return (host, port) if colon and not port.endswith("]") else (netloc, "")


# As botocore requires; it raises ValueError for others.
_HOST: Final = re.compile(r"(?=.{1,255}$)((?!-)[a-z0-9-]{1,63}(?<!-)\.)*(?!-)[a-z0-9-]{1,63}(?<!-)\.?")


def _has_host(parts: SplitResult) -> bool:
    """Whether botocore accepts the host. urlsplit() accepts other text, too, in the brackets of an IPv6
    address and behind them."""
    host = parts.hostname or ""
    if "[" in parts.netloc:
        return is_ipv6(host) and re.fullmatch(r"\[[^]]*\](:[0-9]*)?", parts.netloc) is not None
    return _HOST.fullmatch(host) is not None


def _url_fault(url: str) -> str:
    """The fault of an endpoint's URL; "" = none."""
    if not re.fullmatch(r"[!-~]+", url) or "\\" in url or "%" in url:
        return "holds a character that no endpoint's URL has"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is no number
    except ValueError as error:
        return f"is no URL ({error})"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is no http or https URL"
    if not _has_host(parts):
        return "has no host that botocore accepts"
    if "@" in parts.netloc or "?" in url or "#" in url:
        return "must have no user, query or fragment"
    return "must have no .. in its path" if ".." in parts.path.split("/") else ""


def glob(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text: `*` matches any characters, `?` one. Each part between two
    stars is searched once, from left to right, without backtracking: the cost is at most the product of both
    lengths."""
    first, *others = pattern.split("*")
    found = _part(first).match(text)
    if found is None or not others:
        return found is not None and found.end() == len(text)
    at, last = found.end(), others.pop()
    for part in others:
        found = _part(part).search(text, at)
        if found is None:
            return False
        at = found.end()
    return len(text) - len(last) >= at and _part(last).fullmatch(text, len(text) - len(last)) is not None


@functools.lru_cache(maxsize=1024)  # of patterns that each S3 event is compared with
def _part(pattern: str) -> re.Pattern[str]:
    return re.compile("".join("." if c == "?" else re.escape(c) for c in pattern), re.DOTALL)


def _faults(grant: Grant) -> Iterator[str]:
    """The faults of an entry, each beginning with its field."""
    if not grant.namespaces and not grant.imds_policies:
        yield 'namespaces: must not be empty without imdsPolicies; "*" is every namespace'
    for index, name in enumerate(grant.namespaces):
        if not re.fullmatch(r"[a-z0-9*?]([a-z0-9*?-]*[a-z0-9*?])?", name):
            yield f"namespaces[{index}]: {name} is no name of a namespace; it may hold * and ?"
    for field, services, arns in (
        ("roleARNs", ("iam",), grant.role_arns),
        ("queueARNs", ("sqs",), grant.queue_arns),
        ("targetARNs", _TARGETS, grant.target_arns),
    ):
        for index, arn in enumerate(arns):
            if fault := _arn_fault(arn, services):
                yield f"{field}[{index}]: {arn} {fault}"
    if grant.external_id and not _EXTERNAL_ID.fullmatch(grant.external_id):
        yield "externalID: must be 2 to 1224 of the characters that IAM allows, and is no pattern"
    for index, url in enumerate(grant.endpoint_urls):
        if url != "*" and not re.fullmatch(r"https?://[^/@\s?#]+(/[^\s#]*)?", url):
            yield f"endpointURLs[{index}]: {url} is no http or https URL; it may hold *"


def _arn_fault(text: str, services: tuple[str, ...]) -> str:
    """The fault of a pattern for ARNs of these services; "" = none."""
    if text == "*":
        return ""
    parts = text.split(":", ARN_FIELDS - 1)
    if len(parts) < ARN_FIELDS or parts[0] != "arn" or parts[2] not in services or not parts[5]:
        return f"is no ARN of {' or '.join(services)} in six fields; it may hold * and ?"
    if parts[2] == "cloudfront" and parts[3:5] != ["", "*"]:
        return (
            "has a region or an account, and spec.target.cloudFront names neither: write "
            "arn:aws:cloudfront::*:distribution/ID"
        )
    return ""
