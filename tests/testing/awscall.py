"""A stand-in for the AWS CLI that calls doubles: `python -m testing.awscall sqs create-queue --queue-name q`.

Words are read by botocore's models, as the CLI reads them: `file://`, JSON, shorthand of maps and structures,
`--query`, `--output text`. Services are found by AWS_ENDPOINT_URL_*; of those named in JUDGED only the words
are judged. Exit code 2 for what the CLI would not take, 254 where the service refuses.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import jmespath
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.session import Session

from awsdoubles.clients import REGION, client
from testing.awswords import GLOBAL, RENAMED, fault

JUDGED: Final = frozenset(("eks",))
# As the CLI calls them (aws-cli, awscli/customizations).
SERVICES: Final = {"s3api": "s3"}


def main(words: list[str]) -> int:
    """See the module."""
    if found := fault(words):
        print(f"aws: {found}", file=sys.stderr)
        return 2
    service = SERVICES.get(words[0], words[0])
    if service in JUDGED:
        return 0
    model = Session().get_service_model(service)
    name = next(one for one in model.operation_names if xform_name(one, "-") == words[1])
    shape = model.operation_model(name).input_shape
    options = _options(words[2:])
    own = {word: options.pop(word)[0] for word in sorted(GLOBAL & options.keys())}
    members = {f"--{xform_name(member, '-')}": member for member in (shape.members if shape else {})}
    members |= RENAMED.get((words[0], words[1]), {})
    params = {members[word]: _value(shape.members[members[word]], given) for word, given in options.items()}
    region = own.get("--region") or os.environ.get("AWS_REGION", REGION)
    variable = f"AWS_ENDPOINT_URL_{model.service_id.upper().replace(' ', '_')}"
    caller = client(service, os.environ[variable], region=region)
    try:
        answer = getattr(caller, xform_name(name))(**params)
    except ClientError as error:
        print(f"\n{error}", file=sys.stderr)
        return 254
    finally:
        caller.close()
    _print(answer, own)
    return 0


def _print(answer: dict[str, Any], own: dict[str, str]) -> None:
    answer.pop("ResponseMetadata", None)
    found: Any = jmespath.search(own["--query"], answer) if "--query" in own else answer
    if own.get("--output") == "text":
        print("None" if found is None else found)
    elif found not in ({}, None):
        print(json.dumps(found, indent=4, default=str))


def _options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
        else:
            found[next(reversed(found))].append(word)
    return found


def _value(shape: Any, words: list[str]) -> Any:
    if shape.type_name == "blob":
        return Path(words[0].removeprefix("fileb://")).read_bytes()
    texts = [Path(w.removeprefix("file://")).read_text() if w.startswith("file://") else w for w in words]
    if shape.type_name == "list" and not texts[0].lstrip().startswith("["):
        return [_one(shape.member, text) for text in texts]
    return _one(shape, texts[0])


def _one(shape: Any, text: str) -> Any:
    if shape.type_name in ("structure", "map", "list"):
        if text.lstrip()[:1] in ("{", "["):
            return json.loads(text)
        return dict(part.split("=", 1) for part in text.split(","))
    return int(text) if shape.type_name in ("integer", "long") else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
