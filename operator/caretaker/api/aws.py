"""`spec.aws` and the queues beside it: the struct that every kind shares, queue URLs and ARNs.

Pure data. Field semantics are documented in the CRDs; grants.py decides whether a namespace may use an
identity, a queue or an endpoint.
"""

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

# An ARN has six fields (AWS General Reference, "Amazon Resource Names"); the last may hold ':' itself.
ARN_FIELDS: Final = 6
# Queue names: Amazon SQS API reference, CreateQueue.
_QUEUE_PATH: Final = re.compile(r"/(\d{12})/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
_AMAZON: Final = re.compile(r"\.(amazonaws\.com(\.cn)?|api\.aws|api\.amazonwebservices\.com\.cn)")
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_PARTITIONS: Final = (
    ("cn-", "aws-cn"),
    ("us-gov-", "aws-us-gov"),
    ("us-iso-", "aws-iso"),
    ("us-isob-", "aws-iso-b"),
    ("eusc-", "aws-eusc"),
)


class SecretRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Secret in the resource's own namespace; an empty name is none."""

    name: str = ""


class AwsSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`spec.aws`: identity, region and endpoints of calls to AWS. Empty values count as not given.

    endpoint_urls is keyed by service as boto3 names it (sqs, storagegateway, sts).
    """

    region: str = ""
    role_arn: str = msgspec.field(name="roleARN", default="")
    external_id: str = msgspec.field(name="externalID", default="")
    credentials_secret_ref: SecretRef = SecretRef()
    endpoint_urls: dict[str, str] = msgspec.field(name="endpointURLs", default_factory=dict)

    @property
    def secret_name(self) -> str:
        """The Secret that holds the credentials; "" for none."""
        return self.credentials_secret_ref.name

    def endpoint_url(self, service: str) -> str:
        """The spec's endpoint of `service`; "" = that of AWS_ENDPOINT_URL_*, else AWS's own."""
        return self.endpoint_urls.get(service, "")


def partition_of(region: str) -> str:
    """The ARN partition a region lies in: aws, aws-cn, aws-us-gov ..."""
    return next((name for prefix, name in _PARTITIONS if region.startswith(prefix)), "aws")


def queue_arn(url: str, region: str) -> str:
    """The ARN of the queue that a request for `url`, sent in `region`, reaches.

    SQS takes account and name from the URL's path, the region from where the request is sent: the URL's own
    host decides nothing. Raises ValueError with a correction for a path that is not /ACCOUNT/NAME, or an
    amazonaws.com host of another region.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    found = _QUEUE_PATH.fullmatch(parts.path)
    if found is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a queue URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
    if not region:
        raise ValueError("the region is not known: set aws.region")
    other = _region_in(parts.hostname)
    if other not in ("", region):
        raise ValueError(f"is a queue in {other}, and aws.region is {region}: make them agree")
    return f"arn:{partition_of(region)}:sqs:{region}:{found[1]}:{found[2]}"


def _region_in(host: str) -> str:
    """The region an AWS host name names; "" for any other host."""
    if not _AMAZON.search(host):
        return ""
    return next((label for label in host.split(".") if _REGION.fullmatch(label)), "")
