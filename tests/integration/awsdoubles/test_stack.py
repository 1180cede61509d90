"""The doubles as processes: `make aws`, ElasticMQ's ways, and that nothing is left running."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from awsdoubles import elasticmq as elasticmq_module
from awsdoubles.cached import DoubleError
from awsdoubles.clients import client
from awsdoubles.ec2.control import Control as Ec2Control
from awsdoubles.elasticmq import ElasticMq
from awsdoubles.gateway.control import Control
from awsdoubles.launch import Server
from awsdoubles.ministack import MiniStack
from awsdoubles.stack import EC2_VARIABLE, GATEWAY_VARIABLE, Ec2Process, Stack
from testbed.paths import CHECKOUT


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "awsdoubles", "--folder", str(folder), *words]


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *words),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "dev"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def processes(folder: Path) -> list[psutil.Process]:
    """Those whose working directory is in the folder: the doubles' all are."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path.resolve()
    Stack(tmp_path).stop()


def test_up_twice_and_down_twice(folder: Path) -> None:
    first = run(folder, "up")
    assert (first.returncode, first.stderr) == (0, "")
    variables = Stack(folder).variables()
    second = run(folder, "up")
    assert "running already" in second.stdout
    assert variables["AWS_ENDPOINT_URL_S3"] in second.stdout
    assert Stack(folder).variables() == variables
    down = run(folder, "down")
    assert "are stopped" in down.stdout
    assert processes(folder) == []
    assert not (folder / "aws.env").exists()
    assert "no AWS doubles were running" in run(folder, "down").stdout


def test_the_variables_lead_boto3_to_the_doubles(folder: Path) -> None:
    assert run(folder, "up").returncode == 0
    stack = Stack(folder)
    variables = stack.variables()
    code = (
        "import boto3, json\n"
        "boto3.client('s3').create_bucket(Bucket='photos',"
        " CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})\n"
        "sqs = boto3.client('sqs').create_queue(QueueName='q')['QueueUrl']\n"
        "topics = boto3.client('sns').list_topics()['Topics']\n"
        "rules = boto3.client('events').list_rules()['Rules']\n"
        "shares = boto3.client('storagegateway').list_file_shares()['FileShareInfoList']\n"
        "nodes = boto3.client('ec2').describe_instances()['Reservations'][0]['Instances']\n"
        "groups = boto3.client('autoscaling').describe_auto_scaling_groups()['AutoScalingGroups']\n"
        "print(json.dumps([sqs, topics, rules, [one['FileShareARN'] for one in shares],"
        " [one['InstanceId'] for one in nodes], groups]))\n"
    )
    control = Control(variables[GATEWAY_VARIABLE])
    gateway = control.add_gateway()
    share = control.add_share(gateway, bucket="photos", read=False)
    nodes = Ec2Control(variables[EC2_VARIABLE]).add_nodes(2)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    script = f"source {stack.environment_file} && exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(
        ["bash", "-c", script], env=bare, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    queue, topics, rules, shares, found, groups = json.loads(done.stdout)
    assert queue.startswith(variables["AWS_ENDPOINT_URL_SQS"])
    assert (topics, rules, shares) == ([], [], [share])
    assert (found, groups) == ([one["id"] for one in nodes], [])
    control.read(share)


def test_a_stack_that_lost_a_process_starts_anew(folder: Path) -> None:
    assert run(folder, "up").returncode == 0
    stack = Stack(folder)
    assert sorted(stack.alive()) == ["cloudwatch", "ec2", "ecs", "ministack", "storagegateway"]
    next(p for p in processes(folder) if "ministack.app" in p.cmdline()).kill()
    while stack.running():
        pass
    assert stack.alive() == ["storagegateway", "ec2", "ecs", "cloudwatch"]
    assert "ready in" in run(folder, "up").stdout
    assert stack.running()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    starting = subprocess.Popen(
        command(folder, "up"),
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "dev")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        while not processes(folder):
            assert starting.poll() is None
        starting.send_signal(number)
        said, _ = starting.communicate(timeout=60)
    finally:
        starting.kill()
    # It may have been done just before the signal: then it is ours to stop.
    assert starting.returncode in {0, 130}, said
    if starting.returncode == 0:
        Stack(folder).stop()
    assert processes(folder) == []


@pytest.mark.parametrize("name", ["MiniStack", "ElasticMq"])
def test_a_double_ends_with_the_process_that_started_it(folder: Path, name: str) -> None:
    """Even when that is killed."""
    code = (
        f"import sys, pathlib, threading\nfrom awsdoubles.{name.lower()} import {name}\n"
        f"print({name}(pathlib.Path(sys.argv[1])).start().url, flush=True)\nthreading.Event().wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "dev")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline().startswith("http://127.0.0.1:")
    started = processes(folder)
    assert len(started) == 2  # the guard and the server
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(started, timeout=20)[1] == []


@pytest.mark.parametrize("double", [MiniStack, ElasticMq, Ec2Process], ids=lambda one: one.name)
def test_doubles_listen_on_loopback_only(folder: Path, double: type[Server]) -> None:
    with double(folder):
        listening = [
            connection.laddr.ip.removeprefix("::ffff:")
            for process in processes(folder)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert set(listening) == {"127.0.0.1"}
    assert processes(folder) == []


def test_a_bucket_with_its_queue_and_share_is_one_command(folder: Path) -> None:
    assert "make aws" in run(folder, "share", "media").stderr
    assert run(folder, "up").returncode == 0
    made = run(folder, "share", "media")
    told = dict(line.split() for line in made.stdout.splitlines())
    variables = Stack(folder).variables()
    s3 = client("s3", variables["AWS_ENDPOINT_URL_S3"])
    s3.put_object(Bucket=told["bucket"], Key="in/a.csv", Body=b"x")
    s3.close()
    assert [one["arn"] for one in Control(variables[GATEWAY_VARIABLE]).shares()] == [told["share"]]
    sqs = client("sqs", variables["AWS_ENDPOINT_URL_SQS"])
    keys: set[str] = set()
    while "in/a.csv" not in keys:  # s3:TestEvent came first
        found = sqs.receive_message(QueueUrl=told["queueURL"], WaitTimeSeconds=5).get("Messages", [])
        bodies = [json.loads(one["Body"]) for one in found]
        keys |= {record["s3"]["object"]["key"] for body in bodies for record in body.get("Records", [])}
    sqs.close()
    again = run(folder, "share", "media")
    assert (again.returncode, again.stderr.splitlines()[0][:6]) == (1, "media:")


def test_two_of_a_kind_do_not_disturb_each_other(folder: Path, ministack: MiniStack) -> None:
    with MiniStack(folder) as other:
        assert other.url != ministack.url
        mine = client("sqs", other.url)
        assert mine.list_queues().get("QueueUrls", []) == []
        mine.close()


def test_a_server_that_dies_at_its_start_shows_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elasticmq_module, "CONFIG", "= port {port}")
    with pytest.raises(DoubleError, match=r"(?s)ended at its start.*config.ConfigException"):
        ElasticMq(folder).start()
    assert processes(folder) == []


def test_on_a_machine_without_java_one_is_fetched_and_runs_elasticmq(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with ElasticMq(folder) as started:
        assert "java-runtime" in " ".join(started.command(1)[0])


def test_elasticmq_keeps_to_the_limits_of_aws_and_redelivers_out_of_order(elasticmq: ElasticMq) -> None:
    sqs = client("sqs", elasticmq.url)
    queue = sqs.create_queue(QueueName="limits")["QueueUrl"]
    with pytest.raises(sqs.exceptions.ClientError):
        sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=11)
    orders = set()
    for _ in range(20):
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(10)]
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
        orders.add(tuple(message["Body"] for message in found))
        handles = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in found]
        sqs.delete_message_batch(QueueUrl=queue, Entries=handles)
    sqs.close()
    assert len(orders) > 1
