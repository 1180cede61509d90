"""DaemonTasks as any client of the API server sees them: specs to build, objects to create and refuse."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException

POD = {"containers": [{"name": "main", "image": "busybox"}]}
TEMPLATE = {"spec": POD}

Spec = dict[str, Any]


def task(**fields: Any) -> Spec:
    return {"template": TEMPLATE, **fields}


def pod(**fields: Any) -> Spec:
    return {"template": {"spec": {**POD, **fields}}}


def meta(**fields: Any) -> Spec:
    return {"template": {"metadata": fields, "spec": POD}}


def rules(*rules: Any, **pod_fields: Any) -> Spec:
    return {**pod(**pod_fields), "podFailurePolicy": {"rules": list(rules)}}


def exit_codes(*values: Any, operator: str = "In", **fields: Any) -> Spec:
    return rules(
        {"action": "FailIndex", "onExitCodes": {"operator": operator, "values": list(values), **fields}}
    )


DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


class Tasks:
    """DaemonTasks of a namespace of our own, as any client sees them."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client = client
        self.core = kubernetes.client.CoreV1Api(client)
        self.api = kubernetes.client.CustomObjectsApi(client)
        self.namespace = namespace
        self.kind = ("caretaker.dev", "v1alpha1", namespace, "daemontasks")

    def submit(self, body: Any, *, validation: str = "Strict", dry_run: bool = True) -> Any:
        more = {"dry_run": "All"} if dry_run else {}
        return self.api.create_namespaced_custom_object(*self.kind, body, field_validation=validation, **more)

    def create(self, spec: Spec, name: str = "t", **how: Any) -> Any:
        body = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "metadata": {"name": name},
            "spec": spec,
        }
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


@contextmanager
def tasks_in_own_namespace(kubeconfig: Path) -> Iterator[Tasks]:
    """A namespace that nobody else uses; it goes at the end with all that is in it."""
    with kubernetes.config.new_client_from_config(str(kubeconfig)) as client:
        own = Tasks(client, f"crd-{secrets.token_hex(4)}")
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": own.namespace}}
        own.core.create_namespace(body)
        try:
            yield own
        finally:
            own.core.delete_namespace(own.namespace)
            client.rest_client.pool_manager.clear()  # the client itself leaves its connections open
