"""The chart, rendered: what an administrator gets with which values, and what is refused."""

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import chart
from caretaker.api.daemontask import Spec as TaskSpec
from caretaker.api.grants import Grants
from caretaker.api.imds import Spec as PolicySpec
from caretaker.registry import IMDS_POLICY
from caretaker.registry import KINDS as REGISTERED
from caretaker.s3refresh.targets import registry
from caretaker.settings import Settings, add_run_arguments, load
from chart import CHART, ChartError
from chart.__main__ import main
from chart.kinds import switch
from chart.readme import values
from testbed.paths import CHECKOUT
from testing.alertcases import GROUPS, RULES
from testing.kindrights import RIGHTS
from testing.prometheusoperator import faults

Json = dict[str, Any]

KINDS = tuple(switch(info.kind) for info in REGISTERED)
EVERYTHING = {
    "crds": {"install": False},
    "kinds": {"imdsPolicy": {"enabled": False}},
    "watchNamespace": "team-a",
    "replicas": 3,
    "image": {"digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "aws": {
        "identities": [
            {"namespaces": ["team-*"], "roleARNs": ["arn:aws:iam::1:role/team-*"], "ownIdentity": True}
        ],
        "clusterName": "blue",
        "imdsChangesPerSecond": 0.5,
    },
    "egressAllow": ["10.0.0.0/8", "hooks.example.com"],
    "log": {"format": "text", "level": "DEBUG"},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
    "extraArgs": ["--no-leader-elect"],
    "podLabels": {"team": "sre"},
    "podAnnotations": {"note": "x"},
    "priorityClass": {"create": True},
    "datadog": {"enabled": True},
}


AWS, HEADERS, DATA = "awsKeySecrets", "headerSecrets", "dataSecrets"


def given(tmp_path: Path, content: Json) -> tuple[str, str]:
    """The arguments that hand helm these values."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(content))
    return "--values", str(file)


def off(*plurals: str) -> list[str]:
    """The arguments that switch off all kinds but these."""
    return [
        f"--set=kinds.{switch(info.kind)}.enabled=false" for info in REGISTERED if info.plural not in plurals
    ]


def one(objects: list[Json], kind: str, name: str = "caretaker") -> Json:
    """The object of that kind and name."""
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def container(objects: list[Json]) -> Json:
    """The operator's."""
    (deployment,) = (o for o in objects if o["kind"] == "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def settings(objects: list[Json], identities: Path | None = None) -> Settings:
    """What the operator understands of its arguments. `identities`: stands for the mounted file."""
    run = argparse.ArgumentParser()
    add_run_arguments(run)
    arguments = container(objects)["args"]
    if identities:
        arguments = [a.replace("/etc/caretaker/identities.yaml", str(identities)) for a in arguments]
    return load(run.parse_args(arguments), {"POD_NAMESPACE": "caretaker-system"})


def test_helm_has_nothing_to_say_against_it() -> None:
    assert "0 chart(s) failed" in chart.helm("lint", "--strict", CHART)


def test_its_version_is_the_projects() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    found = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (found["version"], found["appVersion"]) == (project, project)


def test_artifact_hub_is_told_what_the_chart_has() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    told = {
        name.removeprefix("artifacthub.io/"): yaml.safe_load(text)
        for name, text in about["annotations"].items()
    }
    crds = [yaml.safe_load(file.read_text()) for file in sorted((CHECKOUT / "crds").glob("*.yaml"))]
    assert sorted((one["name"], one["kind"], one["version"]) for one in told["crds"]) == sorted(
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], version["name"])
        for crd in crds
        for version in crd["spec"]["versions"]
    )
    content = yaml.safe_load((CHART / "values.yaml").read_text())
    images = [part["repository"] for part in (content["image"], content["probe"]["image"])]
    assert [one["image"] for one in told["images"]] == [f"{one}:{about['appVersion']}" for one in images]
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert told["license"] == project["license"]
    assert {one["kind"] for one in told["changes"]} <= {
        *("added", "changed", "deprecated", "removed", "fixed", "security")
    }
    assert all(one["description"] for one in told["changes"])
    assert {one["url"].startswith(f"{about['home']}/") for one in told["links"]} == {True}
    assert f'"{about["home"]}"' in (CHECKOUT / "mkdocs.yml").read_text()
    assert [one["kind"] for one in told["crdsExamples"]] == [info.kind for info in REGISTERED]
    for one, spec in zip(told["crdsExamples"], (TaskSpec, registry().spec, PolicySpec), strict=True):
        msgspec.convert(one["spec"], spec)


def test_what_follows_from_others_is_as_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_schema_and_values_know_the_same() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    content = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values((CHART / "values.yaml").read_text())

    def same(properties: Json, found: Json, at: str) -> None:
        assert set(properties) - {"global"} == set(found), at
        for key, value in found.items():
            inner = properties[key].get("properties")
            # Free maps, and maps of the API such as resources, have no values that must be there.
            if inner and value and at + key != ".resources":
                assert properties[key]["additionalProperties"] is False
                same(inner, value, f"{at}{key}.")

    same(schema["properties"], content, ".")


def test_a_typo_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    def misspelt(content: Json) -> Json:
        inner = {k: misspelt(v) for k, v in content.items() if isinstance(v, dict) and v and k not in free}
        return {**inner, "misspelt": "x"}

    free = {"nodeSelector", "labels", "requests", "limits"}
    content = misspelt(yaml.safe_load((CHART / "values.yaml").read_text()))
    content["aws"]["identities"] = [{"namespaces": ["a"], "roleARN": "x"}]
    content["headerSecrets"] = content["awsKeySecrets"] = [{"namespace": "a", "name": "x"}]
    content["extraEnv"] = [{"nam": "x"}]
    content["tolerations"] = [{"kee": "x"}]
    with pytest.raises(ChartError) as refused:
        chart.text(*given(tmp_path, content))

    def places(found: Json, at: str) -> set[str]:
        here = {at} if "misspelt" in found else set()
        return here.union(*(places(v, f"{at}/{k}") for k, v in found.items() if isinstance(v, dict)))

    told = str(refused.value)
    for place in places(content, ""):
        assert f"at '{place}': additional properties 'misspelt' not allowed" in told
    for place in (
        "/aws/identities/0",
        "/headerSecrets/0",
        "/awsKeySecrets/0",
        "/extraEnv/0",
        "/tolerations/0",
    ):
        assert f"at '{place}'" in told


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("replicas=two", "want integer"),
        ("image.tag=a b", "does not match pattern"),
        ("log.level=info", "value must be one of"),
        ("watchNamespace=Team_A", "/watchNamespace"),
        ("aws.imdsChangesPerSecond=6", "maximum"),
        ("headerSecrets[0].namespace=a", "missing property 'names'"),
        (",".join(f"kinds.{kind}.enabled=false" for kind in KINDS),
         "at least one must be enabled"),
        ("serviceAccount.create=false", "serviceAccount.name: needed"),
        ("serviceMonitor.interval=30s1h", "does not match pattern"),
        *((f"extraEnv[0].name={name},extraEnv[0].value=x", "at '/extraEnv/0/name': 'not' failed")
          for name in ("POD_NAME", "POD_NAMESPACE", "AWS_EC2_METADATA_DISABLED")),
        ("extraArgs={--operator-namespace,other}", "at '/extraArgs/0': 'not' failed"),
        (",".join(f"headerSecrets[{i}].namespace=a,headerSecrets[{i}].names={{x}}" for i in (0, 1)),
         "headerSecrets: a stands there twice"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(setting: str, told: str) -> None:
    with pytest.raises(ChartError, match=told):
        chart.text("--set", setting)


def test_by_default_it_asks_for_all_kinds_and_never_for_the_nodes_identity() -> None:
    found = settings(chart.objects())
    probe = "registry.example.com/caretaker/probe:0.1.0"
    assert found == load({"probe_image": probe, "identity": found.identity}, {})
    env = {e["name"]: e.get("value") for e in container(chart.objects())["env"]}
    assert env["AWS_EC2_METADATA_DISABLED"] == "true"


def test_the_operator_is_confined_probed_spread_and_evicted_one_by_one() -> None:
    objects = chart.objects()
    pod, inside = one(objects, "Deployment")["spec"]["template"]["spec"], container(objects)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert inside["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"]: port["containerPort"] for port in inside["ports"]}
    assert ports == {"metrics": settings(objects).metrics_port, "health": settings(objects).health_port}
    paths = {name: inside[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert set(inside["resources"]) == {"requests", "limits"}
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    mine = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["labelSelector"]["matchLabels"]) == ("kubernetes.io/hostname", mine)
    budget = one(objects, "PodDisruptionBudget")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, mine)
    wall = one(objects, "NetworkPolicy")["spec"]
    assert wall["podSelector"]["matchLabels"] == mine
    assert [rule["ports"] for rule in wall["ingress"]] == [[{"port": "metrics"}], [{"port": "health"}]]
    labels = one(objects, "Pod", "caretaker-test")["metadata"]["labels"]
    assert not mine.items() <= labels.items(), "the test's pod is none of the operator's"


def test_the_nodes_identity_is_used_once_it_is_asked_for() -> None:
    objects = chart.objects("--set", "aws.instanceIdentity=true", "--show-only", "templates/deployment.yaml")
    assert settings(objects).aws_instance_identity
    assert "AWS_EC2_METADATA_DISABLED" not in {e["name"] for e in container(objects)["env"]}


def test_every_value_reaches_the_operator(tmp_path: Path) -> None:
    objects = chart.objects(*given(tmp_path, EVERYTHING))
    mounted = tmp_path / "identities.yaml"
    mounted.write_text(one(objects, "ConfigMap", "caretaker-identities")["data"]["identities.yaml"])
    found = settings(objects, mounted)
    assert found.aws_identities == Grants.decode({"identities": EVERYTHING["aws"]["identities"]})  # type: ignore[index]
    assert found.kinds == tuple(info for info in REGISTERED if info is not IMDS_POLICY)
    assert (found.namespace, found.cluster_name, found.imds_changes_per_second) == ("team-a", "blue", 0.5)
    assert found.egress_allow == ("10.0.0.0/8", "hooks.example.com")
    assert not found.leader_elect
    assert (found.log_format, found.log_level) == ("text", "DEBUG")
    pod = one(objects, "Deployment")["spec"]["template"]
    image = f"registry.example.com/caretaker/operator@sha256:{'0' * 64}"
    assert pod["spec"]["containers"][0]["image"] == image
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    priority = one(objects, "PriorityClass", "caretaker-caretaker-system")
    assert pod["spec"]["priorityClassName"] == priority["metadata"]["name"]
    assert {"name": "AWS_REGION", "value": "eu-west-1"} in container(objects)["env"]
    assert pod["metadata"]["labels"]["team"] == "sre"
    assert pod["metadata"]["annotations"]["note"] == "x"
    check = json.loads(pod["metadata"]["annotations"]["ad.datadoghq.com/operator.checks"])
    assert check["openmetrics"]["instances"][0]["openmetrics_endpoint"] == "http://%%host%%:8080/metrics"


def test_a_change_of_the_identities_starts_new_pods_and_an_empty_list_grants_nothing() -> None:
    lists = ("null", "[]", '[{"namespaces": ["a"]}]')
    none, empty, some = (chart.objects("--set-json", f"aws.identities={found}") for found in lists)
    pods = [one(objects, "Deployment")["spec"]["template"] for objects in (none, empty, some)]
    assert len({pod["metadata"]["annotations"].get("checksum/identities") for pod in pods}) == 3
    content = one(empty, "ConfigMap", "caretaker-identities")["data"]["identities.yaml"]
    assert Grants.decode(yaml.safe_load(content)) == Grants(())


PLURALS = {info.plural for info in REGISTERED}
SERVED = {
    "everything": PLURALS,
    **{f"{info.kind} alone": {info.plural} for info in REGISTERED},
    "no IMDSPolicy": PLURALS - {"imdspolicies"},
}
LEASE = {("leases", verb) for verb in ("create", "get", "patch")}
PROBE = {("daemontasks", verb) for verb in ("create", "patch", "delete")}


ACCESS = (
    "--set=awsKeySecrets[0].namespace=ops,awsKeySecrets[0].names={aws-keys}",
    "--set=jobNamespaces={web}",
)


@pytest.mark.parametrize("watched", ["", "team-a"], ids=["every namespace", "one namespace"])
@pytest.mark.parametrize("plurals", SERVED.values(), ids=SERVED.keys())
def test_a_kind_that_is_off_has_neither_crd_nor_rule(plurals: set[str], watched: str) -> None:
    flags = (*ACCESS, f"--set=watchNamespace={watched}", "--skip-tests")
    objects = chart.objects(*flags, *off(*plurals))
    crds = {o["spec"]["names"]["plural"] for o in objects if o["kind"] == "CustomResourceDefinition"}
    assert crds == plurals
    assert {kind.plural for kind in settings(objects).kinds} == plurals
    roles = [o for o in objects if o["kind"] in ("ClusterRole", "Role") and not of_people(o)]
    rights = {
        (what, verb)
        for role in roles
        for rule in role["rules"]
        for what in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {
        (what, verb) for plural in plurals for what, verbs in RIGHTS[plural].items() for verb in verbs.split()
    }
    probes = {"daemontasks", "imdspolicies"} <= plurals and not watched
    assert rights == needed | LEASE | (PROBE if probes else set())
    assert places_of("events", roles) == event_places(plurals, watched)


def of_people(role: Json) -> bool:
    """Whether it is a ClusterRole for people, which is not bound to the operator."""
    return str(role["metadata"]["name"]).endswith(("-view", "-edit", "-imds-admin"))


def places_of(resource: str, roles: list[Json]) -> set[str]:
    """The namespaces in which roles grant something on a resource; "" = all."""
    found = (role for role in roles if any(resource in rule["resources"] for rule in role["rules"]))
    return {role["metadata"].get("namespace", "") for role in found}


def event_places(plurals: set[str], watched: str) -> set[str]:
    """Where events of these kinds are: about what has no namespace, such as IMDSPolicies, in `default`."""
    scopes = {info.namespaced for info in REGISTERED if info.plural in plurals}
    if scopes == {False}:
        return {"default"}
    return {watched, "default"} if watched and False in scopes else {watched}


@pytest.mark.parametrize("release", ["caretaker", "blue"])
def test_the_role_names_the_lease_that_the_operator_asks_for(release: str) -> None:
    objects = chart.objects("--skip-tests", release=release)
    own = [o for o in objects if o["kind"] == "Role"]
    rules = [rule for role in own for rule in role["rules"] if rule["resources"] == ["leases"]]
    assert {role["metadata"]["namespace"] for role in own} == {"caretaker-system"}
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["create"], None),
        (["get", "patch"], [settings(objects).lease_name]),
    ]


def test_one_namespace_takes_roles_and_no_more_of_the_cluster_than_nodes_and_policies() -> None:
    objects = chart.objects("--set", "watchNamespace=team-a", "--skip-tests")
    cluster = one(objects, "ClusterRole", "caretaker-caretaker-system")
    assert {r for rule in cluster["rules"] for r in rule["resources"]} == {
        "nodes", "imdspolicies", "imdspolicies/status", "ec2nodeclasses",
    }  # fmt: skip
    watched = one(objects, "Role", "caretaker-caretaker-system-watched")
    assert watched["metadata"]["namespace"] == "team-a"
    assert one(objects, "Role", "caretaker-caretaker-system-events")["metadata"]["namespace"] == "default"
    without = chart.objects("--set", "watchNamespace=team-a", *off("s3aggregatedrefreshes"))
    ours = [o for o in without if o["kind"].startswith("ClusterRole") and not of_people(o)]
    assert ours == []


def test_secrets_and_jobs_are_granted_by_namespace_and_name_alone(tmp_path: Path) -> None:
    assert "secrets" not in chart.text("--show-only", "templates/rbac.yaml")
    access = {
        "awsKeySecrets": [{"namespace": "ops", "names": ["aws-keys", "more"]}],
        "headerSecrets": [{"namespace": "ops", "names": ["cdn"]}],
        "jobNamespaces": ["web"],
    }
    objects = chart.objects(*given(tmp_path, access), "--show-only", "templates/rbac.yaml")
    jobs = one(objects, "Role", "caretaker-jobs")
    for name, wanted in (("caretaker-aws-keys", ["aws-keys", "more"]), ("caretaker-headers", ["cdn"])):
        secrets = one(objects, "Role", name)
        assert secrets["metadata"]["namespace"] == "ops"
        assert secrets["rules"] == [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": wanted, "verbs": ["get"]}
        ]
    assert jobs["metadata"]["namespace"] == "web"
    assert jobs["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]}]


def test_each_kind_is_granted_its_own_secrets(tmp_path: Path) -> None:
    access = {name: [{"namespace": "ops", "names": [name.lower()]}] for name in (AWS, HEADERS, DATA)}
    plurals = {"daemontasks": {DATA}, "s3aggregatedrefreshes": {AWS, HEADERS}}
    for plural, wanted in plurals.items():
        objects = chart.objects(*given(tmp_path, access), *off(plural), "--show-only", "templates/rbac.yaml")
        rules = [rule for o in objects if o["kind"] == "Role" for rule in o["rules"]]
        secrets = {
            name for rule in rules if rule["resources"] == ["secrets"] for name in rule["resourceNames"]
        }
        assert secrets == {name.lower() for name in wanted}


def test_without_roles_and_account_it_leaves_those_to_others() -> None:
    objects = chart.objects(
        "--set", "rbac.create=false,serviceAccount.create=false,serviceAccount.name=theirs", "--skip-tests"
    )
    assert {o["kind"] for o in objects}.isdisjoint({"ServiceAccount", "ClusterRole", "Role", "RoleBinding"})
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"


PULLS = {
    "the release's own namespace": ("", "", "pull"),
    "named": ("", "theirs", "theirs"),
    "another namespace": ("team-a", "", None),
    "another namespace, named": ("team-a", "theirs", "theirs"),
}


@pytest.mark.parametrize(("watched", "tests", "wanted"), PULLS.values(), ids=PULLS.keys())
def test_the_tests_pods_pull_with_secrets_of_their_namespace(
    watched: str, tests: str, wanted: str | None
) -> None:
    named = f",test.imagePullSecrets[0].name={tests}" if tests else ""
    objects = chart.objects("--set", f"watchNamespace={watched},imagePullSecrets[0].name=pull{named}")
    runner = one(objects, "Pod", "caretaker-test")["spec"]
    assert runner["imagePullSecrets"] == [{"name": "pull"}]
    env = {e["name"]: e["value"] for e in runner["containers"][0]["env"]}
    pod = json.loads(env["TASK"])["spec"]["template"]["spec"]
    assert pod.get("imagePullSecrets") == ([{"name": wanted}] if wanted else None)


def test_irsa_is_an_annotation_of_the_account() -> None:
    arn = "arn:aws:iam::111122223333:role/caretaker"
    annotation = rf"serviceAccount.annotations.eks\.amazonaws\.com/role-arn={arn}"
    (account,) = chart.objects("--set", annotation, "--show-only", "templates/serviceaccount.yaml")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": arn}


def test_alerts_dashboard_and_monitor_are_made_of_the_charts_files() -> None:
    on = [f"--set={part}.enabled=true" for part in ("prometheusRule", "dashboard", "serviceMonitor")]
    more = "prometheusRule.labels.release=p,prometheusRule.runbookBase=https://example.com/caretaker/"
    objects = chart.objects(*on, "--set", more)
    rule = one(objects, "PrometheusRule")
    based = json.dumps(GROUPS).replace('"runbook_url": "', '"runbook_url": "https://example.com/caretaker/')
    assert rule["spec"] == {"groups": json.loads(based)}
    assert chart.text(*on, "--show-only", "templates/prometheusrule.yaml").count("runbook_url: docs/") > 5
    assert rule["metadata"]["labels"]["release"] == "p"
    dashboard = one(objects, "ConfigMap", "caretaker-dashboard")
    file = CHART / "files" / "dashboard.json"
    assert json.loads(dashboard["data"]["caretaker.json"]) == json.loads(file.read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    service, monitor = one(objects, "Service", "caretaker-metrics"), one(objects, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule"])
def test_the_prometheus_operators_api_takes_what_is_made_for_it(kind: str, tmp_path: Path) -> None:
    base = "https://example.com/caretaker"
    values = {
        "serviceMonitor": {"enabled": True, "labels": {"release": "p"}, "interval": "1h1m30s500ms"},
        "prometheusRule": {"enabled": True, "labels": {"release": "p"}, "runbookBase": base},
    }
    for given_values in (values, {part: {"enabled": True} for part in values}):
        body = one(chart.objects(*given(tmp_path, given_values)), kind)
        assert faults(body, tmp_path) == ""
    assert "additional properties 'metdata'" in faults({**body, "metdata": {}}, tmp_path)
    spec = {
        "ServiceMonitor": {"selector": {}, "endpoints": [{"port": "metrics", "interval": "30s1h"}]},
        "PrometheusRule": {"groups": [{"name": "a", "rules": [{"expr": "1", "for": "5 minutes"}]}]},
    }
    assert "does not match pattern" in faults({**body, "spec": spec[kind]}, tmp_path)


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_replica_alone_has_no_alert_about_a_standby(replicas: int) -> None:
    objects = chart.objects("--set", f"prometheusRule.enabled=true,replicas={replicas}")
    groups = one(objects, "PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert set(RULES) - alerts == ({"CaretakerNoStandby"} if replicas == 1 else set())


@pytest.mark.parametrize(
    ("flags", "resources"),
    [
        ((), ["pods", "configmaps", "s3aggregatedrefreshes"]),
        (("--set", "kinds.s3AggregatedRefresh.enabled=false"), ["pods", "configmaps"]),
        (("--set", "kinds.daemonTask.enabled=false"), ["s3aggregatedrefreshes"]),
        (("--set", "kinds.daemonTask.enabled=false,kinds.s3AggregatedRefresh.enabled=false"), []),
        (("--set", "admissionPolicy.enabled=false"), []),
    ],
)
def test_the_account_is_bounded_by_default_in_what_its_kinds_write(
    flags: tuple[str, ...], resources: list[str]
) -> None:
    objects = chart.objects(*flags, "--set", "serviceAccount.name=theirs")
    policies = [o for o in objects if o["metadata"]["name"] == "caretaker-operator"]
    assert len(policies) == (2 if resources else 0)  # the policy and its binding
    for policy in policies[:1]:
        rules = policy["spec"]["matchConstraints"]["resourceRules"]
        assert [one for rule in rules for one in rule["resources"]] == resources
        (condition,) = policy["spec"]["matchConditions"]
        assert "'system:serviceaccount:caretaker-system:theirs'" in condition["expression"]
