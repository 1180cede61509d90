"""What our own container engine runs, made on this machine: no registry is asked.

Inputs: Debian's packages, the programs of `dev/controlplane`, kubeadm, CoreDNS, and the files of kind's
module that make Debian a node. Outputs, in the user's cache and keyed by all that they depend on: Debian with
Docker as a folder, which is the engine's root file system and the lowest layer of the nodes; the nodes'
image; the images of the cluster's own pods.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gotools
from awsdoubles.cached import ensure
from realnode import archive, images
from realnode.errors import NodeError
from realnode.needs import program
from testbed import build, compiling
from testbed.paths import MODULE

NODE: Final = "localhost/kind-node:ours"
REGISTRY: Final = "registry.k8s.io"
# What kind's config.toml and the kubeadm of this Kubernetes ask for.
PAUSE: Final = f"{REGISTRY}/pause:3.10"
COREDNS: Final = f"{REGISTRY}/coredns/coredns:v1.14.2"
# What examples/hello.yaml runs.
BUSYBOX: Final = "docker.io/library/busybox:1.37"
ETCD: Final = f"{REGISTRY}/etcd:3.6.8-0"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "docker.io", "containerd", "runc", "containernetworking-plugins"),
    *("iptables", "iproute2", "conntrack", "ethtool", "socat", "kmod", "mount", "procps", "ca-certificates"),
)
# As the Dockerfile of kind's base image does: of systemd's units only those that a node wants.
CUSTOMIZE: Final = """set -e
cd "$1"
rm -f lib/systemd/system/multi-user.target.wants/* etc/systemd/system/*.wants/* \
  lib/systemd/system/local-fs.target.wants/* lib/systemd/system/basic.target.wants/* \
  lib/systemd/system/sockets.target.wants/*udev* lib/systemd/system/sockets.target.wants/*initctl* \
  lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
echo ReadKMsg=no >> etc/systemd/journald.conf
: > etc/machine-id
mkdir -p etc/kubernetes/manifests kind LICENSES opt/cni
"""
UNITS: Final = ("kubelet", "containerd", "undo-mount-hacks")
_OURS: Final = Path(__file__).with_name("kindnode")
_PROGRAMS: Final = "usr/local/bin"
# Links in the image of a pod, all to one program.
COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
ENVIRONMENT: Final = (
    "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
    # Rules of CRDs name time zones.
    "ZONEINFO=/usr/local/lib/zoneinfo.zip",
)


def debian() -> Path:
    """The root file system."""
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
    included = f"--include={','.join(PACKAGES)}"
    command = ["--variant=minbase", "--format=directory", included, *without]
    return _mmdebstrap("node-debian", [*command, f"--customize-hook={CUSTOMIZE}"], "a node's Debian") / "root"


def node() -> Path:
    """The archive of the nodes' image."""
    base, kubernetes, kubeadm, kind = debian(), _kubernetes(), build.kubeadm(), _kind_files()

    def fill(folder: Path) -> None:
        layers = [folder / f"{name}.tar" for name in ("debian", "files", "programs")]
        _run(["tar", "-C", str(base), "--exclude=./dev/*", "-cf", str(layers[0]), "."])
        files, scripts = _from_kind(kind)
        files["kind/version"] = build.version().encode()
        files["etc/systemd/system/prepare-node.service"] = (_OURS / "prepare-node.service").read_bytes()
        scripts["kind/bin/prepare-node"] = (_OURS / "prepare-node").read_bytes()
        scripts["usr/bin/controlplane"] = (kubernetes / build.PROGRAM).read_bytes()
        scripts["usr/bin/kubeadm"] = kubeadm.read_bytes()
        layers[1].write_bytes(archive.tar(files, 0o644))
        layers[2].write_bytes(archive.tar(scripts, 0o755, _links()))
        entrypoint = ["/usr/local/bin/entrypoint", "/sbin/init"]
        config = {
            "Env": ["container=docker", ENVIRONMENT[0]],
            "StopSignal": "SIGRTMIN+3",
            # systemd 252 takes half of version 2 of cgroups where it finds some, and nodes do not register.
            "Entrypoint": [*entrypoint, "systemd.legacy_systemd_cgroup_controller=1"],
        }
        archive.write(folder / "node.tar", [archive.Image(NODE, layers, config)], images.arch())
        for layer in layers:
            layer.unlink()

    return _made("node-image", [base, kubernetes, kubeadm, kind], fill, "the nodes' image") / "node.tar"


def pods() -> Path:
    """The archive of the images that the pods of the cluster itself run, and of BusyBox."""
    kubernetes, coredns, pause, tables = _kubernetes(), gotools.path("coredns"), images.pause(), _iptables()

    def fill(folder: Path) -> None:
        plane, dns, base, busybox = (folder / f"{name}.tar" for name in ("plane", "dns", "base", "busybox"))
        parts = {
            f"{_PROGRAMS}/{build.PROGRAM}": (kubernetes / build.PROGRAM).read_bytes(),
            "usr/local/lib/zoneinfo.zip": (_goroot() / "lib" / "time" / "zoneinfo.zip").read_bytes(),
        }
        links = {f"{_PROGRAMS}/{name}": build.PROGRAM for name in COMPONENTS}
        plane.write_bytes(archive.tar(parts, 0o755, links))
        busybox.write_bytes(images.busybox())
        dns.write_bytes(archive.tar({"coredns": coredns.read_bytes()}, 0o755))
        _run(["tar", "-C", str(tables), "--exclude=./dev/*", "-cf", str(base), "."])
        settings = {"Env": list(ENVIRONMENT)}
        made = [
            archive.Image(f"{REGISTRY}/{name}:{build.version()}", [base, plane], settings)
            for name in COMPONENTS
            if name != "etcd"
        ]
        made += [
            archive.Image(ETCD, [base, plane], settings),
            archive.Image(COREDNS, [dns], {"Entrypoint": ["/coredns"]}),
            archive.Image(PAUSE, [pause / "layer.tar"], {"Entrypoint": ["/pause"]}),
            archive.Image(BUSYBOX, [busybox], {"Env": ["PATH=/bin"]}),
        ]
        archive.write(folder / "pods.tar", made, images.arch())
        for layer in (plane, dns, base, busybox):
            layer.unlink()

    made_of = [kubernetes, coredns, pause, tables]
    return _made("node-pods", made_of, fill, "the images of the cluster's pods") / "pods.tar"


def _iptables() -> Path:
    """A root file system with what kube-proxy calls."""
    called = [f"ip{version}tables{verb}" for version in ("", "6") for verb in ("", "-save", "-restore")]
    links = "; ".join(f"ln -s xtables-nft-multi usr/sbin/{name}" for name in called)
    hook = f'--extract-hook=set -e; cd "$1"; {links}'
    command = ["--variant=extract", "--format=directory", "--include=iptables", hook]
    return _mmdebstrap("node-iptables", command, "iptables") / "root"


def _from_kind(module: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of kind's base image: settings and programs, by their paths in the image."""
    files: dict[str, bytes] = {}
    scripts: dict[str, bytes] = {}
    for file in sorted(path for path in module.rglob("*") if path.is_file()):
        name = file.relative_to(module).as_posix()
        (scripts if name.startswith(("kind/bin/", "usr/local/bin/")) else files)[name] = file.read_bytes()
    name, wanted = "etc/containerd/config.toml", b"restrict_oom_score_adj = "
    assert wanted + b"false" in files[name], f"kind's {name} has changed"
    # Without CAP_SYS_RESOURCE runc cannot lower a sandbox's oom_score_adj, and every sandbox would die.
    files[name] = files[name].replace(wanted + b"false", wanted + b"true")
    files["etc/containerd/cri-base.json"] = json.dumps(_container()).encode()
    return files, scripts


def _container() -> dict[str, Any]:
    """What containers of a node have in common: nothing that has to be raised."""
    told: dict[str, Any] = json.loads(_run([program("ctr"), "oci", "spec"]))
    del told["process"]["rlimits"]
    return told


def _links() -> dict[str, str]:
    units = "etc/systemd/system"
    return {
        **{f"usr/bin/{name}": build.PROGRAM for name in ("kubelet", "kubectl")},
        **{f"{_PROGRAMS}/{name}": f"/usr/bin/{name}" for name in ("containerd", "ctr")},
        "opt/cni/bin": "/usr/lib/cni",
        **{f"{units}/multi-user.target.wants/{name}.service": f"../{name}.service" for name in UNITS},
        f"{units}/kubelet.service.wants/prepare-node.service": "../prepare-node.service",
        f"{units}/systemd-binfmt.service": "/dev/null",
    }


def _kubernetes() -> Path:
    return build.ensure(next(iter(build.versions())))


def _kind_files() -> Path:
    """Of the module that the program is built from, whose hash go.sum has."""
    where = gotools.FOLDER / "kind"
    told = json.loads(_run([compiling.compiler(), "mod", "download", "-json", "sigs.k8s.io/kind"], where))
    return Path(told["Dir"]) / "images" / "base" / "files"


def _goroot() -> Path:
    return Path(_run([compiling.compiler(), "env", "GOROOT"], MODULE).strip())


def _mmdebstrap(name: str, arguments: list[str], what: str) -> Path:
    words = [*arguments, images.SUITE]

    def fill(folder: Path) -> None:
        # What it mounts in there ends with it, however that is: a folder that is given up is removed.
        _run([program("unshare"), "--mount", program("mmdebstrap"), "--quiet", *words, str(folder / "root")])

    return ensure(name, "\0".join([*words, images.arch()]), fill, what=what)


def _made(name: str, of: list[Path], fill: Callable[[Path], None], what: str) -> Path:
    """Something made of what is in folders that are named by their own hashes, and of what is in here."""
    ours = [path.read_text() for path in (Path(__file__), Path(archive.__file__), *sorted(_OURS.iterdir()))]
    return ensure(name, "\0".join([*(str(path) for path in of), *ours, images.arch()]), fill, what=what)


def _run(command: list[str], where: Path | None = None) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise NodeError(f"{' '.join(command[:3])} failed:\n{said}")
    return done.stdout
