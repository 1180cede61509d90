"""What a file share shows of its bucket: folder by folder, as last listed.

Pure. Folders are paths relative to the share's root, `""` for the root itself. A folder that was never
listed is listed when a reader first opens it, so a reader is misled by a cached listing only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

ROOT: Final = ""


class Listing(NamedTuple):
    """The direct children of a folder: files by name with their ETags, and the names of subfolders."""

    files: Mapping[str, str]
    folders: frozenset[str]


EMPTY: Final = Listing({}, frozenset())


@dataclass
class Inventory:
    """The cached listings of one share."""

    listings: dict[str, Listing] = field(default_factory=dict)

    def put(self, folder: str, listing: Listing) -> None:
        """Replace a folder's listing. What lies below a subfolder that is gone is forgotten with it."""
        before = self.listings.get(folder, EMPTY)
        for name in before.folders - listing.folders:
            self._forget(join(folder, name))
        self.listings[folder] = listing

    def cached_below(self, folder: str) -> list[str]:
        """The folders under `folder`, itself excluded, that were listed before; parents first."""
        prefix = f"{folder}/" if folder else ""
        return sorted(name for name in self.listings if name != folder and name.startswith(prefix))

    def _forget(self, folder: str) -> None:
        for name in [folder, *self.cached_below(folder)]:
            self.listings.pop(name, None)


def folder_of(name: str) -> str:
    """A FolderList item as a path of ours; ValueError when it is no folder's name."""
    path = name.removeprefix("/")
    if path and (path.endswith("/") or not all(shown(part) for part in path.split("/"))):
        raise ValueError(f"{name!r} is not the name of a folder")
    return path


def join(folder: str, name: str) -> str:
    """The path of a child."""
    return f"{folder}/{name}" if folder else name


def shown(name: str) -> bool:
    """Whether a part of a key can be the name of a file or folder: others no share can show."""
    return name not in {"", ".", ".."} and "\0" not in name


def listing(prefix: str, objects: Mapping[str, str], common_prefixes: Iterable[str]) -> Listing:
    """Make a Listing of what S3 lists under `prefix` (empty, or ending in /) with the delimiter /."""
    files = {key[len(prefix) :]: etag for key, etag in objects.items()}
    folders = {common[len(prefix) : -1] for common in common_prefixes}
    return Listing({n: e for n, e in files.items() if shown(n)}, frozenset(n for n in folders if shown(n)))


def tree(objects: Mapping[str, str], prefix: str = "") -> dict[str, Listing]:
    """All listings of a bucket, from all its keys and ETags: what every folder should look like."""
    files: dict[str, dict[str, str]] = {ROOT: {}}
    folders: dict[str, set[str]] = {ROOT: set()}
    for key, etag in objects.items():
        parts = key.removeprefix(prefix).split("/")
        folder = ROOT
        for part in parts[:-1]:
            if not shown(part):
                break
            folders[folder].add(part)
            folder = join(folder, part)
            files.setdefault(folder, {})
            folders.setdefault(folder, set())
        else:
            if shown(parts[-1]):
                files[folder][parts[-1]] = etag
    return {folder: Listing(files[folder], frozenset(folders[folder])) for folder in files}


def differences(inventory: Inventory, truth: Mapping[str, Listing]) -> list[str]:
    """Where a reader who walks the share from its root is misled; empty when nowhere.

    One sentence for each file or folder, in order.
    """
    found: list[str] = []
    todo = [ROOT]
    while todo:
        folder = todo.pop()
        real = truth.get(folder, EMPTY)
        seen = inventory.listings.get(folder, real)
        found += (f"/{folder}: {text}" for text in _differ(seen, real))
        todo += sorted((join(folder, name) for name in seen.folders & real.folders), reverse=True)
    return found


def _differ(seen: Listing, real: Listing) -> Iterator[str]:
    for name in sorted(seen.files.keys() | real.files.keys()):
        if name not in seen.files:
            yield f"file {name!r} is in the bucket and not shown"
        elif name not in real.files:
            yield f"file {name!r} is shown and gone from the bucket"
        elif seen.files[name] != real.files[name]:
            yield f"file {name!r} is shown with ETag {seen.files[name]}, the bucket has {real.files[name]}"
    for name in sorted(seen.folders - real.folders):
        yield f"folder {name!r} is shown and gone from the bucket"
    for name in sorted(real.folders - seen.folders):
        yield f"folder {name!r} is in the bucket and not shown"
