"""Invalidations of an Amazon CloudFront distribution: one for each refresh, by the claim's id.

Inputs: a client, the spec. Without a refresh there is no call. Paths cover every object of the claim, and
rather more than less: CloudFront compares the text of a path, and some characters have two spellings.
"""

import re
from collections.abc import Collection, Iterable
from typing import ClassVar, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from caretaker.api.aws import partition_of
from caretaker.api.s3refresh import Spec
from caretaker.aws.cloudfront import CloudFront
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.debounce import BUSY, Claim
from caretaker.s3refresh.folders import EVERYTHING, ROOT, Request, parent
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.resource import user_of
from caretaker.s3refresh.snapshot import Discovery, Result
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient, Tools
from caretaker.s3refresh.targets.outcomes import failed

# "Requests for up to 15 invalidation paths in progress" with the wildcard (Amazon CloudFront developer guide,
# "Concurrent invalidation request maximum"); of others 3,000, more than a claim has.
MAX_WILDCARDS: Final = 15
# Of characters that are neither plain nor listed here, only the percent-encoded form counts (Amazon
# CloudFront developer guide, "Invalidation paths", which refers to RFC 1738).
_AS_IT_IS: Final = "/!$&'(),:;=@"
# The wildcard itself; "?" begins a query; "+" stands for a space, also in URLs that S3 gives, so that a "+"
# may be encoded; viewers encode the others or not.
_TWO_SPELLINGS: Final = re.compile(r"[*? +~^\[\]|\\]")


class CloudFrontTarget(TargetType, frozen=True):
    """CreateInvalidation for a distribution."""

    member: ClassVar[str] = "cloudFront"
    idempotent: ClassVar[bool] = True  # by its CallerReference
    by_key: ClassVar[bool] = True
    reports_end: ClassVar[bool] = False

    distribution_id: str = msgspec.field(name="distributionID")
    prefix: str = ""
    scope: Literal["Keys", "Folders", "Distribution"] = "Keys"
    max_paths: int = MAX_WILDCARDS

    @property
    def whole(self) -> bool:
        return self.scope == "Distribution"

    def called(self, region: str) -> dict[str, str]:
        """Its ARN without the account, which neither the id nor the request names."""
        arn = f"arn:{partition_of(region)}:cloudfront:::distribution/{self.distribution_id}"
        return {"spec.target.cloudFront.distributionID": arn}

    def debounce_options(self, options: DebounceOptions) -> DebounceOptions:
        most = min(self.max_paths, MAX_WILDCARDS)  # of a CRD that allowed more
        return replace(super().debounce_options(options), max_folders=most)


TARGET_TYPE: Final = CloudFrontTarget


def make(meant: CloudFrontTarget, spec: Spec, tools: Tools) -> "Invalidations":
    """The target. CloudFront has one endpoint for all regions of a partition."""
    key = ClientKey.of(spec.aws, "cloudfront", tools.keys, user=user_of(tools.resource))
    return Invalidations(tools.aws.cloudfront(key), meant, spec.filter.buckets)


class Invalidations(TargetClient):
    """For the buckets of one resource."""

    def __init__(self, client: CloudFront, spec: CloudFrontTarget, buckets: Collection[str]) -> None:
        self._client = client
        self._spec = spec
        self._buckets = buckets

    async def discover(self) -> Discovery:
        """The buckets, without a call."""
        return Discovery(complete=True, shares=of_buckets(self._buckets, self._spec.prefix, by_key=True))

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """One invalidation. It counts as done when it is accepted; CloudFront completes it within minutes."""
        paths = paths_of(claim.request, by_folder=self._spec.scope == "Folders")
        try:
            await self._client.create_invalidation(
                DistributionId=self._spec.distribution_id,
                InvalidationBatch={
                    "Paths": {"Quantity": len(paths), "Items": paths},
                    "CallerReference": claim.id,
                },
            )
        except AwsError as error:
            # One of the paths may be the reason, or their number.
            fewer = error.code == "InvalidArgument" or (error.code in BUSY and len(paths) > 1)
            return replace(failed(share, claim, error), refused=fewer)
        return Result(share.id, claim.id)


def paths_of(request: Request, *, by_folder: bool = False) -> tuple[str, ...]:
    """The invalidation paths of a claim, in the order of their text: one for each key and each tree.

    by_folder  the folder of a key in place of the key; for one without a folder also "/", and for a key that
               became a tree the folder's own paths, where index documents are
    """
    if request.scope == EVERYTHING:
        return ("/*",)
    exact, stems = set[str](), set[str]()
    for name in request.folders:
        if name == ROOT:  # the object whose key is the prefix itself
            exact.add(ROOT)
            continue
        folder = parent(name) if by_folder and not request.recursive else ROOT
        plain, *more = _TWO_SPELLINGS.split(name if folder == ROOT else folder, maxsplit=1)
        wild = more or request.recursive or by_folder
        (stems if wild else exact).add(f"/{quote(plain, safe=_AS_IT_IS)}")
        if by_folder:
            exact |= _index_paths(parent(name))
    stems = _outermost(stems)
    kept = {path for path in exact if not path.startswith(tuple(stems))}
    return tuple(sorted((*kept, *(f"{stem}*" for stem in stems))))


def _index_paths(folder: str) -> set[str]:
    """The paths under which viewers get the index document of a folder."""
    path = quote(folder, safe=_AS_IT_IS)
    return {ROOT} if folder == ROOT else {f"/{path}", f"/{path}/"}


def _outermost(stems: Iterable[str]) -> set[str]:
    """Those that begin with no other one."""
    kept: list[str] = []
    for stem in sorted(stems):
        if not kept or not stem.startswith(kept[-1]):
            kept.append(stem)
    return set(kept)
