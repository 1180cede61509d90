"""Cloud Custodian beside us: its action `set-metadata-access`, run once against an EC2 double.

Custodian has an environment of its own, as it pins what caretaker pins otherwise (custodian.txt, made of
custodian.in). Policies are written as its documentation of the action does it: a filter by value for what is
wrong, and the action with what is wanted.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from awsdoubles import venvs
from awsdoubles.clients import KEY, REGION

REQUIREMENTS: Final = Path(__file__).with_name("custodian.txt")
TIMEOUT: Final = 900.0
BROKEN: Final = rb"Error while executing policy (\S+), continuing"  # it logs each that it could not end
# EC2's option -> the action's own word. It has none for HttpProtocolIpv6.
WORDS: Final = {
    "HttpPutResponseHopLimit": "hop-limit",
    "HttpTokens": "tokens",
    "HttpEndpoint": "endpoint",
    "InstanceMetadataTags": "metadata-tags",
}

Policy = dict[str, Any]


class Ended(msgspec.Struct, frozen=True):
    """One run: its exit code, and how many policies broke off at an error."""

    code: int
    broken: int


def python() -> Path:
    """The interpreter of Custodian's environment, which is made when the cache lacks it."""
    return venvs.python("custodian", REQUIREMENTS, "Cloud Custodian")


def together(options: Mapping[str, Any]) -> list[Policy]:
    """One policy for all options: any of them is wrong, all are set."""
    return [_policy("imds", {"or": [_differs(name, value) for name, value in _known(options)]}, options)]


def one_by_one(options: Mapping[str, Any]) -> list[Policy]:
    """A policy for each option."""
    return [_policy(WORDS[name], _differs(name, value), {name: value}) for name, value in _known(options)]


async def run(policies: Sequence[Policy], url: str) -> Ended:
    """`custodian run`, with the double at `url` as all of AWS."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "policies.json").write_text(json.dumps({"policies": policies}))
        interpreter = await asyncio.to_thread(python)
        command = [str(interpreter), "-m", "c7n.cli", "run", "--region", REGION]
        more = ["--output-dir", str(where / "out"), "--cache-period", "0", str(where / "policies.json")]
        process = await asyncio.create_subprocess_exec(
            *command,
            *more,
            cwd=where,
            env=_environment(where, url),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                _, told = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return Ended(process.returncode or 0, len(set(re.findall(BROKEN, told))))


def _known(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in options.items() if name in WORDS]


def _differs(name: str, value: Any) -> Policy:
    return {"type": "value", "key": f"MetadataOptions.{name}", "op": "ne", "value": value}


def _policy(name: str, wrong: Policy, options: Mapping[str, Any]) -> Policy:
    words = {WORDS[option]: value for option, value in _known(options)}
    return {
        "name": name,
        "resource": "aws.ec2",
        "filters": [wrong],
        "actions": [{"type": "set-metadata-access", **words}],
    }


def _environment(home: Path, url: str) -> dict[str, str]:
    """Nothing of the user's; should STS be asked whose account this is, it is the double, which refuses."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_EC2": url,
        "AWS_ENDPOINT_URL_STS": url,
    }
