"""The order of tasks as a process knows it: the dependencies of each, and its progress.

A cache that passes fill: without it nothing starts that depends on another task. No I/O.
"""

from collections.abc import Callable, Iterable, Sequence

from caretaker.daemontask.dependencies import Dependencies, Dependency, Progress, circle_of
from caretaker.runtime.work_queue import Key


class TaskOrder:
    """Progress and dependencies by task. Calls `on_key` for the tasks that a change concerns."""

    def __init__(self, on_key: Callable[[Key], None]) -> None:
        self._on_key = on_key
        self._names: dict[Key, tuple[str, ...]] = {}  # dependencies of each task that has some
        self._dependents: dict[Key, set[Key]] = {}
        self._progress: dict[Key, Progress] = {}  # of tasks with dependents alone
        self._missing: set[Key] = set()  # with dependents; by their own last passes

    def awaited(self, key: Key) -> bool:
        """Whether a task depends on this one."""
        return key in self._dependents

    def of(self, key: Key, names: Sequence[str]) -> Dependencies:
        """The state of these dependencies of a task, as far as passes have shown it."""
        if not names:
            return Dependencies()
        others = ((name, _other(key, name)) for name in names)
        each = (Dependency(name, self._progress.get(one), one in self._missing) for name, one in others)
        return Dependencies(
            tuple(each), circle_of(key.name, names, lambda name: self._names.get(_other(key, name), ()))
        )

    def took(self, key: Key, names: Sequence[str], progress: Progress | None) -> None:
        """A pass was made over the task, with this result for those that depend on it."""
        self._missing.discard(key)
        before, now = self._names.get(key, ()), tuple(names)
        if before != now:
            self._depends(key, before, now)
        if progress is None or not self.awaited(key):
            self._progress.pop(key, None)
        elif progress != self._progress.get(key):
            self._progress[key] = progress
            self._wake(self._dependents[key])

    def outdated(self, key: Key, progress: Progress) -> None:
        """The task has changed since the pass that gave this progress."""
        if self._progress.get(key) is progress:
            del self._progress[key]
            self._on_key(key)

    def drop(self, key: Key) -> None:
        """The task is gone."""
        self._depends(key, self._names.get(key, ()), ())
        self._progress.pop(key, None)
        if self.awaited(key):
            self._missing.add(key)
            self._wake(self._dependents[key])

    def clear(self) -> None:
        """Another process may have led meanwhile."""
        for table in (self._names, self._dependents, self._progress, self._missing):
            table.clear()

    def _depends(self, key: Key, before: tuple[str, ...], now: tuple[str, ...]) -> None:
        for other in (_other(key, name) for name in before if name not in now):
            self._dependents[other].discard(key)
            if not self._dependents[other]:
                del self._dependents[other]
                self._progress.pop(other, None)
                self._missing.discard(other)
        for other in (_other(key, name) for name in now):
            self._dependents.setdefault(other, set()).add(key)
            if other not in self._progress and other not in self._missing and other != key:
                self._on_key(other)  # its next pass gives its progress, or finds that it is missing
        if now:
            self._names[key] = now
        else:
            self._names.pop(key, None)
        if before != now:
            self._wake(self._behind(key))  # they may be part of a circle from now on, or no more

    def _behind(self, key: Key) -> set[Key]:
        """The tasks that depend on this one, and on those."""
        found, fresh = set[Key](), {key}
        while fresh:
            fresh = set().union(*(self._dependents.get(one, ()) for one in fresh)) - found
            found |= fresh
        return found - {key}

    def _wake(self, keys: Iterable[Key]) -> None:
        for key in sorted(keys):
            self._on_key(key)


def _other(key: Key, name: str) -> Key:
    return Key(key.kind, key.namespace, name)
