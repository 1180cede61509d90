"""A Prometheus server of our own, built from its Go module: it scrapes one operator, and answers PromQL.

Inputs: a folder, the address of /metrics, and the labels that a cluster would add. It listens on loopback, on
a free port, and ends with the process that started it.
"""

import json
import shutil
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

import gotools
from awsdoubles.launch import Server
from awsdoubles.loopback import DIRECT

SCRAPE_SECONDS: Final = 1
Points = list[tuple[float, float]]


class Prometheus(Server):
    """See the module."""

    name: ClassVar[str] = "prometheus"

    def __init__(self, folder: Path, metrics_url: str, labels: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._metrics = urllib.parse.urlsplit(metrics_url)
        self._labels = dict(labels)

    def prepare(self) -> None:
        """Build it, once; write its configuration."""
        gotools.path(self.name)
        job = {
            "job_name": self._labels["job"],
            "honor_labels": True,
            "metrics_path": self._metrics.path,
            "static_configs": [{"targets": [self._metrics.netloc], "labels": self._labels}],
        }
        content = {"global": {"scrape_interval": f"{SCRAPE_SECONDS}s"}, "scrape_configs": [job]}
        shutil.rmtree(self.folder / "data", ignore_errors=True)  # of an earlier run
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(content))

    @property
    def ready_path(self) -> str:
        """Prometheus' own."""
        return "/-/ready"

    @property
    def _file(self) -> Path:
        return self.folder / "prometheus.yml"

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Everything stays in the folder."""
        options = {
            "config.file": self._file,
            "storage.tsdb.path": self.folder / "data",
            "web.listen-address": f"127.0.0.1:{port}",
            "log.level": "warn",
        }
        return [str(gotools.path(self.name)), *(f"--{key}={value}" for key, value in options.items())], {}

    def series(self, expression: str, since: float, until: float) -> list[tuple[dict[str, str], Points]]:
        """An expression over a time (seconds since the epoch): each series' labels and points."""
        step = max(round((until - since) / 200), SCRAPE_SECONDS)
        query = {"query": expression, "start": since, "end": until, "step": step}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        with DIRECT.open(url, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return [
            (one["metric"], [(float(at), float(value)) for at, value in one["values"]])
            for one in found["data"]["result"]
        ]
