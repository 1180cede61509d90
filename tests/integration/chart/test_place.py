"""Where the chart may be installed: the cluster's version, and a network that knows addresses otherwise."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from chart import CHART, ChartError
from matrix.rows import KUBERNETES
from testbed.paths import CHECKOUT

OLDEST = KUBERNETES[0]
BEFORE = "1.{}".format(int(OLDEST.partition(".")[2]) - 1)


def notes(folder: Path, version: str) -> str:
    """What helm would say after an install on this Kubernetes. `helm template` leaves it out, and `helm
    install` takes no version, so it is asked for as an object of a copy of the chart."""
    copy = folder / version
    shutil.copytree(CHART, copy)
    shutil.move(copy / "templates" / "NOTES.txt", copy / "files" / "notes.txt")
    (copy / "templates" / "notes.yaml").write_text(
        'text: {{ tpl (.Files.Get "files/notes.txt") . | toJson }}'
    )
    found = chart.text("--kube-version", version, "--show-only", "templates/notes.yaml", chart=copy)
    return str(yaml.safe_load(found)["text"])


def test_what_no_test_runs_on_is_said_and_what_cannot_do_is_refused(tmp_path: Path) -> None:
    assert "untested" not in notes(tmp_path, f"{OLDEST}.0")
    # As EKS names its versions.
    told = notes(tmp_path, f"v{BEFORE}.14-eks-0a1b2c3")
    assert f"tested on {OLDEST} and newer; older ones should do, untested" in told
    assert "untested" in notes(tmp_path, "1.30.0")
    assert f"Older servers than {OLDEST} are not tested" in (CHECKOUT / "docs/compatibility.md").read_text()
    with pytest.raises(ChartError, match="chart requires kubeVersion"):
        chart.text("--kube-version", "1.29.9")


def egress(*flags: str) -> list[Any]:
    """The NetworkPolicy's egress rules."""
    (made,) = chart.objects(*flags, "--show-only", "templates/networkpolicy.yaml")
    assert made["spec"]["policyTypes"] == ["Ingress", "Egress"]
    rules: list[Any] = made["spec"]["egress"]
    return rules


def test_by_default_the_pods_call_dns_the_api_server_aws_and_the_agent_of_pod_identity() -> None:
    dns, servers, agent = egress()
    assert [port["port"] for port in dns["ports"]] == [53, 53]
    assert servers == {"ports": [{"port": 443}, {"port": 6443}]}, "an ipBlock is no node to some plugins"
    assert agent["ports"] == [{"port": 80}]
    assert agent["to"] == [{"ipBlock": {"cidr": one}} for one in ("169.254.170.23/32", "fd00:ec2::23/128")]
    assert "169.254.169.254/32" in str(egress("--set", "aws.instanceIdentity=true"))
    with pytest.raises(
        ChartError, match=r"networkPolicy.egress.ports: 80 is the instance metadata service's"
    ):
        egress("--set", "networkPolicy.egress.ports={443,80}")
    (made,) = chart.objects(
        "--set", "networkPolicy.egress.enabled=false", "--show-only", "templates/networkpolicy.yaml"
    )
    assert made["spec"]["policyTypes"] == ["Ingress"]


def test_the_policy_for_cilium_is_for_the_operators_pods_and_the_agents_port() -> None:
    (made,) = chart.objects("--show-only", "templates/networkpolicy.yaml")
    page = (CHECKOUT / "docs" / "install.md").read_text().partition("\n## Egress\n")[2]
    block = re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block, "install.md has no policy for Cilium"
    policy: dict[str, Any] = yaml.safe_load(block[1])
    assert policy["metadata"]["namespace"] == made["metadata"]["namespace"]
    assert policy["spec"]["endpointSelector"] == made["spec"]["podSelector"]
    ports = {
        tuple(rule["toEntities"]): {int(port["port"]) for port in rule["toPorts"][0]["ports"]}
        for rule in policy["spec"]["egress"]
    }
    assert ports == {("host",): {port["port"] for port in made["spec"]["egress"][-1]["ports"]}}


@pytest.mark.parametrize("file", ["deploy/namespace.yaml", "examples/gitops/flux/caretaker/release.yaml"])
def test_the_namespace_that_we_make_enforces_pod_security(file: str) -> None:
    """The namespace admits the operator's own pods: tests/integration/chart/test_lifecycle.py, tests/node."""
    made = next(yaml.safe_load_all((CHECKOUT / file).read_text()))
    assert made["kind"] == "Namespace"
    assert made["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
