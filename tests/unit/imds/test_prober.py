"""The probe's DaemonTask is kept as the policies together want it, through failures and restarts."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import Node
from caretaker.imds.prober import Prober
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict

HERE = "/apis/caretaker.dev/v1alpha1/namespaces/ops/daemontasks"
NODES = frozenset("abcd")


class Api:
    """One DaemonTask. `errors`: verb -> what it is answered with; `writes`: verbs that were let through."""

    def __init__(self) -> None:
        self.task: dict[str, Any] | None = None
        self.errors: dict[str, ApiError] = {}
        self.writes: list[str] = []
        self.ledger: list[tuple[str, dict[str, str]]] = []  # uid of the owner, data

    def _call(self, verb: str, path: str) -> None:
        assert path.startswith(HERE)
        if verb in self.errors:
            raise self.errors[verb]
        if verb != "get":
            self.writes.append(verb)

    async def get(self, path: str) -> Any:
        self._call("get", path)
        if self.task is None:
            raise ApiError(404, "NotFound")
        return json.loads(json.dumps(self.task))

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        self._call("create", path)
        meta = {**body["metadata"], "uid": "u", "resourceVersion": "1"}
        self.task = json.loads(json.dumps({**body, "metadata": meta}))

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        self._call("patch", path)
        assert self.task is not None
        assert body["metadata"]["resourceVersion"] == self.task["metadata"]["resourceVersion"]
        self.task = json.loads(json.dumps({**self.task, "metadata": body["metadata"], "spec": body["spec"]}))

    async def delete(self, path: str) -> None:
        self._call("delete", path)
        self.task = None

    async def list(self, path: str, kind: Any, **_: Any) -> Any:
        assert path == "/api/v1/namespaces/ops/configmaps"
        found = [{"metadata": {"ownerReferences": [{"uid": uid}]}, "data": data} for uid, data in self.ledger]
        return [msgspec.convert(one, kind) for one in found], "1"

    def nodes(self) -> str:
        return "".join(self.named())

    def named(self) -> Sequence[str]:
        """Those that the task names."""
        assert self.task is not None
        affinity = self.task["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return [term["matchFields"][0]["values"][0] for term in terms]


DOWN, TAKEN = ApiError(503, "ServiceUnavailable"), ApiError(409, "AlreadyExists", "exists")
CHANGED = ApiError(409, "Conflict", "the object has been modified")
DENIED = ApiError(403, "Forbidden", 'User "x" cannot delete resource "daemontasks"')


@pytest.fixture
def api() -> Api:
    return Api()


def prober(api: Api, unserved: str = "") -> Prober:
    client: KubeClient = api  # type: ignore[assignment]
    return Prober(client, "ops", "image", unserved)


async def want(made: Prober, policy: str, nodes: str, wanting: str, there: frozenset[str] = NODES) -> str:
    return await made.want(policy, dict.fromkeys(nodes, ""), set(wanting), there)


@pytest.mark.parametrize("error", [DOWN, CHANGED, DENIED], ids=["no answer", "a conflict", "no right"])
async def test_a_task_that_could_not_be_deleted_is_still_to_be(api: Api, error: ApiError) -> None:
    made = prober(api)
    await want(made, "p", "a", "p")
    assert made.serves("p")
    assert not made.serves("other"), "of what it never asked for nothing is left to be done"
    api.errors["delete"] = error
    with contextlib.suppress(ApiError):
        assert str(error) in await want(made, "p", "", "")
    assert made.serves("p"), "or nobody would try again"
    api.errors.clear()
    await want(made, "p", "", "")
    assert api.task is None
    assert not made.serves("p")


async def test_the_task_follows_whether_probes_ask_without_a_token(api: Api) -> None:
    made = prober(api)
    await want(made, "p", "a", "p")
    names = []
    for tokenless in (True, False, True):
        made.tokenless = tokenless
        await want(made, "p", "a", "p")
        assert api.task is not None
        (container,) = api.task["spec"]["template"]["spec"]["containers"]
        names.append([one["name"] for one in container["env"]][1:])
    assert names == [[], ["CARETAKER_PROBE_IMDSV1"], []]


async def test_what_another_process_left_is_taken_back(api: Api) -> None:
    """The policy was deleted, or its probe switched off, while nobody looked."""
    await want(prober(api), "p", "a", "p")
    later = prober(api)
    assert later.serves("q"), "nobody knows yet what there is"
    await want(later, "q", "", "")
    assert api.task is None
    assert not later.serves("q")


async def test_what_was_found_is_kept_while_no_node_can_be_probed(api: Api) -> None:
    """As when EC2 does not answer. The ledger would be deleted with the task."""
    made = prober(api)
    await want(made, "p", "ab", "p")
    for one in (made, prober(api)):
        await want(one, "p", "", "p")
        assert (api.nodes(), api.writes) == ("ab", ["create"])
    await want(made, "p", "c", "p")
    assert api.nodes() == "c"
    await want(made, "p", "", "")
    assert api.task is None


async def test_after_a_restart_no_node_is_taken_off_before_every_policy_has_told(api: Api) -> None:
    before = prober(api)
    await want(before, "p", "ab", "pq")
    await want(before, "q", "c", "pq")
    assert api.nodes() == "abc"
    later = prober(api)
    await want(later, "p", "a", "pq")
    assert api.nodes() == "abc"
    await want(later, "q", "c", "pq")
    assert api.nodes() == "ac"


async def test_nodes_that_are_gone_do_not_pile_up_while_a_policy_does_not_tell(api: Api) -> None:
    made = prober(api)
    await want(made, "p", "ab", "pq")
    await want(made, "p", "cd", "pq", frozenset("bcd"))
    assert api.nodes() == "bcd"


async def test_nothing_is_written_when_nothing_changed(api: Api) -> None:
    made = prober(api)
    for _ in range(3):
        await want(made, "p", "ab", "p")
    assert api.writes == ["create"]


async def test_two_policies_that_make_it_at_once_are_no_fault_of_it(api: Api) -> None:
    api.errors["create"] = TAKEN
    with pytest.raises(Conflict):
        await want(prober(api), "p", "a", "p")


async def test_a_right_that_is_missing_is_reported_until_it_is_there(api: Api) -> None:
    made = prober(api)
    for verb in ("create", "get"):
        api.errors[verb] = ApiError(403, "Forbidden", f'User "x" cannot {verb} resource "daemontasks"')
        assert f"cannot {verb} resource" in await want(made, "p", "a", "p")
    assert "cannot get resource" in (await made.probe_state({})).problem
    api.errors.clear()
    assert "cannot get resource" in (await made.probe_state({})).problem, "nothing has been written yet"
    assert await want(made, "p", "a", "p") == ""
    assert (await made.probe_state({})).problem == ""


async def test_nodes_for_which_there_is_no_room_have_their_turn(api: Api) -> None:
    made = prober(api)
    names = [f"n{number:04d}" for number in range(4000)]
    nodes = {name: Node(name, f"u{name}", {}) for name in names}
    marks = dict.fromkeys(names, "")
    marks[names[-1]] = mark = "2026-01-31T12:00:00.000000+00:00"
    ran: set[str] = set()
    for turn in range(1, 5):
        await made.want("p", marks, {"p"}, names, {names[-1]})
        named = set(api.named())
        assert (names[-1] in named) == (turn != 2), "canaries come first; in the third there is room to spare"
        assert named >= set(names) - ran or not named & ran, "what is answered gets the room that is left"
        ran |= named
        entry = {"result": "Succeeded", "seq": 1, "nonce": mark, "results": {"verdict": "Reachable"}}
        told = {name: json.dumps({**entry, "nodeUID": f"u{name}"}) for name in ran}
        api.ledger = [("u", told)]
        known = await made.probe_state(nodes)
        assert known.findings.keys() == ran
        assert known.marks[names[-1]] == mark, "though the task has it no more"
        if len(ran) == len(names):
            break
    assert (len(ran), turn) == (len(names), 3)


async def test_where_its_namespace_is_not_served_it_is_told_and_not_made(api: Api) -> None:
    made = prober(api, "ops is not looked at")
    assert (await made.probe_state({})).problem == "ops is not looked at"
    assert await want(made, "p", "a", "p") == "ops is not looked at"
    assert api.writes == []


async def test_what_a_task_of_before_has_found_is_not_read(api: Api) -> None:
    """Its ledger stays until the garbage collector comes, and its count of runs may be the higher one."""
    made = prober(api)
    await want(made, "p", "a", "p")

    def shard(seq: int, verdict: str) -> dict[str, str]:
        entry = {"nodeUID": "ua", "result": "Succeeded", "seq": seq, "results": {"verdict": verdict}}
        return {"a": json.dumps(entry)}

    api.ledger = [("u", shard(1, "Reachable")), ("before", shard(7, "Blocked"))]
    known = await made.probe_state({"a": Node("a", "ua", {})})
    assert known.findings["a"].verdict == "Reachable"
