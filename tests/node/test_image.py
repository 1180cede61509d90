"""What is in the images, asked of containers that run."""

import asyncio
import json
import tomllib
from typing import Any, Final

from realnode.kind import KindNode
from testbed.admin import Admin, Json, path
from testbed.paths import CHECKOUT
from testing.cli import Cli
from testing.customresource import Resource, stands
from testing.nodetasks import task
from testing.release import NAMESPACE, Release

LOOK: Final = """
import json, os, pathlib, pwd, sys
import caretaker.app, caretaker.cli.run, boto3, kopf

def writable(folder):
    try:
        (pathlib.Path(folder) / "tried").write_text("")
    except OSError:
        return False
    return True

# The Kubernetes client's typed models: three of hundreds are imported, and bytecode of all is 50 MB.
apart = "kubernetes.client.models."
loaded = [module for name, module in sys.modules.items() if not name.startswith(apart)]
cached = [getattr(module, "__cached__", None) for module in loaded]
print(json.dumps({
    "uid": os.getuid(),
    "name": pwd.getpwuid(os.getuid()).pw_name,
    "writable": [folder for folder in ("/", "/opt/caretaker", "/usr", "/etc") if writable(folder)],
    "uncompiled": [path for path in cached if path and "/opt/" in path and not os.path.exists(path)],
    "bill": json.loads(pathlib.Path("/usr/share/sbom/caretaker.cdx.json").read_text()),
    "found": sorted(path.name for path in pathlib.Path("/opt").iterdir()),
}))
"""


async def seen(release: Release) -> Json:
    """What a Python in the operator's container sees."""
    command = f"kubectl exec -i -n {NAMESPACE} deployment/caretaker -- python3 - <<'END'\n{LOOK}\nEND\n"
    found: dict[str, Any] = json.loads(await asyncio.to_thread(release.shell, command))
    return found


async def test_it_runs_as_a_user_with_a_name_on_a_root_that_cannot_be_written(release: Release) -> None:
    found = await seen(release)
    assert (found["uid"], found["name"], found["writable"]) == (65532, "caretaker", [])
    assert found["found"] == ["caretaker"], "what only builds stays out"
    assert found["uncompiled"] == [], "what is not compiled in the image is compiled at every start"


async def test_its_bill_of_materials_is_what_is_locked(release: Release) -> None:
    bill = (await seen(release))["bill"]
    packages = tomllib.loads((CHECKOUT / "uv.lock").read_text())["package"]
    locked = {f"pkg:pypi/{one['name']}@{one['version']}" for one in packages if "version" in one}
    listed = {one["purl"] for one in bill["components"]}
    assert {"boto3", "kopf", "kubernetes", "msgspec"} <= {one["name"] for one in bill["components"]}
    assert listed <= locked
    assert bill["metadata"]["component"]["name"] == "caretaker"


PROBE: Final = """
import json, os, pathlib, caretaker_probe
bill = json.loads(pathlib.Path("/usr/share/sbom/caretaker-probe.cdx.json").read_text())
print(json.dumps({"uid": os.getuid(), "bill": bill}))
"""


async def test_the_probes_image_lists_what_is_in_it(release: Release, node: KindNode, admin: Admin) -> None:
    await admin.create(path("daemontasks", "default"), task("bill", PROBE, target="probe"))
    await Resource(admin, path("daemontasks", "default", "bill")).when(lambda body: stands(body, "Ready"))
    said = await Cli(node.kubeconfig, "default")("logs", "daemontask", "bill", "--nodes", node.name)
    found = json.loads(said.out[said.out.index("{") :])
    main = found["bill"]["metadata"]["component"]
    assert (found["uid"], main["name"], found["bill"]["components"]) == (65532, "caretaker-probe", [])
    assert main["purl"] == f"pkg:pypi/caretaker@{main['version']}#caretaker_probe"
