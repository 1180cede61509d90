"""EC2NodeClasses in a cluster without Karpenter: their CRD, as far as it is read, under its real name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from testbed.admin import Admin, Json, path
from testing.cluster import delete_crd

GROUP: Final = "karpenter.k8s.aws"
URLS: Final = {version: f"/apis/{GROUP}/{version}/ec2nodeclasses" for version in ("v1", "v1beta1")}
URL: Final = URLS["v1"]
NAME: Final = f"ec2nodeclasses.{GROUP}"
_OPTIONS: Final = {
    "httpEndpoint": {"type": "string", "enum": ["enabled", "disabled"]},
    "httpProtocolIPv6": {"type": "string", "enum": ["enabled", "disabled"]},
    "httpPutResponseHopLimit": {"type": "integer", "minimum": 1, "maximum": 64},
    "httpTokens": {"type": "string", "enum": ["required", "optional"]},
}


@asynccontextmanager
async def node_classes(admin: Admin, served: str = "v1") -> AsyncIterator[None]:
    """The kind exists meanwhile, of this version alone; it is the whole control plane's."""
    options = {"type": "object", "properties": _OPTIONS}
    spec = {"type": "object", "properties": {"metadataOptions": options}}
    schema = {"type": "object", "properties": {"spec": spec}}
    names = {"kind": "EC2NodeClass", "plural": "ec2nodeclasses", "singular": "ec2nodeclass"}
    version = {"name": served, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    body: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }
    url = path("customresourcedefinitions", name=NAME)
    await admin.create(path("customresourcedefinitions"), body)
    try:
        await admin.wait_for(url, _established)
        yield
    finally:
        await delete_crd(admin, NAME)


def _established(crd: Json) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def node_class(name: str, version: str = "v1", **options: Any) -> Json:
    """One with these metadataOptions."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "EC2NodeClass",
        "metadata": {"name": name},
        "spec": {"metadataOptions": options},
    }
