"""caretaker plan of an S3AggregatedRefresh: a real API server, the doubles of AWS, and nothing changed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from awsdoubles.envelopes import Queue
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.stack import GATEWAY_VARIABLE
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing import manifests
from testing.apiproxy import ApiProxy
from testing.aws import Aws
from testing.cli import Cli
from testing.refreshing import PLURAL

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:1"  # a port on which nothing listens


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.kubeconfig, "cli") as proxy:
        yield proxy


@pytest.fixture
def cli(
    watched: ApiProxy,
    namespace: str,
    tmp_path: Path,
    aws: Aws,
    storage_gateway: StorageGateway,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Run by somebody whose environment leads to the doubles."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws.environment(storage_gateway.url).items():
        monkeypatch.setenv(name, value)
    return Cli(watched.write_kubeconfig(tmp_path / "kubeconfig"), namespace)


def manifest(queue: Queue | str, name: str = "r", **spec: Any) -> str:
    """A file with one resource; spec starts at line 6, and the queue's URL stands in line 9."""
    url = queue if isinstance(queue, str) else queue.url
    head = f"apiVersion: caretaker.dev/v1alpha1\nkind: S3AggregatedRefresh\nmetadata:\n  name: {name}\n"
    body = {
        "source": {"sqs": {"queueURL": url}},
        "aws": {"region": "eu-west-1"},
        "target": {"storageGateway": {"shares": {"discover": {}}}},
        **spec,
    }
    return head + yaml.safe_dump({"spec": body}, sort_keys=False)


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


async def test_a_new_resource_tells_its_queue_its_shares_and_what_is_next(
    cli: Cli, watched: ApiProxy, aws: Aws, storage_gateway: StorageGateway
) -> None:
    control, source = storage_gateway.control, aws.source()
    aws.put(source.bucket, "in/1", "in/2")
    gateway, other = control.add_gateway(), control.add_gateway()
    whole = control.add_share(gateway, bucket=source.bucket)
    team = control.add_share(other, bucket=source.bucket, prefix="team/", protocol="SMB")
    going = control.add_share(gateway, bucket=source.bucket, status="DELETING")
    sample = f"s3://{source.bucket}/team/2026/a b.csv"
    said = await cli("plan", "-f", "-", "-o", "json", "--sample", sample, stdin=manifest(source.queue))
    assert said.code == 1, "a share is not AVAILABLE: the resource would not be Ready"
    assert said.json["tasks"] == []
    (told,) = said.json["refreshes"]
    assert (told["exists"], told["complete"], told["notes"]) == (False, True, [])
    assert [line.partition(": ")[2] for line in told["faults"]] == [f"spec.target: {going} is not AVAILABLE"]
    (queue,) = told["queues"]
    assert (queue["url"], queue["problem"], queue["fault"]) == (source.queue.url, "", "")
    assert (queue["deadLetters"], queue["retentionSeconds"]) == (0, 4 * 86400)
    found = {one["arn"]: one for one in told["targets"]}
    assert {arn: (one["prefix"], one["gateway"], one["usable"]) for arn, one in found.items()} == {
        whole: ("", gateway, True),
        team: ("team/", other, True),
        going: ("", gateway, False),
    }
    assert {one["bucket"] for one in found.values()} == {source.bucket}
    assert (found[whole]["next"]["why"], found[whole]["next"]["recursive"]) == ("New", True)
    assert found[going]["next"]["why"] == "NotAvailable"
    (stale,) = told["samples"]
    assert {one["id"]: set(one["folders"]) for one in stale["targets"]} == {
        found[whole]["id"]: {"team/2026", "team", "/"},
        found[going]["id"]: {"team/2026", "team", "/"},
        found[team]["id"]: {"2026", "/"},
    }
    assert watched.ledger.writes() == []
    assert {call["operation"] for call in control.calls()} == {
        "ListFileShares",
        "DescribeNFSFileShares",
        "DescribeSMBFileShares",
    }
    assert len(aws.receive(source.queue, 2)) == 2, "nothing was received or deleted"


async def test_people_get_text_and_other_kinds_of_the_file_their_own(
    cli: Cli, aws: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> None:
    control, queue = storage_gateway.control, aws.queue()
    control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    template = {"spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "main", "image": "test:1"}]}}
    task = yaml.safe_dump(
        {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "metadata": {"name": "t"},
            "spec": {"template": template},
        }
    )
    file = tmp_path / "both.yaml"
    file.write_text(
        f"kind: ConfigMap\napiVersion: v1\nmetadata: {{name: c}}\n---\n{task}---\n{manifest(queue)}"
    )
    said = await cli("plan", "-f", str(file))
    assert (said.code, said.err) == (0, "")
    assert said.lines[0].startswith(f"DaemonTask {cli.namespace}/t: new, revision ")
    assert f"S3AggregatedRefresh {cli.namespace}/r: new" in said.lines
    assert f"  queue {queue.url}: 0 visible, 0 in flight, dead letters: 0, kept for 4d" in said.lines
    assert "  1 target found, 1 usable" in said.lines
    assert said.lines[-1] == "not looked at: ConfigMap c"


async def test_of_a_resource_that_exists_the_next_call_and_its_folders_are_told(
    cli: Cli, watched: ApiProxy, admin: Admin, aws: Aws, storage_gateway: StorageGateway
) -> None:
    control, queue = storage_gateway.control, aws.queue()
    arn = control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    name = arn.rpartition("/")[2]
    url = path(PLURAL, cli.namespace)
    await admin.create(url, manifests.load(manifest(queue)))
    target = {
        "id": name,
        "phase": "Backoff",
        "dirty": {"since": "2026-01-01T00:00:00Z", "folders": ["/", "in", "in/2026"]},
        "failure": {"count": 2, "code": "Throttled", "nextAttemptAt": "2100-01-01T00:00:00Z"},
    }
    before = await admin.patch(f"{url}/r/status", {"status": {"targets": [target]}})
    few = {"storageGateway": {"shares": {"discover": {}}, "maxFolders": 2}}
    text = manifest(queue, target=few, retry={"initial": "30s", "max": "2m"})
    said = await cli("plan", "-f", "-", "-o", "json", stdin=text)
    (told,) = said.json["refreshes"]
    assert (said.code, told["exists"], told["specChanges"]) == (0, True, True)
    (row,) = told["targets"]
    assert row["dirty"]["folders"] == ["/", "in", "in/2026"]
    assert (row["next"]["why"], row["next"]["folders"]) == ("Failed", ["in/2026", "in"])
    shown = await cli("plan", "-f", "-", stdin=text)
    (line,) = [line for line in shown.lines if "in/2026" in line]
    assert "3 folders  2: in/2026, in" in line
    assert "the next try after 2 failures: Throttled" in line
    assert watched.ledger.writes() == []
    assert await admin.get(f"{url}/r") == before


@pytest.mark.parametrize(
    ("variable", "operation", "kept"),
    [
        pytest.param(GATEWAY_VARIABLE, "storagegateway:ListFileShares", "kept for 4d", id="no gateways"),
        pytest.param(
            "AWS_ENDPOINT_URL_SQS", "sqs:GetQueueAttributes", "1 target found, 1 usable", id="no queue"
        ),
    ],
)
async def test_what_aws_does_not_answer_is_told_and_the_rest_is_shown(
    variable: str,
    operation: str,
    kept: str,
    cli: Cli,
    aws: Aws,
    storage_gateway: StorageGateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control, queue = storage_gateway.control, aws.queue()
    control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    monkeypatch.setenv(variable, NOBODY)
    said = await cli("plan", "-f", "-", stdin=manifest(queue))
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert line.startswith("caretaker plan: <stdin>:")
    assert f"{operation}: Unreachable: " in line
    assert kept in said.out
    assert "note: AWS was asked as you" in said.out


async def test_without_credentials_every_call_says_so(
    cli: Cli, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    text = manifest(aws.queue())
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 1
    queue, target = said.err.splitlines()
    where = f"caretaker plan: <stdin>:{line_of(text, 'queueURL')}: spec.source.sqs.queueURL: "
    assert queue.startswith(f"{where}sqs:GetQueueAttributes: NoCredentials")
    assert "note: AWS was asked as you, with credentials of the standard chain" in said.out
    assert "spec.target.storageGateway: in eu-west-1: storagegateway:ListFileShares: NoCredentials" in target
    assert all("give yourself AWS credentials" in line for line in (queue, target))


async def test_a_queue_that_will_not_do_is_told_with_line_and_mend(
    cli: Cli, aws: Aws, storage_gateway: StorageGateway
) -> None:
    control = storage_gateway.control
    control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    text = manifest(aws.queue(max_receives=2))
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 1
    assert said.err.startswith(f"caretaker plan: <stdin>:{line_of(text, 'queueURL')}: spec.source.sqs.")
    assert "maxReceiveCount is 2" in said.err
    assert "add one with maxReceiveCount 5 or more" in said.err
    assert ", and will not do" in said.out


async def test_a_queue_that_is_not_there_and_a_share_that_is_not_are_told(
    cli: Cli, aws: Aws, storage_gateway: StorageGateway
) -> None:
    url, gateway = aws.queue().url, storage_gateway.control.add_gateway()
    missing = gateway.replace("gateway/sgw-", "share/share-")
    named = {"storageGateway": {"shares": {"fileShareARNs": [missing]}}}
    said = await cli("plan", "-f", "-", stdin=manifest(f"{url}-not", target=named))
    assert said.code == 1
    queue, share = said.err.splitlines()
    assert "sqs:GetQueueAttributes: " in queue
    assert queue.endswith("or create the queue")
    assert f"spec.target: {missing}: there is no such file share" in share


async def test_the_prefix_of_a_bucket_is_shown_and_samples_are_named_without_it(cli: Cli, aws: Aws) -> None:
    target = {"http": {"url": "https://cdn.example.com/purge", "prefix": "site/"}}
    text = manifest(aws.queue(), target=target, filter={"buckets": ["media"]})
    samples = ("--sample", "s3://media/site/a/b", "--sample", "s3://media/other/b")
    said = await cli("plan", "-f", "-", *samples, "-o", "json", stdin=text)
    (found,) = said.json["refreshes"]
    (shown,) = found["targets"]
    assert (shown["id"], shown["bucket"], shown["prefix"]) == ("media", "media", "site/")
    within, beside = found["samples"]
    assert ([sorted(one["folders"]) for one in within["targets"]], beside["targets"]) == ([["/", "a"]], [])


async def test_of_a_distribution_a_sample_is_its_own_key(cli: Cli, aws: Aws) -> None:
    target = {"cloudFront": {"distributionID": "EDFDVBD6EXAMPLE", "prefix": "site/"}}
    text = manifest(aws.queue(), target=target, filter={"buckets": ["media"]})
    said = await cli("plan", "-f", "-", "--sample", "s3://media/site/a/b.html", "-o", "json", stdin=text)
    (found,) = said.json["refreshes"]
    assert (found["complete"], [one["prefix"] for one in found["targets"]]) == (True, ["site/"])
    (sample,) = found["samples"]
    assert [(one["folders"], one["trees"]) for one in sample["targets"]] == [(["a/b.html"], [])]


async def test_what_the_api_server_refuses_is_told_with_its_line_and_aws_is_not_asked(
    cli: Cli, aws: Aws, storage_gateway: StorageGateway
) -> None:
    text = manifest(aws.queue(), debounce={"minInterval": "30s"})
    said = await cli("plan", "-f", "-", stdin=text)
    assert said.code == 1
    assert said.err.startswith(
        f"caretaker plan: <stdin>:{line_of(text, 'minInterval')}: spec.debounce.minInterval"
    )
    assert said.lines == [f"S3AggregatedRefresh {cli.namespace}/r: refused"]
    assert storage_gateway.control.calls() == []


async def test_a_role_and_a_secret_are_the_operators_and_a_completion_queue_is_looked_at(
    cli: Cli, aws: Aws, storage_gateway: StorageGateway
) -> None:
    """Neither is used: MiniStack's STS would be asked, and there is no such Secret."""
    control, ends = storage_gateway.control, aws.queue(max_receives=None)
    control.add_share(control.add_gateway(), bucket=aws.bucket("a"))
    identity = {
        "region": "eu-west-1",
        "roleARN": "arn:aws:iam::111122223333:role/theirs",
        "credentialsSecretRef": {"name": "theirs"},
    }
    target = {"storageGateway": {"shares": {"discover": {}}, "completion": {"queueURL": ends.url}}}
    text = manifest(aws.queue(), aws=identity, target=target)
    said = await cli("plan", "-f", "-", "-o", "json", stdin=text)
    assert (said.code, said.err) == (0, "")
    queues = {queue["field"]: queue for queue in said.json["refreshes"][0]["queues"]}
    assert queues["spec.target.storageGateway.completion.queueURL"]["url"] == ends.url
    assert {queue["fault"] for queue in queues.values()} == {""}, (
        "a completion queue needs no dead-letter queue"
    )
