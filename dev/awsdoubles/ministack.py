"""MiniStack: S3, SNS, EventBridge and SQS in one process.

It runs in an environment of its own, because it pins libraries that caretaker pins otherwise. It must
not touch the machine's containers: MiniStack would remove those that carry its label.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from awsdoubles import venvs
from awsdoubles.launch import Server
from awsdoubles.loopback import LOOPBACK

REQUIREMENTS: Final = Path(__file__).with_name("ministack.txt")


class MiniStack(Server):
    """`with MiniStack(folder) as aws: ... aws.url`; the state is in memory and ends with it."""

    name: ClassVar[str] = "ministack"

    def __init__(self, folder: Path, *, region: str = "eu-west-1", detached: bool = False) -> None:
        super().__init__(folder, detached=detached)
        self._region = region

    def prepare(self) -> None:
        """Make the environment unless the cache has it."""
        python()

    @property
    def ready_path(self) -> str:
        """MiniStack's own."""
        return "/_ministack/ready"

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Its own address only, its files in our folder, no container engine."""
        scratch = self.folder / "ministack"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        return [str(python()), "-m", "ministack.app"], {
            "BIND_HOST": self.host,
            # The name in queue URLs.
            **({} if self.host == LOOPBACK else {"MINISTACK_HOST": self.host}),
            "GATEWAY_PORT": str(port),
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
            "MINISTACK_REGION": self._region,
            "DOCKER_HOST": f"unix://{scratch}/no-container-engine",
            "TMPDIR": str(scratch),
            "STATE_DIR": str(scratch / "state"),
            "S3_DATA_DIR": str(scratch / "s3"),
            # Those of the user, or of our own tests, are none of its business.
            "PYTHONPATH": "",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SESSION_TOKEN": "",
        }


def python() -> Path:
    """The interpreter of MiniStack's environment, which is made when the cache lacks it."""
    return venvs.python("ministack", REQUIREMENTS, "MiniStack")
