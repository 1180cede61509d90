"""File shares of AWS Storage Gateway, refreshed by RefreshCache.

Inputs: clients for each region, the spec. Lists are paged, descriptions asked for ten shares at a time, and a
region or a share that cannot be read makes the discovery incomplete instead of making its shares unknown. A
share whose bucket is not known keeps no other one waiting.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal

import msgspec
from msgspec.structs import replace

from caretaker.api.durations import seconds_of
from caretaker.api.objects import Wire
from caretaker.api.s3refresh import MAX_TARGETS, Spec
from caretaker.aws import identity
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.pages import KeptBytes, pages
from caretaker.aws.response_check import UNREADABLE
from caretaker.aws.storagegateway import FileShare, FileShareInfo, StorageGateway
from caretaker.s3refresh import conditions
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.match import AccessPoint, Share, UnresolvedError, bucket_and_prefix
from caretaker.s3refresh.object_counts import Signer
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.resource import user_of
from caretaker.s3refresh.snapshot import Discovery, Result
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient, Tools
from caretaker.s3refresh.targets.access_points import Found

# "You can specify up to 10" (DescribeNFSFileShares); botocore does not check it.
DESCRIBED_AT_ONCE: Final = 10
DESCRIBE: Final = "DescribeFileShares"  # of NFS or SMB
# Names become ids in status, and keys that resources share. The CRD has the same forms.
_ID: Final = "[A-Za-z0-9-]{1,64}"
_ARN: Final = "arn:aws[a-z-]{0,20}:storagegateway:[a-z0-9-]{1,40}:[0-9]{12}:"
_NAMES: Final = {
    "FileShareARN": re.compile(f"{_ARN}share/{_ID}"),
    "FileShareId": re.compile(_ID),
    "GatewayARN": re.compile(f"{_ARN}gateway/{_ID}"),
}
AVAILABLE: Final = "AVAILABLE"
# The service also sends it for a gateway that it cannot reach.
GATEWAY_REFUSES: Final = "InvalidGatewayRequestException"
GATEWAYS: Final = "spec.target.storageGateway"
NO_LOOKUP: Final = "S3 is not asked with spec.aws.endpointURLs.storagegateway: leave that out"
NO_MORE: Final = (
    f"S3 is asked for {MAX_TARGETS} access points of a resource at most: name fewer in {GATEWAYS}.shares"
)
# completion.assumeAfter, where it is not given.
ASSUME_SECONDS: Final = 900.0
ASSUME_UNTRACKED_SECONDS: Final = 60.0


class Discover(Wire, frozen=True):
    """Every file share of these gateways whose bucket an event names; no gateway = all of the account."""

    gateway_arns: tuple[str, ...] = msgspec.field(default=(), name="gatewayARNs")
    protocols: tuple[Literal["NFS", "SMB"], ...] = ("NFS", "SMB")


class SharesSpec(Wire, frozen=True):
    """Exactly one of the two."""

    discover: Discover | None = None
    file_share_arns: tuple[str, ...] = msgspec.field(default=(), name="fileShareARNs")


class Completion(Wire, frozen=True):
    """How the end of a refresh is learnt."""

    queue_url: str = msgspec.field(default="", name="queueURL")
    timeout: str = "6h"
    assume_after: str | None = None  # 15m where completions are tracked, else 60s
    on_timeout: Literal["RefreshAgain", "Assume"] = "RefreshAgain"


class StorageGatewayTarget(TargetType, frozen=True):
    """RefreshCache of file shares."""

    member: ClassVar[str] = "storageGateway"
    idempotent: ClassVar[bool] = False  # RefreshCache takes no token
    of_buckets: ClassVar[bool] = False
    noun: ClassVar[str] = "file shares"
    chosen_by: ClassVar[str] = f"{GATEWAYS}.shares"
    ends_field: ClassVar[str] = f"{GATEWAYS}.completion.queueURL"

    shares: SharesSpec
    regions: tuple[str, ...] = ()
    access_point_buckets: dict[str, str] = msgspec.field(default_factory=dict)
    scope: Literal["Folders", "Share"] = "Folders"
    max_folders: int = 50
    concurrency_per_gateway: int = 1
    rediscover_every: str = "10m"
    completion: Completion = Completion()

    @property
    def named_buckets(self) -> frozenset[str]:
        return frozenset(self.access_point_buckets.values())

    @property
    def limit(self) -> int:
        """Refreshes at a time of one gateway."""
        return self.concurrency_per_gateway

    @property
    def whole(self) -> bool:
        return self.scope == "Share"

    @property
    def ends_url(self) -> str:
        return self.completion.queue_url

    @property
    def rediscover(self) -> float:
        return seconds_of("target.storageGateway.rediscoverEvery", self.rediscover_every)

    def debounce_options(self, options: DebounceOptions) -> DebounceOptions:
        """See TargetType. Without a completion queue, a refresh is assumed to end after a while."""
        completion, field = self.completion, "target.storageGateway.completion"
        tracked = bool(completion.queue_url)
        given = completion.assume_after
        assumed = ASSUME_SECONDS if tracked else ASSUME_UNTRACKED_SECONDS
        if given is not None:
            assumed = seconds_of(f"{field}.assumeAfter", given)
        return replace(
            options,
            tracked=tracked,
            assume_after=assumed,
            completion_timeout=seconds_of(f"{field}.timeout", completion.timeout),
            on_timeout=completion.on_timeout,
            max_folders=self.max_folders,
        )


TARGET_TYPE: Final = StorageGatewayTarget


def make(meant: StorageGatewayTarget, spec: Spec, tools: Tools) -> "StorageGatewayShares":
    """The target, with a client for each region."""
    regions = meant.regions or (spec.aws.region,)
    named = {
        region: identity.ClientKey.of(
            spec.aws, "storagegateway", tools.keys, region=region, user=user_of(tools.resource)
        )
        for region in regions
    }
    clients = {region: tools.aws.storagegateway(target) for region, target in named.items()}

    asker = Signer.of(spec.aws, tools.resource.namespace), tools.resource.namespace

    async def bucket_of(point: AccessPoint) -> Found:
        key = identity.ClientKey.of(
            spec.aws, "s3control", tools.keys, region=point.region, user=user_of(tools.resource)
        )
        return await tools.access_points.bucket_of(asker, tools.aws.s3control(key), point)

    endpoint = spec.aws.endpoint_url("storagegateway")
    # A tenant may run the endpoint, and name any access point that the identity may look up.
    return StorageGatewayShares(clients, meant, endpoint, None if endpoint else bucket_of)


class _Lookups:
    """Of one discovery. `unresolved`: why the bucket of a share is not known, or may be an old answer."""

    def __init__(self) -> None:
        self.asked = set[AccessPoint]()
        self.unresolved: list[str] = []
        self.late = False


class StorageGatewayShares(TargetClient):
    """For the shares of one resource. `clients` by region; `endpoint` as in Share; `bucket_of` asks S3 for
    the bucket of an access point."""

    def __init__(
        self,
        clients: Mapping[str, StorageGateway],
        spec: StorageGatewayTarget,
        endpoint: str = "",
        bucket_of: Callable[[AccessPoint], Awaitable[Found]] | None = None,
    ) -> None:
        self._clients = clients
        self._spec = spec
        self._endpoint = endpoint
        self._bucket_of = bucket_of

    async def discover(self) -> Discovery:
        """All shares of all regions. Failed reads are reported in `faults`."""
        shares: list[Share] = []
        undescribed: list[Share] = []
        faults: list[str] = []
        lookups = _Lookups()
        complete, kept = True, KeptBytes()
        for region, client in self._clients.items():
            try:
                silent: dict[str, FileShareInfo] = {}
                async for found in self._described(client, silent, kept):
                    for one in found:
                        share = await self._located(region, one, lookups)
                        (shares if share.bucket else undescribed).append(share)
                faults += [f"{arn} cannot be described: its gateway may be offline" for arn in silent]
                undescribed += [self._share(one, region, "", ready=False) for one in silent.values()]
            except AwsError as error:
                complete = False
                faults.append(conditions.describe(error, f"{GATEWAYS} in {region}"))
        there = {share.arn for share in (*shares, *undescribed)}
        missing = set(self._spec.shares.file_share_arns) - there
        if complete and missing:
            faults += [f"{arn}: {self._nowhere()}" for arn in sorted(missing)]
        faults += [f"{share.arn} is not {AVAILABLE}" for share in shares if not share.ready]
        shares.sort(key=lambda share: share.id)
        return Discovery(
            complete and bool(shares or not undescribed),
            tuple(shares),
            (*faults, *lookups.unresolved),
            tuple(undescribed),
            retry=bool(lookups.unresolved) or lookups.late,
            listed=complete,
        )

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """RefreshCache, once: a second try could take both of the gateway's slots."""
        request = claim.request
        try:
            answer = await self._clients[share.region].refresh_cache(
                FileShareARN=share.arn, FolderList=list(request.folders), Recursive=request.recursive
            )
        except AwsError as error:
            code = UNKNOWN if error.unknown_outcome else error.code
            return Result(
                share.id,
                claim.id,
                code=code or "Unknown",
                message=conditions.with_remedy(error, error.message),
                refused=_perhaps_a_folder(error),
            )
        name = answer.get("NotificationId", "")
        return Result(share.id, claim.id, notification_id=name, unnamed=not name)

    def _nowhere(self) -> str:
        return (
            f"there is no such file share in {', '.join(self._clients)}: correct "
            f"{GATEWAYS}.shares.fileShareARNs, or add its region to {GATEWAYS}.regions"
        )

    async def _located(self, region: str, one: FileShare, lookups: _Lookups) -> Share:
        """The share at its place; without a bucket if that is not known."""
        arn, ready = one["FileShareARN"], one["FileShareStatus"] == AVAILABLE
        try:
            bucket, prefix = bucket_and_prefix(one["LocationARN"], self._spec.access_point_buckets, arn)
        except UnresolvedError as error:
            lookups.unresolved.append(f"{arn}: {error}")
            return self._share(one, region, "", ready=ready)
        if not isinstance(bucket, AccessPoint):
            return self._share(one, region, bucket, prefix, ready=ready)
        found = await self._found(bucket, lookups.asked)
        lookups.late |= found.late
        if found.problem:
            lookups.unresolved.append(f"{arn}: {bucket.unknown(found.problem)}")
        share = self._share(one, region, found.bucket, prefix, ready=ready)
        return replace(share, access_point=bucket.arn) if found.bucket else share

    async def _found(self, point: AccessPoint, asked: set[AccessPoint]) -> Found:
        if self._bucket_of is None:
            return Found(problem=NO_LOOKUP)
        if point not in asked and len(asked) == MAX_TARGETS:
            return Found(problem=NO_MORE)
        asked.add(point)
        return await self._bucket_of(point)

    def _share(
        self, one: FileShare | FileShareInfo, region: str, bucket: str, prefix: str = "", *, ready: bool
    ) -> Share:
        arn, gateway = one["FileShareARN"], one.get("GatewayARN", "")
        return Share(
            id=one.get("FileShareId") or arn.rpartition("/")[2],
            arn=arn,
            bucket=bucket,
            prefix=prefix,
            group=f"{self._endpoint} {gateway}" if self._endpoint else gateway,
            region=region,
            ready=ready,
            endpoint=self._endpoint,
        )

    async def _described(
        self, client: StorageGateway, silent: dict[str, FileShareInfo], kept: KeptBytes
    ) -> AsyncIterator[Sequence[FileShare]]:
        """Describes shares, ten at a time. A batch that is refused is split; a single share that is refused
        goes into `silent`."""
        listed = {share["FileShareARN"]: share async for share in self._listed(client, kept)}
        for kind in ("NFS", "SMB"):
            arns = [arn for arn, one in listed.items() if one.get("FileShareType", "NFS") == kind]
            batches = [arns[at : at + DESCRIBED_AT_ONCE] for at in range(0, len(arns), DESCRIBED_AT_ONCE)]
            while batches:
                some = batches.pop(0)
                try:
                    yield await _describe(client, kind, some)
                except AwsError as error:
                    if error.code != GATEWAY_REFUSES:
                        raise
                    if len(some) == 1:
                        silent[some[0]] = listed[some[0]]
                    else:
                        batches += [[arn] for arn in some]

    async def _listed(self, client: StorageGateway, kept: KeptBytes) -> AsyncIterator[FileShareInfo]:
        """The shares that the spec means, of this client's region."""
        wanted, discover = set(self._spec.shares.file_share_arns), self._spec.shares.discover
        gateways = discover.gateway_arns if discover is not None else ()
        protocols = discover.protocols if discover is not None else ("NFS", "SMB")
        for gateway in gateways or ("",):
            only = {"GatewayARN": gateway} if gateway else {}
            call = client.list_file_shares
            async for page in pages(call, by="NextMarker", sent_as="Marker", kept=kept, **only):
                for one in page["FileShareInfoList"]:
                    _check_names(one)
                    meant = not wanted or one["FileShareARN"] in wanted
                    if meant and one.get("FileShareType", "NFS") in protocols:
                        yield one


async def _describe(client: StorageGateway, kind: str, arns: list[str]) -> Sequence[FileShare]:
    if kind == "NFS":
        nfs = await client.describe_nfs_file_shares(FileShareARNList=arns)
        return _all(nfs["NFSFileShareInfoList"], arns)
    smb = await client.describe_smb_file_shares(FileShareARNList=arns)
    return _all(smb["SMBFileShareInfoList"], arns)


def _all(found: Sequence[FileShare], asked: Sequence[str]) -> Sequence[FileShare]:
    """Those that were asked for. Raises if the response omits a share. Its absence does not mean deletion:
    for a share that does not exist the call fails."""
    described = {one["FileShareARN"]: one for one in found}
    missing = set(asked) - described.keys()
    if missing:
        raise _unreadable(f"it lacks {min(missing)}")
    for arn in asked:
        _check_names(described[arn])
    return [described[arn] for arn in asked]


def _check_names(one: FileShare | FileShareInfo) -> None:
    """Raises if a name has not the form of AWS. The text quotes nothing of the response."""
    for member, form in _NAMES.items():
        if (name := one.get(member)) and not form.fullmatch(str(name)):
            raise _unreadable(f"{member} has not the form of one")


def _unreadable(fault: str) -> AwsError:
    message = f"the answer cannot be read: {fault}"
    return AwsError(ErrorClass.TRANSIENT, UNREADABLE, message, service="storagegateway", operation=DESCRIBE)


def _perhaps_a_folder(error: AwsError) -> bool:
    """Whether one of the folders may be the reason of the refusal. The gateway uses one code for an invalid
    folder, for being busy and for an unreachable bucket, sometimes without a cause."""
    if error.status != 400 or error.code != "InvalidGatewayRequestException":
        return error.status == 400 and error.invalid
    message = error.message.lower()
    unclear = error.transient and not error.cause and "too many" not in message
    return error.invalid or unclear or "folder" in message
