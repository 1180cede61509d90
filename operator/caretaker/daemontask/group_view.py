"""The nodes that the tasks of an exclusive group hold. Pure data."""

from collections.abc import Mapping

import msgspec


class Holding(msgspec.Struct, frozen=True):
    """What one task of a group holds. Nodes are UIDs."""

    nodes: Mapping[str, bool] = {}  # node -> whether a Pod lives there, or may
    slots: frozenset[str] = frozenset()  # of them, those with a slot: they count for the group's width
    busy: frozenset[str] = frozenset()  # of these, those that do not wait for their next attempt
    width: int | None = None  # exclusive.parallelism, as a number


NOTHING = Holding()


class Other(msgspec.Struct, frozen=True):
    """Another task of the group. `offered`, `turn`: nodes, and a place in the group, that another let go of
    and for which this one has waited longest, until it has looked at them or `until`."""

    name: str
    holding: Holding = NOTHING
    read: bool = True  # whether a pass has shown its nodes
    offered: frozenset[str] = frozenset()
    turn: bool = False
    until: float = 0.0


class Hold(msgspec.Struct, frozen=True):
    """A node that another task holds. `always`: even where this task holds the node, too, as after an edit
    of a group."""

    task: str
    always: bool


class GroupView(msgspec.Struct, frozen=True):
    """The other tasks of the group, as a pass found them."""

    held: Mapping[str, Hold] = {}  # by node UID
    unread: tuple[str, ...] = ()  # names of tasks whose nodes no pass has shown: nothing starts
    width: int | None = None  # the smallest exclusive.parallelism of the others
    slots: int = 0  # nodes with a slot
    busy: int = 0  # of these, those that do not wait for their next attempt
    ahead: int = 0  # tasks whose turn comes first
    holders: tuple[str, ...] = ()  # names of tasks with a slot
    unsure: frozenset[str] = frozenset()  # nodes where a Pod of this task may come yet
    wake: float = 0.0  # when something of this ends by itself; 0 = never
