"""caretaker plan and status of an IMDSPolicy."""

import re
from pathlib import Path

import pytest
import yaml

from awsdoubles.clients import KEY
from testbed.cluster import Cluster
from testing.cli import Cli
from testing.imds import MODIFY, SLOW, Fleet


@pytest.fixture
def cli(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    return Cli(cluster.kubeconfig, namespace)


async def test_status_shows_groups_exceptions_and_what_to_do(fleet: Fleet, cli: Cli) -> None:
    ((node, instance),) = await fleet.add(
        1, labels={"eks.amazonaws.com/nodegroup": "apps"}, options={**SLOW, "HttpTokens": "required"}
    )
    policy = await fleet.create()
    await policy.summary(nodes=1, drifted=1)
    said = await cli("status", "imdsp", policy.name)
    assert (said.code, said.lines[0]) == (0, f"IMDSPolicy {policy.name}: 1 node, 1 drifted")
    assert re.fullmatch(r"  Ready=True for \d+s: Audited", said.lines[1])
    assert "  Compliant: Drifted: 1 of 1 node(s) differ: httpPutResponseHopLimit of 1" in said.lines
    rows = [line.split() for line in said.lines]
    assert ["EKSManagedNodegroup/apps", "1", "0", "1"] in rows
    assert [node, instance, "Drifted", "httpPutResponseHopLimit:", "1,", "should", "be", "2"] in rows
    as_json = (await cli("status", f"imdspolicy/{policy.name}", "-o", "json")).json
    assert as_json["summary"]["drifted"] == 1
    watched = await cli("status", "imdsp", policy.name, "--watch")
    assert (watched.code, "kubectl get imdspolicy" in watched.err) == (2, True)
    missing = await cli("status", "imdsp", f"{policy.name}x")
    assert missing.code == 1
    assert f"did you mean {policy.name}?" in missing.err


async def test_plan_tells_what_a_policy_would_find_and_creates_nothing(
    fleet: Fleet, cli: Cli, tmp_path: Path
) -> None:
    ((node, instance),) = await fleet.add(1, options=SLOW)
    file = tmp_path / "policy.yaml"
    body = fleet.body("planned", options={"httpPutResponseHopLimit": 2})
    file.write_text(yaml.safe_dump(body))
    said = await cli("plan", "-f", str(file))
    assert (said.code, said.err) == (0, "")
    assert said.lines[0] == f"IMDSPolicy {body['metadata']['name']} (new): 1 node, 1 drifted"
    rows = [line.split() for line in said.lines]
    assert [node, instance, "Drifted", "httpPutResponseHopLimit:", "1,", "should", "be", "2"] in rows
    assert (await cli("status", "imdsp", body["metadata"]["name"])).code == 1, "it was a dry run"
    fleet.control.deny("DescribeInstances")
    denied = (await cli("plan", "-f", str(file), "-o", "json")).json["policies"][0]
    assert (denied["summary"]["unknown"], "asked as you" in denied["notes"][0]) == (1, True)


async def test_plan_without_credentials_of_ones_own_asks_for_those(
    fleet: Fleet, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.add(1)
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(fleet.body("planned")))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    said = await cli("plan", "-f", str(file))
    told = next(at for at, line in enumerate(said.lines) if line.startswith("  Ready: NoIdentity: "))
    assert said.lines[told + 1].startswith("    -> give yourself AWS credentials, as by AWS_PROFILE=")
    assert not any("operator credentials" in line for line in said.lines)


async def test_plan_tells_what_enforce_would_change_first_and_what_it_would_leave(
    fleet: Fleet, cli: Cli, tmp_path: Path
) -> None:
    made = await fleet.add(3, options=SLOW, labels={"eks.amazonaws.com/nodegroup": "apps"})
    file = tmp_path / "policy.yaml"
    body = fleet.body("planned", safety={"allowTightening": ["Tokens"]})
    file.write_text(yaml.safe_dump(body))
    said = await cli("plan", "-f", str(file))
    head = "spec.mode is Audit: nothing is changed. Enforce would change 3 instances in about 3s, plus"
    start = next(at for at, line in enumerate(said.lines) if line.startswith(head))
    rows = [line.split() for line in said.lines]
    assert ["EKSManagedNodegroup/apps", "httpPutResponseHopLimit", "1", "2", "3"] in rows
    assert ["EKSManagedNodegroup/apps", "httpTokens", "optional", "required", "3"] in rows
    assert said.lines[start + 1].startswith("  canary of EKSManagedNodegroup/apps: i-")
    assert said.lines[start + 1].split()[3] in {instance for _, instance in made}
    assert said.lines[start + 1].endswith(
        ": httpTokens optional -> required; the remaining instances 15m after it is applied"
    )
    assert said.lines[start + 2].startswith(
        "  not changed: httpPutResponseHopLimit of 3 instances: LooseningNotAllowed: it opens the instance; "
    )
    body["spec"] |= {
        "mode": "Enforce",
        "safety": {"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"], "maxDriftPercent": 50},
    }
    file.write_text(yaml.safe_dump(body))
    told = (await cli("plan", "-f", str(file), "-o", "json")).json["policies"][0]["enforce"]
    assert told[0].startswith("Enforce would change nothing: DriftTooWide: 3 of 3 instances differ")
    assert not fleet.control.calls(MODIFY), "not even a dry run"


async def test_plan_names_the_canary_of_nodes_without_a_group(fleet: Fleet, cli: Cli, tmp_path: Path) -> None:
    """Though only a second reading, half a minute later, would confirm that they have none."""
    ((_, instance),) = await fleet.add(1, options=SLOW)
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(fleet.body("planned", safety={"allowTightening": ["Tokens"]})))
    said = await cli("plan", "-f", str(file))
    assert any(instance in line and "canary" in line for line in said.lines), said.lines


async def test_resume_closes_the_breaker(fleet: Fleet, cli: Cli) -> None:
    await fleet.add(1, options=SLOW)
    fleet.control.fault("refuse", count=1, code="DryRunOperation", status=412)
    fleet.control.fault("refuse", count=None, code="InvalidParameterValue", message="no such luck")
    safety = {
        "canary": {"instances": 0},
        "stopAfterConsecutiveFailures": 1,
        "allowLoosening": ["HopLimit"],
        "allowTightening": ["Tokens"],
    }
    policy = await fleet.create(mode="Enforce", safety=safety)
    calm = await fleet.create("calm")
    await policy.condition("Ready", "False", "BreakerOpen")
    said = await cli("status", "imdsp", policy.name)
    assert any("run caretaker resume imdspolicy" in line for line in said.lines)
    fleet.control.clear_faults()
    said = await cli("resume", "imdspolicy", policy.name)
    assert said.code == 0
    assert said.lines[0].startswith(
        f"IMDSPolicy {policy.name} resumes. The breaker was open because of ChangesFailed: "
    )
    await policy.condition("Ready", "True", "Enforced")
    said = await cli("resume", f"imdsp/{calm.name}")
    assert said.lines == [f"The breaker of IMDSPolicy {calm.name} is not open: nothing to resume"]


async def test_plan_of_what_the_server_refuses_names_the_line(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(fleet.body(options={"httpPutResponseHopLimit": 65})))
    said = await cli("plan", "-f", str(file))
    assert said.code == 1
    assert f"{file}:" in said.err
    assert "less than or equal to 64" in said.err


@pytest.mark.slow
async def test_plan_and_status_show_what_launches_future_nodes_with_the_command_that_mends_it(
    fleet: Fleet, cli: Cli, tmp_path: Path
) -> None:
    template = fleet.control.put_template("workers", [{"MetadataOptions": {"HttpTokens": "required"}}])["id"]
    for name in ("a", "b"):
        fleet.control.put_group(name, LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"})
        await fleet.add(1, group=name)
    await fleet.add(1, labels={"eks.amazonaws.com/nodegroup": "apps"})
    policy = await fleet.create()
    await policy.condition("SourcesCompliant", "False")
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(fleet.body("planned")))
    for said in (await cli("status", "imdsp", policy.name), await cli("plan", "-f", str(file))):
        assert (said.code, said.err) == (0, "")
        rows = [line.split() for line in said.lines]
        assert ["AutoScalingGroup/a", template, "$Latest", "Unset"] in rows
        assert ["EKSManagedNodegroup/apps", "-", "EKSOwned"] in rows
        assert any(line.startswith("  SourcesCompliant: SourcesDrifted: ") for line in said.lines)
        told = "AutoScalingGroup/a, AutoScalingGroup/b: httpPutResponseHopLimit is not set, should be 2"
        place = said.lines.index(told)
        data = """'{"MetadataOptions":{"HttpPutResponseHopLimit":2,"HttpTokens":"required"}}'"""
        assert said.lines[place + 1].startswith("  { (for g in a b; do "), "one command for both"
        assert said.lines[place + 1].endswith(
            f" && aws ec2 create-launch-template-version --region eu-west-1 --launch-template-id {template} "
            f"--source-version 1 --launch-template-data {data}"
        )
    as_json = (await cli("plan", "-f", str(file), "-o", "json")).json["policies"][0]
    assert as_json["plan"] == {"instances": 0, "launchTemplates": 1, "ec2NodeClasses": 0}


@pytest.mark.slow
async def test_plan_and_status_say_who_holds_the_account_that_refuses_launches(
    fleet: Fleet, cli: Cli, tmp_path: Path
) -> None:
    options = {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional"}
    template = fleet.control.put_template("workers", [{"MetadataOptions": options}])["id"]
    fleet.control.put_group("a", LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"})
    await fleet.add(1, group="a")
    why = {"ManagedBy": "declarative-policy", "ManagedExceptionMessage": "ask the platform team"}
    fleet.control.defaults(HttpTokensEnforced="enabled", **why)
    loose = {"httpPutResponseHopLimit": 2, "httpTokens": "optional"}
    policy = await fleet.create(options=loose)
    await policy.condition("SourcesCompliant", "False", "LaunchesFail")
    file = tmp_path / "policy.yaml"
    safety = {"allowLoosening": ["Tokens"]}
    file.write_text(yaml.safe_dump(fleet.body("planned", options=loose, mode="Enforce", safety=safety)))
    enforces = "the account enforces IMDSv2 (HttpTokensEnforced)"
    held = 'a declarative policy of the organization holds the account\'s settings: "ask the platform team"'
    status, plan = await cli("status", "imdsp", policy.name), await cli("plan", "-f", str(file))
    for said in (status, plan):
        assert (said.code, said.err) == (0, "")
        assert (
            f"  SourcesCompliant: LaunchesFail: launches of AutoScalingGroup/a fail: {enforces}" in said.lines
        )
        assert f"AutoScalingGroup/a: launches with httpTokens optional fail: {enforces}; {held}" in said.lines
    refused = f"BlockedByAccountPolicy: EC2 would refuse it: {enforces}; remove the option, or have that "
    refused += f"changed; {held}"
    assert any(refused in line for line in plan.lines), plan.lines
