"""What the API server refuses: invalid templates, quotas, admission; and how it is told and mended."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testbed.admin import ApiError, path
from testing.apiproxy import ApiProxy
from testing.customresource import TIMEOUT, condition, stands
from testing.kubelet import HOLD
from testing.policies import denied
from testing.world import World, holds_for

# ---------------------------------------------------------------- invalid templates

MISSING_IMAGE = {"containers": [{"name": "main"}]}
BAD_NAME = {"containers": [{"name": "Main_1", "image": "test:1"}]}
BAD_MOUNT = {
    "containers": [{"name": "main", "image": "test:1", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]
}
BAD_QUANTITY = {
    "containers": [{"name": "main", "image": "test:1", "resources": {"requests": {"cpu": "a lot"}}}]
}
BAD_FIELD = {"dnsPolicy": "Sometimes"}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        pytest.param(MISSING_IMAGE, "spec.template.spec.containers[0].image", id="a container without image"),
        pytest.param(
            BAD_NAME,
            "spec.template.spec.containers[0].name",
            id="a container name in capitals",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            BAD_MOUNT,
            "spec.template.spec.containers[0].volumeMounts[0].name",
            id="a mount of no volume",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            BAD_FIELD,
            "spec.template.spec.dnsPolicy",
            id="a dnsPolicy that does not exist",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"affinity": 3}, "spec.template.spec.affinity", id="a number where the affinity should be"
        ),
        pytest.param(
            {"tolerations": ["all"]}, "spec.template.spec.tolerations[0]", id="a toleration that is text"
        ),
        pytest.param(
            {"containers": [{"name": "main", "image": "test:1", "env": {"A": "b"}}]},
            "spec.template.spec.containers[0].env",
            id="variables as a mapping",
            marks=pytest.mark.slow,
        ),
        pytest.param(BAD_QUANTITY, "spec.template", id="a quantity that is none", marks=pytest.mark.slow),
    ],
)
async def test_a_template_that_the_api_server_refuses_is_told_with_its_field_and_mended_by_an_edit(
    world: World, pod: dict[str, Any], field: str
) -> None:
    await world.join()
    task = await world.task(template=world.template(**pod))
    found = await task.when(lambda t: stands(t, "SpecValid", "False", "InvalidSpec"))
    assert field in condition(found, "SpecValid")["message"]
    assert stands(found, "Stalled", reason="InvalidSpec")
    assert stands(found, "Ready", "False", "InvalidSpec")
    assert not await task.pods()
    await task.event("InvalidSpec")
    await task.put_template(world.template())
    found = await task.done(1)
    assert stands(found, "SpecValid")
    assert not condition(found, "Stalled")


async def test_an_invalid_edit_leaves_what_has_run_alone(world: World) -> None:
    await world.join(2)
    task = await world.task()
    await task.done(2)
    await task.edit(template=world.template(**BAD_FIELD))
    await task.condition("Stalled", reason="InvalidSpec")
    assert len(world.kubelet.ran) == 2
    await task.put_template(world.template())
    await task.done(2)
    await holds_for(1.5, lambda: len(world.kubelet.ran) == 2)


async def test_a_template_above_256_kib_is_refused_clearly(world: World) -> None:
    await world.join()
    big = [{"name": "main", "image": "test:1", "args": ["x" * 1024] * 257}]
    task = await world.task(template=world.template(containers=big))
    found = await task.when(lambda t: stands(t, "SpecValid", "False", "InvalidSpec"))
    message = condition(found, "SpecValid")["message"]
    assert "spec.template" in message
    assert "262144" in message
    assert "ConfigMap" in message
    assert not await task.pods()
    await task.put_template(world.template())
    await task.done(1)


async def test_a_template_of_just_under_256_kib_runs(world: World) -> None:
    await world.join()
    template = world.template(containers=[{"name": "main", "image": "test:1", "args": []}])
    size = len(json.dumps(template, separators=(",", ":")))
    template["spec"]["containers"][0]["args"] = ["x" * (256 * 1024 - size - 300)]
    task = await world.task(template=template)
    await task.done(1)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a" * 63, id="63 characters"),
        pytest.param("a.b-c." + "d" * 40 + ".e", id="with dots", marks=pytest.mark.slow),
        pytest.param("1", id="a digit", marks=pytest.mark.slow),
        pytest.param("a" * 39 + ".b", id="a dot where the name is cut"),
    ],
)
async def test_a_task_name_makes_valid_names_for_all_that_belongs_to_it(world: World, name: str) -> None:
    """Fault 17 (system-upgrade-controller #273)."""
    await world.join()
    task = await world.task(name)
    await task.done(1)
    (pod,) = await task.pods()
    assert len(pod["metadata"]["name"]) <= 63
    assert "." not in pod["metadata"]["name"]
    assert pod["metadata"]["labels"]["caretaker.dev/daemontask"] == name
    assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("a" * 64, "at most 63 characters", id="64 characters"),
        pytest.param("Patch", "lowercase", id="capitals"),
    ],
)
async def test_a_task_name_that_cannot_be_served_is_refused(world: World, name: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        await world.task(name)
    assert refused.value.status == 422


# ---------------------------------------------------------------- quota and admission


async def quota(world: World, pods: str) -> str:
    name = "few-pods"
    body = {"metadata": {"name": name}, "spec": {"hard": {"pods": pods}}}
    await world.admin.create(path("resourcequotas", world.namespace), body)
    url = path("resourcequotas", world.namespace, name)
    await world.admin.wait_for(url, lambda q: q.get("status", {}).get("hard", {}).get("pods") == pods)
    return url


@pytest.mark.parametrize("raised", [False, True], ids=["deleted", "raised"])
async def test_a_quota_is_backed_off_from_told_and_recovered_from(
    world: World, proxy: ApiProxy, raised: bool
) -> None:
    await world.join(4)
    world.kubelet.default = HOLD
    url = await quota(world, "2")
    task = await world.task()
    # Pods are created in several passes: Ready tells of it once the last one was tried.
    found = await task.when(
        lambda t: (
            stands(t, "Degraded", reason="PodCreationRefused")
            and stands(t, "Ready", "False", "PodCreationRefused")
            and (t["status"]["active"], t["status"]["blocked"]) == (2, 2)
        )
    )
    assert "exceeded quota: few-pods" in condition(found, "Ready")["message"]
    assert stands(found, "SpecValid")
    assert not condition(found, "Stalled")
    if raised:
        await world.admin.patch(url, {"spec": {"hard": {"pods": "4"}}})
    else:
        await world.admin.delete(url)
    await task.counts(active=4)
    await world.kubelet.finish_all()
    found = await task.done(4)
    assert not condition(found, "Degraded")
    assert stands(found, "Progressing")
    assert len(await task.events("PodCreationRefused")) == 1
    refused = proxy.ledger.calls(
        lambda c: (c.verb, c.resource, c.namespace, c.code) == ("create", "pods", world.namespace, 403)
    )
    assert 1 <= len(refused) <= 12


async def test_a_quota_that_is_full_when_the_task_is_made_is_not_an_invalid_spec(world: World) -> None:
    await world.join(1)
    url = await quota(world, "0")
    task = await world.task()
    found = await task.when(lambda t: stands(t, "Ready", "False", "PodCreationRefused"))
    assert not condition(found, "Stalled")
    assert condition(found, "SpecValid")["status"] != "False"
    await world.admin.delete(url)
    await task.done(1)


@pytest.fixture
async def policy(world: World) -> AsyncIterator[str]:
    """An admission policy that refuses every Pod of this namespace."""
    async with denied(world.admin, world.namespace, "CREATE", "no pods on Fridays") as binding:
        yield binding


async def test_an_admission_policy_is_told_in_its_words_and_recovered_from(
    world: World, policy: str, proxy: ApiProxy
) -> None:
    await world.join(2)
    task = await world.task()
    found = await task.when(lambda t: stands(t, "Ready", "False", "PodCreationRefused"))
    assert "no pods on Fridays" in condition(found, "Ready")["message"]
    assert condition(found, "SpecValid")["status"] != "False"
    assert not condition(found, "Stalled")
    await world.admin.delete(policy)
    found = await task.done(2, timeout=TIMEOUT)
    assert not condition(found, "Degraded")
    assert stands(found, "SpecValid")
    refused = proxy.ledger.calls(
        lambda c: (c.verb, c.resource, c.namespace) == ("create", "pods", world.namespace) and c.code >= 400
    )
    assert len(refused) <= 20


RESTRICTED = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "test:1",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


async def test_a_template_that_pod_security_refuses_is_named_and_a_corrected_one_runs(
    world: World, proxy: ApiProxy
) -> None:
    await world.join(8)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await world.admin.patch(path("namespaces", name=world.namespace), {"metadata": {"labels": labels}})
    task = await world.task()
    found = await task.when(lambda t: stands(t, "Ready", "False", "PodCreationRefused"))
    assert "violates PodSecurity" in condition(found, "Ready")["message"]
    assert not condition(found, "Stalled")
    assert not await task.pods()
    await task.put_template(world.template(**RESTRICTED))
    found = await task.done(8)
    assert not condition(found, "Degraded")
    refused = proxy.ledger.calls(
        lambda c: (c.verb, c.resource, c.namespace, c.code) == ("create", "pods", world.namespace, 403)
    )
    assert 1 <= len(refused) <= 20
