"""Shell commands that name `aws` and `kubectl`, run by a real shell, with stand-ins for the two.

Each stand-in hands its arguments to the test's process, which reads them by botocore's models, as the AWS CLI
does, and calls a double; what the double is not (EKS, instance refreshes, the API server) is validated and
kept, and answered as a test says.
"""

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import botocore.session
import jmespath
from botocore import xform_name
from botocore.validate import ParamValidator

from awsdoubles.clients import client

_STAND_IN: Final = """#!{python} -S
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as s:
    s.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n")
    code, out = json.loads(s.makefile().readline())
print(out, file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""
_OWN: Final = ("region", "query", "output")
_SHELL: Final = "/bin/sh"


class Shell:
    """Runs commands. `calls`: (service, operation, parameters) in order; `patches`: arguments of kubectl;
    `answers`: to operations of which no double knows."""

    def __init__(self, folder: Path, url: str) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.patches: list[list[str]] = []
        self.answers: dict[str, dict[str, Any]] = {
            "DescribeInstanceRefreshes": {"InstanceRefreshes": []},
            "UpdateNodegroupVersion": {},
        }
        self._folder = folder
        self._url = url
        self._clients: dict[tuple[str, str], Any] = {}

    @classmethod
    @contextmanager
    def open(cls, folder: Path, url: str) -> Iterator["Shell"]:
        """`url` is the EC2 double's."""
        shell = cls(folder, url)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = shell._answer(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
            for name in ("aws", "kubectl"):
                file = folder / name
                file.write_text(
                    _STAND_IN.format(python=sys.executable, port=server.server_address[1], name=name)
                )
                file.chmod(0o755)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield shell
            finally:
                server.shutdown()
                thread.join()
                for one in shell._clients.values():
                    one.close()

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """The finished command; what it names is looked for among the stand-ins alone."""
        return subprocess.run(
            [_SHELL, "-c", command],
            env={"PATH": str(self._folder), "HOME": os.devnull},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def _answer(self, words: list[str]) -> tuple[int, str]:
        try:
            if words[0] == "kubectl":
                self.patches.append(words[1:])
                return 0, "patched"
            return 0, self._aws(words[1:])
        except Exception as error:  # noqa: BLE001 - whatever it is, the command has failed
            return 255, repr(error)

    def _aws(self, words: Sequence[str]) -> str:
        (service, operation), options = words[:2], dict(zip(words[2::2], words[3::2], strict=True))
        model = self._session.get_service_model(service)
        name = next(one for one in model.operation_names if xform_name(one, "-") == operation)
        shape = model.operation_model(name).input_shape
        given = {key.removeprefix("--"): value for key, value in options.items()}
        params = _parameters(shape, {k: v for k, v in given.items() if k not in _OWN})
        report = ParamValidator().validate(params, shape)
        if report.has_errors():
            raise ValueError(report.generate_report())
        self.calls.append((service, name, params))
        if service == "eks" or name in self.answers:
            found = self.answers[name]
        else:
            found = getattr(self._client(service, given["region"]), xform_name(name))(**params)
        found = jmespath.search(given.get("query", "@"), found)
        if given.get("output") == "text":
            return "\t".join(map(str, found)) if isinstance(found, list) else str(found)
        return json.dumps(found, default=str)

    def _client(self, service: str, region: str) -> Any:
        if (service, region) not in self._clients:
            self._clients[service, region] = client(service, self._url, region=region)
        return self._clients[service, region]

    @cached_property
    def _session(self) -> Any:
        return botocore.session.get_session()


def _parameters(shape: Any, given: Mapping[str, str]) -> dict[str, Any]:
    members = {xform_name(name, "-"): name for name in shape.members}
    if "nodegroupName" in shape.members:
        members["kubernetes-version"] = "version"  # --version is the AWS CLI's own
    return {members[key]: _value(shape.members[members[key]], value) for key, value in given.items()}


def _value(shape: Any, text: str) -> Any:
    """JSON, or the CLI's shorthand `name=value,name=value`."""
    if shape.type_name == "structure":
        return json.loads(text) if text.startswith("{") else dict(part.split("=") for part in text.split(","))
    if shape.type_name == "list":
        return [text]
    return int(text) if shape.type_name == "integer" else text
