"""A Kubernetes Job for each refresh, named by its claim: created twice, it is one.

Inputs: a client, the resource, the spec. A Job is known by its name, which is the notification id. It deletes
no Job: ttlSecondsAfterFinished and the owner's deletion do.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from caretaker.api import names
from caretaker.api.hashing import h10
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec
from caretaker.api.template import wrong_type
from caretaker.api.wire_conditions import WireCondition
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.folders import ROOT, Request
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.resource import KIND
from caretaker.s3refresh.snapshot import Discovery, End, Result
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient, Tools
from caretaker.s3refresh.targets.payload import payload_of

STRICT_DRY_RUN: Final = {"dryRun": "All", "fieldValidation": "Strict"}
_NAME_PART: Final = 40
_TRIAL: Final = Claim("dry-run", "", 0.0, Request((ROOT,), recursive=True), 0.0)


class JobTarget(TargetType, frozen=True):
    """A Kubernetes Job for each refresh: a pod template, and fields of JobSpec; None = the Job's default."""

    member: ClassVar[str] = "job"
    idempotent: ClassVar[bool] = True

    template: dict[str, Any]
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int = 3600
    prefix: str = ""


TARGET_TYPE: Final = JobTarget


def make(meant: JobTarget, spec: Spec, tools: Tools) -> "Jobs":
    """The target, which asks the API server."""
    return Jobs(tools.client, tools.resource, meant, spec.filter.buckets)


class _Status(msgspec.Struct):
    conditions: list[WireCondition] | None = None


class _Job(msgspec.Struct):
    """The part of a batch/v1 Job that is read."""

    metadata: WireMeta
    status: _Status = msgspec.field(default_factory=_Status)


class Jobs(TargetClient):
    """For the buckets of one resource. Jobs stand in the resource's namespace."""

    def __init__(
        self, client: KubeClient, resource: WireMeta, spec: JobTarget, buckets: Collection[str]
    ) -> None:
        self._client = client
        self._resource = resource
        self._spec = spec
        self._buckets = buckets
        self._path = f"/apis/batch/v1/namespaces/{resource.namespace}/jobs"
        self._invalid = wrong_type(spec.template, "spec.target.job.template")

    async def discover(self) -> Discovery:
        """The buckets. None is ready while the API server rejects the Job as invalid in a dry run."""
        blocked = ""
        try:
            fault, invalid = self._invalid, bool(self._invalid)
            if not invalid:
                body = build(self._resource, self._spec, Share("", "", ""), _TRIAL)
                await self._client.create(self._path, body, dict, params=STRICT_DRY_RUN)
        except ApiError as error:
            if error.transient:  # it said nothing of the Job: asked again soon
                shares = of_buckets(self._buckets, self._spec.prefix)
                return Discovery(shares=shares, faults=(_api_message(error),))
            # A refusal for any other reason, such as a quota, may have passed when a Job is due.
            invalid, fault = error.status in (400, 422), _api_message(error)
            blocked = fault if error.terminating else ""
        shares = of_buckets(self._buckets, self._spec.prefix, ready=not invalid)
        return Discovery(complete=True, shares=shares, faults=(fault,) if fault else (), blocked=blocked)

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """Create the claim's Job, or find that it is there."""
        if self._invalid:
            return Result(share.id, claim.id, code="Invalid", message=self._invalid)
        name = job_name(self._resource, claim.id)
        try:
            await self._client.create(self._path, build(self._resource, self._spec, share, claim), _Job)
        except ApiError as error:
            if code := await self._refused(name, claim, error):
                return Result(share.id, claim.id, code=code, message=error.message)
        return Result(share.id, claim.id, notification_id=name)

    async def _refused(self, name: str, claim: Claim, error: ApiError) -> str:
        """Why there is no Job; "" if there is one all the same: a quota is looked at before the name."""
        if error.status == 0 or error.status >= 500:
            return UNKNOWN
        try:
            found = await self._client.get(f"{self._path}/{name}", _Job)
        except ApiError as missing:
            return (error.reason or f"HTTP{error.status}") if missing.not_found else UNKNOWN
        labels, owners = found.metadata.labels or {}, found.metadata.owner_references or []
        ours = labels.get(names.LABEL_CLAIM) == claim.id and self._resource.uid in {o.uid for o in owners}
        return "" if ours else error.reason

    async def ended(self, notification_ids: Collection[str]) -> Sequence[End]:
        """The Jobs that have finished or are gone. A Job that cannot be read now is asked for again."""
        found = await asyncio.gather(*(self._end(name) for name in notification_ids))
        return [end for end in found if end is not None]

    async def _end(self, name: str) -> End | None:
        try:
            job = await self._client.get(f"{self._path}/{name}", _Job)
        except ApiError as error:
            if not error.not_found:
                return None
            return End(name, "JobDeleted", f"Job {name} was deleted before it was seen to finish")
        for condition in job.status.conditions or ():
            if condition.status == "True" and condition.type == "Complete":
                return End(name)
            if condition.status == "True" and condition.type == "Failed":
                return End(name, condition.reason or "JobFailed", f"Job {name}: {condition.message}")
        return None


def job_name(resource: WireMeta, claim_id: str) -> str:
    """`<resource, cut to 40, dots to dashes>-<h10(its UID, claim)>`, at most 51 characters."""
    return f"{resource.name[:_NAME_PART].replace('.', '-').rstrip('-')}-{h10(resource.uid, claim_id)}"


def build(resource: WireMeta, spec: JobTarget, share: Share, claim: Claim) -> dict[str, Any]:
    """The body of the POST that makes this claim's call."""
    template_meta: dict[str, Any] = spec.template.get("metadata") or {}
    pod_spec: dict[str, Any] = dict(spec.template.get("spec") or {})
    pod_spec["restartPolicy"] = pod_spec.get("restartPolicy") or "Never"
    payload = {"name": names.ENV_PAYLOAD, "value": payload_of(share, claim).decode()}
    for group in ("initContainers", "containers"):
        if pod_spec.get(group):
            pod_spec[group] = [_with_env(container, payload) for container in pod_spec[group]]
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_REFRESH: resource.name,
        names.LABEL_CLAIM: claim.id,
    }
    job_spec: dict[str, Any] = {
        "ttlSecondsAfterFinished": spec.ttl_seconds_after_finished,
        "backoffLimit": spec.backoff_limit,
        "activeDeadlineSeconds": spec.active_deadline_seconds,
        "template": {
            "metadata": {**template_meta, "labels": {**(template_meta.get("labels") or {}), **labels}},
            "spec": pod_spec,
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(resource, claim.id),
            "namespace": resource.namespace,
            "labels": labels,
            "ownerReferences": [_owner_reference(resource)],
        },
        "spec": {name: value for name, value in job_spec.items() if value is not None},
    }


def _owner_reference(resource: WireMeta) -> dict[str, Any]:
    """Deletes Jobs along with the resource. To block its deletion would take a right on its finalizers."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": KIND,
        "name": resource.name,
        "uid": resource.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _with_env(container: Mapping[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Ours first, so that the template's variables may refer to it; a variable of that name in the template
    wins."""
    own = container.get("env") or []
    taken = ours["name"] in {variable.get("name") for variable in own}
    return {**container, "env": [*([] if taken else [ours]), *own]}


def _api_message(error: ApiError) -> str:
    """A refusal, with paths as the user wrote them: the Job's `spec.x` is `spec.target.job.x`."""
    causes = [
        f"{'spec.target.job.' + field.removeprefix('spec.') if field.startswith('spec.') else field}: {text}"
        for field, text in error.causes
        if field != "<nil>"
    ]
    return "; ".join(causes) or f"spec.target.job: {error.message}"
