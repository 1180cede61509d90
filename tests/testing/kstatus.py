"""What kstatus makes of objects: the words that Flux and Helm act upon, from the library that they link."""

import json
import subprocess
from collections.abc import Iterable
from typing import Any

import gotools


def words(resources: Iterable[dict[str, Any]]) -> list[str]:
    """Current, InProgress, Failed or Terminating, for each object in order."""
    text = "\n".join(json.dumps(resource) for resource in resources)
    command = [str(gotools.path("kstatus"))]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [str(json.loads(line)["status"]) for line in ran.stdout.splitlines()]


def word(resource: dict[str, Any]) -> str:
    """The same of one object."""
    (found,) = words([resource])
    return found
