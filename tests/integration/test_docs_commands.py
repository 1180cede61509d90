"""Every command in the pages runs: here, in a test of a guide, or the table below says why not."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

import chart
import gotools
from awsdoubles.clients import ACCOUNT
from awsdoubles.ec2.server import Ec2
from awsdoubles.envelopes import Queue
from awsdoubles.gateway.server import StorageGateway
from testbed import build
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.steer import behaviour, release_node, steer_node
from testing import manifests
from testing.aws import Aws
from testing.awswords import fault
from testing.cluster import Nodes
from testing.imds import NOWHERE
from testing.kubeletlogs import KubeletLogs
from testing.operator import OperatorProcess
from testing.pages import Block, blocks, run_by_tests, scratch
from testing.refreshing import Refreshing
from testing.refreshing import operator as refresher
from testing.roles import SYSTEM, small_task

NAME: Final = "docs"
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
LINES: Final = "tests/integration/chart runs its lines, one by one"
BELOW: Final = "run below, after those that it needs"
STAYS: Final = "a process that stays, or a suite: what they start has tests of its own"
# A page, or "page: heading (number)" -> why its block is not run here.
NOT_RUN: Final = {
    "README.md: Two commands": STAYS,
    "docs/install.md: From a release": "tests/integration/test_dist.py runs it in dist/",
    "docs/install.md: From a release (2)": "asks Sigstore who published; nothing is published yet",
    "docs/install.md: Without images": STAYS,
    "README.md: Quick start on your cluster": "needs an engine; tests/node installs from an image",
    "README.md: S3AggregatedRefresh": BELOW,
    "CONTRIBUTING.md": STAYS,
    "docs/cli.md: status of a DaemonTask (3)": "needs a double of ECS: tests/integration/ecs does it",
    "docs/image.md": "needs an engine and a registry; tests build the same Dockerfile with buildah",
    "docs/imds-probe.md": "needs an address of metadata; tests/integration/hoplab runs the probe",
    "docs/install.md: CRDs are there already": LINES,
    "docs/upgrade.md: With Helm": LINES,
    "docs/upgrade.md: With Helm (2)": f"{LINES}; `helm test` needs pods that run",
    "docs/operations.md: TargetGone": BELOW,
    "docs/operations.md: Health endpoints": "needs the chart's pods, and stays; what asks through it runs",
    "docs/recipes.md: rotate-certificate": "labels nodes; tests/integration/daemontask does the same",
    "helm/caretaker/README.md": "the same as docs/install.md has",
    "docs/s3-walkthrough.md": BELOW,
    "docs/spec/s3aggregatedrefresh.md: The queue": BELOW,
    "docs/spec/s3aggregatedrefresh.md: AWS CLI": BELOW,
}
# What comes with 1 as the page says.
FAILS: Final = ("docs/cli.md: plan", "docs/cli.md: plan of an S3AggregatedRefresh (2)")


# What leaves the cluster of the test has no place among what is run here.
OUTSIDE: Final = re.compile(r"\b(docker|podman|buildah|sudo|ssh|git|make|terraform|rm)\b")


def reason(block: Block) -> str:
    """Why it is not run here; "" = it is."""
    if (block.page, block.heading, block.number) in run_by_tests():
        return "a test of the guide runs it"
    return NOT_RUN.get(str(block), NOT_RUN.get(block.page, ""))


HERE: Final = [block for block in blocks() if not reason(block)]
BLOCK_SECONDS: Final = 180


def test_the_table_names_no_block_that_is_not_there() -> None:
    known = {str(block) for block in blocks()} | {block.page for block in blocks()}
    assert set(NOT_RUN) - known == set()
    assert len(HERE) > 45


def test_what_is_run_here_stays_within_the_cluster_of_the_test() -> None:
    assert {str(block): found[0] for block in HERE if (found := OUTSIDE.search(block.script))} == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sqs get-queue-url --queue-name q --region eu-west-1", ""),
        ("sqs get-queue-url --queue q", "no --queue"),
        ("sqs get-queue-url", "needs QueueName"),
        ("sqs get-queue", "no command"),
        ("squeue list", "no service"),
    ],
)
def test_the_stand_in_refuses_what_the_cli_would(words: str, said: str) -> None:
    assert said in fault(words.split())
    assert bool(said) == bool(fault(words.split()))


def aws_words(script: str) -> Iterator[list[str]]:
    """The commands of the AWS CLI, without what a shell makes of the rest of the line."""
    for line in script.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\$\()aws (.*)", line)
        if found is None or line.count("'") % 2:
            continue  # what goes on over lines is judged where it runs
        words = shlex.split(found[1].rstrip(")"), comments=True)
        stops = (at for at, word in enumerate(words) if word in ("|", ">", "&&"))
        yield words[: next(stops, len(words))]


def test_the_words_of_aws_commands_that_do_not_run_are_right_too() -> None:
    every = [words for block in blocks() if reason(block) for words in aws_words(block.script)]
    assert len(every) > 5
    assert {" ".join(words): said for words in every if (said := fault(words))} == {}


def test_the_manifests_of_the_readme_are_accepted(cluster: Cluster, namespace: str) -> None:
    text = (CHECKOUT / "README.md").read_text()
    given = "---\n".join(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    command = [str(build.ensure() / "kubectl"), "apply", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = subprocess.run(
        [*command, "--namespace", namespace, "--kubeconfig", str(cluster.kubeconfig)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    created = [line.partition(".")[0] for line in done.stdout.splitlines()]
    assert created == ["daemontask", "s3aggregatedrefresh", "imdspolicy"]


@pytest.fixture
async def objects(
    admin: Admin, cluster: Cluster, namespace: str, nodes: Nodes
) -> AsyncIterator[OperatorProcess]:
    """A resource of each kind, called NAME: of a task that failed on one of two nodes, a refresh and a policy
    without AWS; and the operator."""
    for one in (SYSTEM, "argocd"):
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}}
        await admin.apply(path("namespaces", name=one), body)
    made = await nodes.add(2)
    await steer_node(admin, made[0], behaviour("fail", run_seconds=0.1))
    flags = ("--operator-namespace", SYSTEM)
    keys = cluster.folder / "pki"
    with OperatorProcess(cluster.kubeconfig, time_scale=0.3, args=flags, env=NOWHERE) as operator:
        async with KubeletLogs(admin, keys / "apiserver.crt", keys / "apiserver.key") as kubelet:
            await kubelet.serve(made)
            await admin.create(path("daemontasks", namespace), small_task(NAME, nodes, backoffLimit=0))
            for one in (NAME, "workers"):
                await admin.create(path("imdspolicies"), policy(one))
            await admin.create(path("s3aggregatedrefreshes", namespace), refresh(NAME))
            # As the pages' examples are called.
            await admin.create(path("s3aggregatedrefreshes", "default"), refresh("media"))
            for file in ("hello.yaml", "free-disk.yaml"):
                body = manifests.load((CHECKOUT / "examples" / file).read_text())
                await admin.create(path("daemontasks", "default"), body)
            url = path("daemontasks", namespace, NAME)
            await admin.wait_for(url, lambda t: t.get("status", {}).get("failed") == 1, 60)
            await release_node(admin, made[0])
            yield operator
    bounds = ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
    await admin.patch(path("namespaces", name=SYSTEM), {"metadata": {"labels": {ENFORCE: None}}})
    for url in (
        path("imdspolicies", name=NAME),
        path("imdspolicies", name="workers"),
        path("imdspolicies", name="builders"),
        path("s3aggregatedrefreshes", "default", "media"),
        path("daemontasks", "default", "hello"),
        path("daemontasks", "default", "free-disk"),
        *(path(plural, name="caretaker-operator") for plural in bounds),
    ):
        if await admin.find(url) is not None:
            await admin.delete(url)


@pytest.fixture
def media(aws: Aws) -> Iterator[Aws]:
    """AWS with the bucket of the pages; it and their queues are gone afterwards."""
    aws.wiring.bucket("media")
    yield aws
    for found in aws.s3.list_objects_v2(Bucket="media").get("Contents", ()):
        aws.s3.delete_object(Bucket="media", Key=found["Key"])
    aws.s3.delete_bucket(Bucket="media")
    for url in aws.sqs.list_queues(QueueNamePrefix="media-events").get("QueueUrls", ()):
        aws.sqs.delete_queue(QueueUrl=url)


def refresh(name: str, queue: str = "") -> Json:
    """One that nothing was granted to, with the target that the pages name."""
    queue = queue or "https://sqs.eu-west-1.amazonaws.com/111122223333/media-events"
    spec = {
        "aws": {"region": "eu-west-1"},
        "source": {"sqs": {"queueURL": queue}},
        "target": {"storageGateway": {"shares": {"discover": {}}}},
    }
    head = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "S3AggregatedRefresh"}
    return {**head, "metadata": {"name": name}, "spec": spec}


def policy(name: str) -> Json:
    """One of no node."""
    spec = {
        "options": {"httpPutResponseHopLimit": 2},
        "selector": {"nodeSelector": {"matchLabels": {"none": "such"}}},
    }
    head = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "IMDSPolicy"}
    return {**head, "metadata": {"name": name}, "spec": spec}


def files(aws: Aws, bucket: str) -> dict[str, dict[str, str]]:
    """The files that blocks name: by block, those of the empty name for all others."""
    hello = (CHECKOUT / "examples" / "hello.yaml").read_text()
    media = {**refresh("media", aws.queue(max_receives=10).url), "metadata": {"name": "media"}}
    media["spec"]["filter"] = {"buckets": [bucket]}
    hasty = refresh("media", aws.queue(max_receives=2).url)
    return {
        "": {"task.yaml": hello, "refresh.yaml": yaml.safe_dump(media)},
        "docs/cli.md: plan": {"task.yaml": hello.replace("image: busybox:1.37", "name: hello")},
        "docs/cli.md: plan of an S3AggregatedRefresh (2)": {"refresh.yaml": yaml.safe_dump(hasty)},
    }


def programs(folder: Path, aws: str) -> Path:
    """kubectl, helm, jq and caretaker as they are; a module of ours as aws, and a curl that reads."""
    folder.mkdir()
    (folder / "kubectl").symlink_to(build.ensure() / "kubectl")
    (folder / "helm").symlink_to(chart.program())
    (folder / "jq").symlink_to(gotools.path("gojq"))
    (folder / "caretaker").symlink_to(Path(sys.executable).with_name("caretaker"))
    read = "import sys, urllib.request as r; print(r.urlopen('http://' + sys.argv[-1]).read().decode())"
    for name, call in (("aws", f"-m {aws}"), ("curl", f'-c "{read}"')):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def surroundings(folder: Path, cluster: Cluster, aws: str = "testing.awswords") -> dict[str, str]:
    """Variables of a shell in which what pages name is found."""
    return {
        **os.environ,
        "PATH": f"{programs(folder / 'bin', aws)}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("tests", "operator", "dev")),
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(folder),
    }


def filled_in(script: str, namespace: str, operator: OperatorProcess) -> str:
    """With names in the place of NAME and NS, and the ports that the operator has here."""
    script = script.replace("localhost:8081", f"localhost:{operator.health_port}")
    script = re.sub(r"^\.\.\. \|", "cat operator.log |", script, flags=re.MULTILINE)
    return re.sub(r"\bNS\b", namespace, re.sub(r"\bNAME\b", NAME, script))


@pytest.mark.timeout(len(HERE) * BLOCK_SECONDS / 4)  # one after the other, beside all that a worker runs
async def test_every_command_of_the_pages_runs(
    objects: OperatorProcess,
    cluster: Cluster,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    ec2: Ec2,
    tmp_path: Path,
) -> None:
    where = tmp_path / "checkout"
    where.mkdir()
    env = surroundings(tmp_path, cluster) | aws.environment(storage_gateway.url, ec2_url=ec2.url)
    scratch(where)
    (where / "operator.log").write_text("\n".join(line for line in objects.lines if line.startswith("{")))
    bucket = aws.bucket()
    storage_gateway.control.add_share(storage_gateway.control.add_gateway(), bucket=bucket)
    given = files(aws, bucket)
    failed = []
    for block in HERE:
        if OUTSIDE.search(block.script):
            continue  # told by the test above
        for name, text in {**given[""], **given.get(str(block), {})}.items():
            (where / name).write_text(text)
        script = filled_in(block.script, namespace, objects)
        done = await run(script, where, env, BLOCK_SECONDS)
        if bool(done.returncode) != (str(block) in FAILS):
            failed.append(f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    assert failed == [], "\n".join(failed)


async def test_the_walk_through_leads_from_a_bucket_to_an_object_on_its_share(
    admin: Admin, cluster: Cluster, media: Aws, storage_gateway: StorageGateway, tmp_path: Path
) -> None:
    """Each block in the same shell, as readers type them."""
    place = Refreshing(admin, SYSTEM, media, storage_gateway.control)
    share = place.share("media")
    body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await admin.apply(path("namespaces", name=SYSTEM), body)
    where = tmp_path / "checkout"
    where.mkdir()
    scratch(where)
    doubles = media.environment(storage_gateway.url) | {"AWS_ENDPOINT_URL_IAM": media.url}
    env = surroundings(tmp_path, cluster, "testing.awscall") | doubles
    env["KUBECONFIG"] = shutil.copy(cluster.kubeconfig, tmp_path / "kubeconfig")
    *steps, away = [block.script for block in blocks() if block.page == "docs/s3-walkthrough.md"]
    elsewhere = {str(block): block.script for block in blocks()}
    gone = (
        elsewhere["docs/operations.md: TargetGone"].replace("-n NS", f"-n {SYSTEM}").replace("NAME", "media")
    )
    gone = gone.replace("INDEX", "0").replace("share-E51FBS9C", share.rpartition("/")[2])
    here = f"kubectl config set-context --current --namespace {SYSTEM}"
    script = "\n".join([*steps, here, elsewhere["README.md: S3AggregatedRefresh"], gone, away])
    assert script.count("aws ") > 10
    args = ("--operator-namespace", SYSTEM)
    with refresher(cluster.kubeconfig, tmp_path, doubles, namespace=SYSTEM, args=args):
        said = await run(script, where, env, 240)
    assert said.returncode == 0, f"{said.stdout}{said.stderr}"
    assert "S3AggregatedRefresh caretaker-system/media: 1 target, 1 " in said.stdout
    whole, one, *_ = place.control.refreshes(share)
    assert (whole["folders"], set(one["folders"])) == (["/"], {"2026/11", "2026", "/"})
    assert place.control.differences(share) == []
    assert not media.sqs.list_queues(QueueNamePrefix="media-events").get("QueueUrls")


async def test_the_queue_and_the_buckets_events_are_made_by_the_page(
    media: Aws, cluster: Cluster, tmp_path: Path
) -> None:
    """Its files, its commands, and once more: which changes nothing, others' configurations least of all."""
    text = (CHECKOUT / "docs/spec/s3aggregatedrefresh.md").read_text().partition("\n## The queue\n")[2]
    queue, policy = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    for name, content in (("queue.json", queue), ("policy.json", policy)):
        (tmp_path / name).write_text(content.replace("111122223333", ACCOUNT))
    theirs = media.queue()
    other = {"Id": "theirs", "QueueArn": media.wiring.arn_of(theirs.url), "Events": ["s3:ObjectTagging:*"]}
    configured = {"QueueConfigurations": [other]}
    media.s3.put_bucket_notification_configuration(Bucket="media", NotificationConfiguration=configured)
    env = surroundings(tmp_path, cluster, "testing.awscall") | media.environment("")
    found = {str(b): b.script for b in blocks() if b.page == "docs/spec/s3aggregatedrefresh.md"}
    first, events = (found[f"docs/spec/s3aggregatedrefresh.md: {x}"] for x in ("The queue", "AWS CLI"))
    events = events.replace("111122223333", ACCOUNT)
    assert "\ndiff " in events
    for script in (first, events.replace("\ndiff ", "\n! diff "), events):
        done = await run(script, tmp_path, env, 60)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    stands = media.s3.get_bucket_notification_configuration(Bucket="media")["QueueConfigurations"]
    assert {one["Id"] for one in stands} == {"theirs", "caretaker"}
    url = media.sqs.get_queue_url(QueueName="media-events")["QueueUrl"]
    while "Messages" in (got := media.sqs.receive_message(QueueUrl=url)):  # S3's own, of the configuration
        for message in got["Messages"]:
            media.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    media.put("media", "in/a.csv")
    (event,) = media.receive(Queue(url, media.wiring.arn_of(url)))
    assert event["Records"][0]["s3"]["object"]["key"] == "in/a.csv"


async def run(
    script: str, where: Path, env: dict[str, str], seconds: int
) -> subprocess.CompletedProcess[str]:
    """The finished shell."""
    command = ["timeout", str(seconds), "bash", "-euo", "pipefail", "-c", script]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=where, env=env, capture_output=True, text=True, check=False
    )
