"""Build the control plane program once and keep it in the cache.

Input: the Go module in `dev/controlplane`, and the variable KUBERNETES, which names the Kubernetes to build
when it shall not be go.mod's: `kubernetes-1.34.mod` and its `.sum` stand in for go.mod and go.sum then.
CONTROLPLANE names folders of programs that are there already; KUBEBUILDER_ASSETS is looked at before a build.
Output: a cache folder holding one link per component, named by a hash of everything the program depends
on, so that an unchanged module is never rebuilt and two checkouts share one program. It must not write into
the checkout.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from awsdoubles.cached import ensure as cached
from testbed import compiling, prebuilt
from testbed.compiling import BuildError
from testbed.paths import MODULE, cache
from testbed.prebuilt import KWOK

COMPONENTS: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    KWOK,
    "kubectl",
)
PROGRAM: Final = "controlplane"
KUBEADM: Final = "k8s.io/kubernetes/cmd/kubeadm"
KWOK_ALONE: Final = "sigs.k8s.io/kwok/cmd/kwok"
GIVEN: Final = "CONTROLPLANE"
# What setup-envtest leaves. It lacks two programs; other projects need no more.
ASSETS: Final = "KUBEBUILDER_ASSETS"
KEEP_UNUSED_SECONDS: Final = 14 * 24 * 3600


def ensure(kubernetes: str = "") -> Path:
    """Return the folder with the components' links, building the program first if the cache lacks it.
    `kubernetes`: such as 1.34, to be built; else what variables say, else go.mod's."""
    pins, newest = _pins(kubernetes or os.environ.get("KUBERNETES", "")), MODULE / "go.mod"
    if os.environ.get(GIVEN) and not kubernetes:
        return prebuilt.folder(GIVEN, _wanted(pins), _kwok)
    go = compiling.compiler()
    if os.environ.get(ASSETS) and not kubernetes and not _complete(cache() / _key(go, pins)):
        try:
            return prebuilt.folder(ASSETS, _wanted(pins), _kwok)
        except BuildError as error:
            print(error, flush=True)
    folder = _built(go, pins)
    if pins != newest:
        _lend(KWOK, _built(go, newest), folder)
    return folder


def _built(go: str, pins: Path) -> Path:
    folder = cache() / _key(go, pins)
    if not _complete(folder):
        cache().mkdir(parents=True, exist_ok=True)
        with _only_one(cache() / "lock"):
            if not _complete(folder):
                _build(go, pins, folder)
                _drop_unused(keep=folder)
    os.utime(folder)
    return folder


def _lend(name: str, owner: Path, folder: Path) -> None:
    """A component of another program. It is kwok: it serves any API server, and one that builds with an older
    Kubernetes reads other stages than ours."""
    link, fresh = folder / name, folder / f"{name}.{os.getpid()}"
    if link.readlink() != owner / name:
        fresh.symlink_to(owner / name)
        fresh.replace(link)


def ends_with_parent(folder: Path) -> bool:
    """Whether what is in the folder ends by itself with the process that CONTROLPLANE_PARENT names."""
    return (folder / PROGRAM).exists()


def _wanted(pins: Path) -> dict[str, str]:
    """The version of each program that a cluster starts, and of kubectl."""
    kubernetes, etcd = _version(pins)[0], _required(pins, "go.etcd.io/etcd/server/v3")
    ours = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    kwok = _required(MODULE / "go.mod", "sigs.k8s.io/kwok")
    return {"etcd": etcd, **dict.fromkeys(ours, kubernetes.removeprefix("v")), KWOK: kwok}


def _kwok() -> Path:
    """kwok without the rest, of which it takes little."""
    go, pins = compiling.compiler(), MODULE / "go.mod"

    def fill(folder: Path) -> None:
        compiling.build(go, MODULE, KWOK_ALONE, _flags(pins), folder / KWOK)

    return cached(KWOK, _key(go, pins), fill, what="kwok, by compiling it") / KWOK


def versions() -> dict[str, Path]:
    """The Kubernetes versions that can be built, such as 1.36, and the file that pins each; the first one is
    built unless told otherwise."""
    others = sorted(path for path in MODULE.glob("*.mod") if path.name != "go.mod")
    return {".".join(_version(path)[1:3]): path for path in (MODULE / "go.mod", *others)}


def minor() -> str:
    """The Kubernetes that ensure() builds, such as 1.36."""
    return ".".join(_version(_pins(os.environ.get("KUBERNETES", "")))[1:3])


def version() -> str:
    """Of the Kubernetes that is built unless told otherwise, such as v1.36.3."""
    return _version(MODULE / "go.mod")[0]


def kubeadm() -> Path:
    """The program kubeadm of that Kubernetes, which only a node of kind calls."""
    go, pins = compiling.compiler(), MODULE / "go.mod"

    def fill(folder: Path) -> None:
        compiling.build(go, MODULE, KUBEADM, _flags(pins), folder / "kubeadm")

    return cached("kubeadm", _key(go, pins), fill, what="kubeadm, by compiling it") / "kubeadm"


def _pins(wanted: str) -> Path:
    """The file that pins that version."""
    known = versions()
    if wanted and wanted not in known:
        raise BuildError(f"KUBERNETES={wanted} is not known here; known are {', '.join(sorted(known))}")
    return known[wanted] if wanted else MODULE / "go.mod"


def _version(pins: Path) -> tuple[str, str, str]:
    """As in v1.36.3, 1, 36."""
    found = _required(pins, "k8s.io/kubernetes")
    major, minor, _ = found.split(".")
    return f"v{found}", major, minor


def _required(pins: Path, module: str) -> str:
    """The version of a module, such as 1.36.3."""
    found = re.search(rf"^\s*{re.escape(module)} v(\d+\.\d+\.\d+)$", pins.read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{pins} does not require {module}")
    return found[1]


def _flags(pins: Path) -> list[str]:
    """Linker flags that give the components their version, which the API server reports and checks."""
    names = ("gitVersion", "gitMajor", "gitMinor", "gitTreeState")
    values = dict(zip(names, (*_version(pins), "clean"), strict=True))
    version = " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())
    other = [] if pins.name == "go.mod" else [f"-modfile={pins.name}"]
    return [*other, "-trimpath", "-ldflags", f"-s -w {version}"]


def _key(go: str, pins: Path) -> str:
    digest = hashlib.sha256()
    for path in [pins, pins.with_suffix(".sum"), *sorted(MODULE.glob("*.go"))]:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    digest.update("\0".join([*_flags(pins), compiling.toolchain(go, MODULE), *COMPONENTS]).encode())
    return digest.hexdigest()[:16]


def _complete(folder: Path) -> bool:
    return (folder / PROGRAM).exists() and all((folder / name).is_symlink() for name in COMPONENTS)


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build of the control plane is running: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(go: str, pins: Path, folder: Path) -> None:
    what = f"Kubernetes {_version(pins)[0]}"
    there = f"{GIVEN}=FOLDER takes one that is there"
    print(f"building {what} (once; on 2 cores about 10 minutes from nothing; {there})", flush=True)
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        compiling.build(go, MODULE, ".", _flags(pins), work / PROGRAM)
        for name in COMPONENTS:
            (work / name).symlink_to(PROGRAM)
        work.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"built {what} in {time.monotonic() - started:.0f} s", flush=True)


def _drop_unused(keep: Path) -> None:
    """Each program takes 140 MB: drop those that no checkout has used for two weeks."""
    oldest = time.time() - KEEP_UNUSED_SECONDS
    for entry in cache().iterdir():
        if entry.is_dir() and entry != keep and entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)
