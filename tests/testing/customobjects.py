"""Custom resources as any client of the API server sees them: created, read, and refused with what reason."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException

from caretaker.api.names import API_VERSION, GROUP, VERSION
from caretaker.registry import KindInfo

Spec = dict[str, Any]


class Objects:
    """Resources of one kind in a namespace of our own."""

    def __init__(self, client: Any, namespace: str, info: KindInfo) -> None:
        self.client = client
        self.core = kubernetes.client.CoreV1Api(client)
        self.api = kubernetes.client.CustomObjectsApi(client)
        self.namespace = namespace
        self.info = info
        self.kind = (GROUP, VERSION, namespace, info.plural)

    def submit(self, body: Any, *, validation: str = "Strict", dry_run: bool = True) -> Any:
        more = {"dry_run": "All"} if dry_run else {}
        return self.api.create_namespaced_custom_object(*self.kind, body, field_validation=validation, **more)

    def create(self, spec: Spec, name: str = "t", **how: Any) -> Any:
        body = {"apiVersion": API_VERSION, "kind": self.info.kind, "metadata": {"name": name}, "spec": spec}
        return self.submit(body, **how)

    def refusal(self, spec: Spec, name: str = "t") -> tuple[int, str, list[tuple[str, str]]]:
        """(HTTP status, the whole message, [(field, message)]) of a create that must fail."""
        with pytest.raises(ApiException) as error:
            self.create(spec, name)
        body = json.loads(error.value.body)
        causes = (body.get("details") or {}).get("causes") or ()
        return error.value.status, body["message"], [(c.get("field", ""), c["message"]) for c in causes]

    def get(self, path: str, accept: str = "application/json") -> Any:
        request = self.client.param_serialize(
            "GET", path, header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        return json.loads(self.client.call_api(*request).read())

    def row(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """({column: cell} of an object as kubectl shows it, the columns of -o wide alone)."""
        table = self.get(
            f"/apis/{API_VERSION}/namespaces/{self.namespace}/{self.info.plural}/{name}",
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        columns = table["columnDefinitions"]
        cells = dict(zip((c["name"].upper() for c in columns), table["rows"][0]["cells"], strict=True))
        return cells, [c["name"] for c in columns if c["priority"]]


@contextmanager
def in_own_namespace(kubeconfig: Path, info: KindInfo) -> Iterator[Objects]:
    """A namespace that nobody else uses; it goes at the end with all that is in it."""
    with kubernetes.config.new_client_from_config(str(kubeconfig)) as client:
        own = Objects(client, f"crd-{secrets.token_hex(4)}", info)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own.namespace}}
        own.core.create_namespace(body)
        try:
            yield own
        finally:
            own.core.delete_namespace(own.namespace)
            client.rest_client.pool_manager.clear()  # the client itself leaves its connections open
