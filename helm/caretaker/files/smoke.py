"""`helm test`: one DaemonTask runs on every node that it fits, and is gone afterwards.

Inputs: TASK, a manifest; TIMEOUT in seconds; the Pod's service account. Only the standard library: it runs in
the operator's image, and shares nothing with the operator that it judges.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
HOST = os.environ["KUBERNETES_SERVICE_HOST"]
SERVER = f"https://{f'[{HOST}]' if ':' in HOST else HOST}:{os.environ['KUBERNETES_SERVICE_PORT']}"
TLS = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def ask(method, path, body=None):
    """The API server's answer, decoded; None where there is no such object."""
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404 and method != "POST":
            return None
        raise SystemExit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from None


def follow(path, ends):
    """Show how far the task is, whenever that changes; the exit code."""
    shown = None
    while time.monotonic() < ends:
        status = (ask("GET", path) or {}).get("status", {})
        counts = {
            name: status.get(name, 0) for name in ("desired", "active", "succeeded", "failed", "blocked")
        }
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        line = f"{counts} {ready.get('reason', 'not seen by an operator yet')}: {ready.get('message', '')}"
        if line != shown:
            print(line, flush=True)
            shown = line
        if ready.get("status") == "True" and status.get("observedGeneration", 0) >= 1:
            if counts["desired"] and counts["succeeded"] == counts["desired"]:
                print("every node has run it")
                return 0
            if not counts["desired"]:
                print("no node fits: see test.nodeSelector and test.tolerations")
                return 1
        if counts["failed"]:
            print(json.dumps(status.get("failedNodes", []), indent=2))
            return 1
        time.sleep(1)
    print("not done in time")
    return 1


def main():
    """Create the task, follow it, take it away again."""
    task = json.loads(os.environ["TASK"])
    tasks = f"/apis/caretaker.dev/v1alpha1/namespaces/{task['metadata']['namespace']}/daemontasks"
    path = f"{tasks}/{task['metadata']['name']}"
    ends = time.monotonic() + float(os.environ["TIMEOUT"])
    ask("DELETE", path)
    while ask("GET", path) is not None and time.monotonic() < ends:
        time.sleep(0.5)
    ask("POST", tasks, task)
    try:
        return follow(path, ends)
    finally:
        ask("DELETE", path)


if __name__ == "__main__":
    sys.exit(main())
