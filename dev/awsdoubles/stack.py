"""MiniStack and our doubles of Storage Gateway, EC2, ECS and CloudWatch together, in the background:
`make aws`, `make aws-down`.

Input: a folder for state, logs and `aws.env`, which exports what boto3 and the AWS CLI read. Nothing
listens but on loopback, and starting twice starts once.
"""

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from awsdoubles.awsserver import HEALTH
from awsdoubles.clients import KEY, REGION
from awsdoubles.launch import Server
from awsdoubles.ministack import MiniStack
from testbed.processes import Processes

# MiniStack has many more: those that caretaker uses, so that none of its calls leaves the machine.
SERVICES: Final = ("S3", "SQS", "SNS", "EVENTBRIDGE", "STS", "EC2", "ECS", "CLOUDWATCH")
GATEWAY_VARIABLE: Final = "AWS_ENDPOINT_URL_STORAGE_GATEWAY"
PACKAGES: Final = str(Path(__file__).resolve().parents[1])
S3_CONTROL_VARIABLE: Final = "AWS_ENDPOINT_URL_S3_CONTROL"
EC2_VARIABLE: Final = "AWS_ENDPOINT_URL_EC2"
ECS_VARIABLE: Final = "AWS_ENDPOINT_URL_ECS"
CLOUDWATCH_VARIABLE: Final = "AWS_ENDPOINT_URL_CLOUDWATCH"
EC2_VARIABLES: Final = (EC2_VARIABLE, "AWS_ENDPOINT_URL_AUTO_SCALING")  # one server for both


class GatewayProcess(Server):
    """The Storage Gateway double as a process of its own."""

    name: ClassVar[str] = "storagegateway"

    def __init__(self, folder: Path, s3_url: str, *, detached: bool = False) -> None:
        super().__init__(folder, detached=detached)
        self._s3_url = s3_url

    def prepare(self) -> None:
        """Nothing to fetch."""

    @property
    def ready_path(self) -> str:
        """The double's own."""
        return HEALTH

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Our own Python, our own packages."""
        command = [sys.executable, "-m", "awsdoubles", "gateway", "--s3", self._s3_url, "--port", str(port)]
        return command, {"PYTHONPATH": PACKAGES}


class Ec2Process(Server):
    """The EC2 double as a process of its own; `ec2.control.Control(url)` steers it."""

    name: ClassVar[str] = "ec2"

    def prepare(self) -> None:
        """Nothing to fetch."""

    @property
    def ready_path(self) -> str:
        """The double's own."""
        return HEALTH

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Our own Python, our own packages."""
        return [sys.executable, "-m", "awsdoubles", "ec2", "--port", str(port)], {"PYTHONPATH": PACKAGES}


class EcsProcess(Server):
    """The ECS double as a process of its own; `ecs.control.Control(url)` steers it."""

    name: ClassVar[str] = "ecs"

    def prepare(self) -> None:
        """Nothing to fetch."""

    @property
    def ready_path(self) -> str:
        """The double's own."""
        return HEALTH

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Our own Python, our own packages."""
        return [sys.executable, "-m", "awsdoubles", "ecs", "--port", str(port)], {"PYTHONPATH": PACKAGES}


class CloudWatchProcess(Server):
    """The CloudWatch double as a process of its own; `cloudwatch.control.Control(url)` steers it."""

    name: ClassVar[str] = "cloudwatch"

    def prepare(self) -> None:
        """Nothing to fetch."""

    @property
    def ready_path(self) -> str:
        """The double's own."""
        return HEALTH

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Our own Python, our own packages."""
        command = [sys.executable, "-m", "awsdoubles", "cloudwatch", "--port", str(port)]
        return command, {"PYTHONPATH": PACKAGES}


class Stack:
    """What `make aws` starts, in `folder`/aws, with its variables in `folder`/aws.env."""

    def __init__(self, folder: Path) -> None:
        self.environment_file = folder / "aws.env"
        self._folder = folder / "aws"

    def alive(self) -> list[str]:
        """The names of the doubles that run."""
        return [one.name for one in self._servers("") if one.alive()]

    def running(self) -> bool:
        """Whether all of them do, and the variables are there to reach them."""
        return len(self.alive()) == len(self._servers("")) and self.environment_file.exists()

    def start(self) -> dict[str, str]:
        """Start all anew and return the variables; stops everything when one fails."""
        with self._alone():
            self._stop()
            try:
                aws = MiniStack(self._folder, detached=True).start()
                gateway = GatewayProcess(self._folder, aws.url, detached=True).start()
                ec2 = Ec2Process(self._folder, detached=True).start()
                ecs = EcsProcess(self._folder, detached=True).start()
                cloudwatch = CloudWatchProcess(self._folder, detached=True).start()
                variables = environment(
                    aws.url, gateway.url, ec2_url=ec2.url, ecs_url=ecs.url, cloudwatch_url=cloudwatch.url
                )
                text = "".join(f"export {name}={value}\n" for name, value in variables.items())
                fresh = self.environment_file.with_suffix(".new")
                fresh.write_text(text)
                fresh.replace(self.environment_file)
            except BaseException:
                self._stop()
                raise
        return variables

    def stop(self) -> None:
        """Stop what runs; safe to call twice."""
        if self._folder.exists():
            with self._alone():
                self._stop()

    def variables(self) -> dict[str, str]:
        """What `environment_file` exports."""
        lines = self.environment_file.read_text().splitlines()
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def _servers(self, s3_url: str) -> list[Server]:
        return [
            MiniStack(self._folder, detached=True),
            GatewayProcess(self._folder, s3_url, detached=True),
            Ec2Process(self._folder, detached=True),
            EcsProcess(self._folder, detached=True),
            CloudWatchProcess(self._folder, detached=True),
        ]

    def _stop(self) -> None:
        self.environment_file.unlink(missing_ok=True)
        # All at once: where nobody collects orphans promptly, each would be waited for.
        everything = Processes(self._folder.resolve(), end_with_parent=False)
        everything.stop([server.name for server in self._servers("")], hard=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def environment(
    aws_url: str,
    gateway_url: str,
    sqs_url: str = "",
    region: str = REGION,
    *,
    ec2_url: str = "",
    ecs_url: str = "",
    cloudwatch_url: str = "",
) -> dict[str, str]:
    """The variables that lead boto3 and the AWS CLI to doubles, and to nothing else."""
    urls = {f"AWS_ENDPOINT_URL_{service}": aws_url for service in SERVICES}
    urls["AWS_ENDPOINT_URL_SQS"] = sqs_url or aws_url
    urls |= dict.fromkeys(EC2_VARIABLES, ec2_url or aws_url)
    urls[ECS_VARIABLE] = ecs_url or aws_url
    urls[CLOUDWATCH_VARIABLE] = cloudwatch_url or aws_url
    # Clients put the account and a dot before the host. Before "@" they are a user's name.
    urls[S3_CONTROL_VARIABLE] = gateway_url.replace("://", "://account@", 1)
    return urls | {
        GATEWAY_VARIABLE: gateway_url,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_SESSION_TOKEN": "",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
