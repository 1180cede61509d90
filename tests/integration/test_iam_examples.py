"""Policies as AWS knows them, and examples/iam/, which hold the policies of docs/iam/ and no others."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import iamtools
from testbed.paths import CHECKOUT

IAM: Final = CHECKOUT / "docs" / "iam"
EXAMPLES: Final = CHECKOUT / "examples" / "iam"
TERRAFORM: Final = sorted((EXAMPLES / "terraform").glob("*.tf"))
TEMPLATE: Final = EXAMPLES / "cloudformation.yaml"

# Keys that are there for every action (IAM User Guide, "AWS global condition context keys"), and KMS' own.
GLOBAL: Final = {"aws:RequestedRegion", "kms:ViaService"}
# What docs/iam/ has in the place of names that are yours.
NAMES: Final = {
    "region": "eu-west-1",
    "account_id": "111122223333",
    "cluster_name": "my-cluster",
    "source_queue": "media-events",
    "completion_queue": "refreshes-ended",
    "dead_letter_queue": "media-events-dlq",
    "ecs_events_queue": "ecs-instances",
    "ecs_service": "agent",
    "kms_key_id": "00000000-0000-0000-0000-000000000000",
    "external_id": "caretaker-my-cluster",
    "oidc_provider": "oidc.eks.eu-west-1.amazonaws.com/id/0123",
}
PARAMETERS: Final = {
    "AWS::Partition": "aws",
    "AWS::Region": NAMES["region"],
    "AWS::AccountId": NAMES["account_id"],
    **{"".join(part.title() for part in name.split("_")): value for name, value in NAMES.items()},
}
# The policy in Terraform and in CloudFormation -> its file in docs/iam/.
POLICIES: Final = {
    ("assume_roles", "AssumeRoles"): "assume-roles-pod-identity.json",
    ("s3aggregatedrefresh", "S3AggregatedRefresh"): "s3aggregatedrefresh.json",
    ("imdspolicy", "IMDSPolicy"): "imdspolicy.json",
    ("imdspolicy_enforce", "IMDSPolicyEnforce"): "imdspolicy-enforce.json",
    ("daemontask_ecs", "DaemonTaskEcs"): "daemontask-ecs.json",
}
# What the operator may assume, in CloudFormation.
ROLES: Final = ("MediaRefresh", "MetadataOptions", "EcsAgents")
OPERATOR: Final = "<the operator's role>"

Statement = dict[str, Any]


def statements(file: str) -> list[Statement]:
    found: list[Statement] = json.loads((IAM / file).read_text())["Statement"]
    return list(map(normal, found))


def normal(statement: Statement) -> Statement:
    """Lists where IAM takes a word as well, in order."""

    def many(value: Any) -> list[str]:
        return sorted(value if isinstance(value, list) else [value])

    shown = {**statement, "Action": many(statement["Action"])}
    for field in ("Resource", "Condition", "Principal"):
        value = statement.get(field)
        if field == "Condition" and value:
            shown[field] = {t: {k: many(v) for k, v in keys.items()} for t, keys in value.items()}
        elif isinstance(value, dict):
            shown[field] = {kind: many(v) for kind, v in value.items()}
        elif value is not None:
            shown[field] = many(value)
    return shown


# ---------------------------------------------------------------- the policies


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """What the Service Authorization Reference says of each action that docs/iam/ names."""
    every = (one for file in IAM.glob("*.json") for one in statements(file.name))
    known: dict[str, Any] = iamtools.ask("actions", *sorted({a for one in every for a in one["Action"]}))
    return known


@pytest.mark.parametrize("file", sorted(file.name for file in IAM.glob("*.json")))
def test_a_policy_is_valid_and_as_narrow_as_its_actions_allow(file: str, reference: dict[str, Any]) -> None:
    policy = json.loads((IAM / file).read_text())
    assert (set(policy), policy["Version"]) == ({"Version", "Statement"}, "2012-10-17")
    for one in statements(file):
        assert set(one) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        assert re.fullmatch("[A-Za-z0-9]+", one["Sid"])
        for action in one["Action"]:
            about = reference[action]
            assert about, f"there is no action {action}"
            narrow = [arn for arn in about["resources"] if arn != "*"]
            if narrow:
                assert all(fits(arn, narrow) for arn in one["Resource"]), (action, narrow)
            else:
                # Its result cannot be bounded by an ARN, so it is by the region.
                assert one["Resource"] == ["*"]
                assert "aws:RequestedRegion" in one["Condition"]["StringEquals"]
            for key in (key for test in one.get("Condition", {}).values() for key in test):
                assert key in GLOBAL or any(same_key(key, k) for k in about["conditions"]), (action, key)


def fits(arn: str, formats: list[str]) -> bool:
    """Whether an ARN is one of these kinds, in one region and account: `*` within the last field alone."""
    shapes = [re.sub(r"\\\$\\\{[^}]*\}", r"[^:]+", re.escape(shape)) for shape in formats]
    return any(re.fullmatch(shape, arn) for shape in shapes) and "*" not in arn.rpartition(":")[0]


def same_key(key: str, known: str) -> bool:
    """aws:ResourceTag/NAME for aws:ResourceTag/${TagKey}."""
    return re.fullmatch(re.sub(r"\\\$\\\{[^}]*\}", ".+", re.escape(known)), key) is not None


# ---------------------------------------------------------------- Terraform


def plain(value: Any) -> Any:
    """A value of the parser with our names in the place of variables."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items() if not k.startswith("__")}
    if not isinstance(value, str):
        return value
    text = value.removeprefix('"').removesuffix('"')
    text = text.replace("${aws_iam_role.operator.arn}", OPERATOR)
    text = text.replace("${local.service_account}", "system:serviceaccount:caretaker-system:caretaker")
    return re.sub(r"\$\{var\.(\w+)\}", lambda found: NAMES[found[1]], text)


@pytest.fixture(scope="module")
def terraform() -> dict[str, dict[str, Any]]:
    """Kind of block -> "type.name", or name -> body, of all files."""
    found: dict[str, dict[str, Any]] = {}
    for blocks in iamtools.ask("terraform", *map(str, TERRAFORM)).values():
        for kind, bodies in plain(blocks).items():
            for labels in bodies:
                for label, body in labels.items():
                    names = body.items() if kind in ("data", "resource") else [("", body)]
                    for name, inner in names:
                        found.setdefault(kind, {})[f"{label}.{name}".rstrip(".")] = inner
    return found


def documents(terraform: dict[str, dict[str, Any]]) -> dict[str, list[Statement]]:
    """aws_iam_policy_document by name, as IAM's JSON."""
    found = {}
    for name, body in terraform["data"].items():
        kind, _, short = name.partition(".")
        assert kind == "aws_iam_policy_document"
        found[short] = [as_json(one) for one in body["statement"]]
    return found


def as_json(block: dict[str, Any]) -> Statement:
    made: Statement = {"Sid": block["sid"], "Effect": "Allow", "Action": block["actions"]}
    if "resources" in block:
        made["Resource"] = block["resources"]
    for who in block.get("principals", []):
        made.setdefault("Principal", {})[who["type"]] = who["identifiers"]
    for one in block.get("condition", []):
        made.setdefault("Condition", {}).setdefault(one["test"], {})[one["variable"]] = one["values"]
    assert not set(block) - {"sid", "actions", "resources", "principals", "condition"}
    return normal(made)


def test_terraforms_policies_are_those_of_the_docs(terraform: dict[str, dict[str, Any]]) -> None:
    found = documents(terraform)
    for (name, _), file in POLICIES.items():
        assert found.pop(name) == statements(file)
    assert set(found) == {"pod_identity", "irsa", "delegation"}


def test_all_that_terraform_refers_to_is_declared(terraform: dict[str, dict[str, Any]]) -> None:
    text = "\n".join(file.read_text() for file in TERRAFORM)
    declared = {"data": set(terraform["data"]), "resource": set(terraform["resource"])}
    assert set(re.findall(r"var\.(\w+)", text)) == set(terraform["variable"])
    assert {
        f"aws_iam_policy_document.{n}" for n in re.findall(r"data\.aws_iam_policy_document\.(\w+)", text)
    } == (declared["data"])
    used = set(re.findall(r"(?<![\w.])(aws_\w+\.\w+)\.(?:arn|id)\b", text))
    assert used <= declared["resource"]


def test_terraforms_files_are_formatted() -> None:
    program = shutil.which("terraform")
    if program is None:  # the parser above reads them in any case; only the layout is not judged here
        assert all("\t" not in file.read_text() for file in TERRAFORM)
        return
    where = str(EXAMPLES / "terraform")
    done = subprocess.run([program, "fmt", "-check", "-diff", where], check=False, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


# ---------------------------------------------------------------- CloudFormation


class _Loader(yaml.SafeLoader):
    """With the short forms of CloudFormation's functions."""


def _function(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    assert isinstance(node, yaml.SequenceNode)
    return {suffix: loader.construct_sequence(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


def resolved(value: Any) -> Any:
    """A template's value with our names in the place of its parameters."""
    if isinstance(value, list):
        return [resolved(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Sub"}:
        text = re.sub(r"\$\{([\w:]+)\}", lambda found: PARAMETERS[found[1]], value["Sub"])
        return json.loads(text) if text.lstrip().startswith("{") else text
    if set(value) == {"Ref"}:
        return PARAMETERS.get(value["Ref"], value["Ref"])
    if set(value) == {"GetAtt"}:
        return OPERATOR if value["GetAtt"] == "Operator.Arn" else value["GetAtt"]
    return {key: resolved(one) for key, one in value.items()}


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    """The template's resources by name, their properties alone."""
    # The loader is a SafeLoader with CloudFormation's tags.
    whole = yaml.load(TEMPLATE.read_text(), _Loader)  # noqa: S506
    return {name: resolved(body["Properties"]) for name, body in whole["Resources"].items()}


def test_the_template_is_what_cloudformation_takes() -> None:
    assert iamtools.ask("cloudformation", str(TEMPLATE)) == {str(TEMPLATE): []}


def test_the_templates_policies_are_those_of_the_docs(resources: dict[str, Any]) -> None:
    found = {n: b["PolicyDocument"]["Statement"] for n, b in resources.items() if "PolicyDocument" in b}
    assert {name: list(map(normal, found[name])) for name in found} == {
        name: statements(file) for (_, name), file in POLICIES.items()
    }


# ---------------------------------------------------------------- who may assume what


def trusts_of_template(resources: dict[str, Any]) -> dict[str, list[Statement]]:
    pod, irsa = resources["Operator"]["AssumeRolePolicyDocument"]["If"][1:]
    delegated = [resources[name]["AssumeRolePolicyDocument"] for name in ROLES]
    assert all(one == delegated[0] for one in delegated)
    whole = {"pod_identity": pod, "irsa": irsa, "delegation": delegated[0]}
    return {name: list(map(normal, document["Statement"])) for name, document in whole.items()}


def test_both_examples_trust_the_same_and_nobody_without_a_condition(
    terraform: dict[str, dict[str, Any]], resources: dict[str, Any]
) -> None:
    trusts = trusts_of_template(resources)
    assert {name: documents(terraform)[name] for name in trusts} == trusts
    conditions = {name: set(one[0]["Condition"]["StringEquals"]) for name, one in trusts.items()}
    assert conditions["delegation"] == {"sts:ExternalId"}
    assert {key.rpartition(":")[2] for key in conditions["irsa"]} == {"sub", "aud"}
    assert conditions["pod_identity"] >= {"aws:SourceAccount", "aws:RequestTag/kubernetes-service-account"}
    principals = [one["Principal"] for trust in trusts.values() for one in trust]
    assert "*" not in str(principals)


def test_the_roles_are_those_that_the_operator_may_assume(resources: dict[str, Any]) -> None:
    (assume,) = statements("assume-roles.json")
    assert {arn.rpartition("/")[2] for arn in assume["Resource"]} == {
        resources[name]["RoleName"] for name in ROLES
    }


def test_nothing_of_the_examples_is_left_out_here() -> None:
    here = {Path(path).relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*") if path.is_file()}
    assert here == {"cloudformation.yaml", *(f"terraform/{file.name}" for file in TERRAFORM)}
