"""The processes of a pod's containers, found from outside: no container runtime is asked.

Input: the pod's uid. The kubelet puts it into the names of cgroups, as it is (driver cgroupfs) or with
underscores (systemd), below a root of its own. It must not end what it finds.
"""

import contextlib
from pathlib import Path
from typing import Final

import psutil

# What holds a pod's namespaces open; its end is the kubelet's affair.
PAUSE: Final = "/pause"


def processes(pod: str) -> list[int]:
    """The ids, as this process sees them, of what runs in the containers of the pod with this uid."""
    names = (f"pod{pod}", f"pod{pod.replace('-', '_')}")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            if any(name in groups for name in names) and process.exe() != PAUSE:
                found.append(process.pid)
    return found
