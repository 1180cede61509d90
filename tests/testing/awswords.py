"""A stand-in for the AWS CLI: it judges words and calls nothing. Judged are service, operation, options, and
that no required one is missing, never values: `python -m testing.awswords sqs get-queue-url --queue-name q`.

It prints nothing, as the CLI does where there is nothing; exit code 2 for what the CLI would not take.
"""

import sys
from functools import cache
from typing import Final

import botocore.session
from botocore import xform_name

# Options that are not called as their parameter is (aws-cli, awscli/customizations/argrename.py).
RENAMED: Final = {("sns", "subscribe"): {"--notification-endpoint": "Endpoint"}}
# Of every command (AWS CLI reference, "Global options").
GLOBAL: Final = frozenset(("--region", "--query", "--output", "--profile", "--endpoint-url"))


@cache
def _session() -> botocore.session.Session:
    return botocore.session.get_session()


def fault(words: list[str]) -> str:
    """Why the CLI would refuse this; "" when it would not."""
    service, command, *rest = [*words, "", ""][: max(len(words), 2)]
    session = _session()
    if service == "s3api":
        service = "s3"
    if service not in session.get_available_services():
        return f"no service {service}"
    model = session.get_service_model(service)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    if command not in names:
        return f"no command {service} {command}"
    shape = model.operation_model(names[command]).input_shape
    members = {f"--{xform_name(name, '-')}": name for name in (shape.members if shape else {})}
    members |= RENAMED.get((service, command), {})
    flags = {f"--no-{option[2:]}": name for option, name in members.items()}
    given = [word for word in rest if word.startswith("--")]
    unknown = [word for word in given if word not in members and word not in flags and word not in GLOBAL]
    if unknown:
        return f"{service} {command} has no {unknown[0]}"
    told = {members.get(word) or flags.get(word) for word in given}
    missing = [name for name in (shape.required_members if shape else ()) if name not in told]
    return f"{service} {command} needs {missing[0]}" if missing else ""


if __name__ == "__main__":
    found = fault(sys.argv[1:])
    if found:
        print(f"aws: {found}", file=sys.stderr)
    sys.exit(2 if found else 0)
