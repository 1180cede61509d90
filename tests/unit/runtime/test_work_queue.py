"""The work queue in stepped time: when a key runs, and that it never runs twice at once."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from caretaker.runtime.work_queue import (
    BACKOFF_MAX,
    COLLAPSE,
    CONFLICT_MAX,
    PER_NAMESPACE,
    STORM_INTERVAL,
    URGENT,
    Key,
    WorkQueue,
)
from testing.examples import examples

A, B = Key("DaemonTask", "default", "a"), Key("DaemonTask", "default", "b")


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock=clock, jitter=lambda: 0.5)


async def taken(queue: WorkQueue, seconds: float = 1) -> Key:
    """The next key; TimeoutError if none is due by then."""
    async with asyncio.timeout(seconds):
        found = await queue.get(asyncio.Event())
    assert found is not None
    return found[0]


async def due_after(queue: WorkQueue, clock: Clock, key: Key) -> float:
    """Steps time until the key is handed out, and works on it for no time; seconds since the call."""
    began = clock.now
    for _ in range(200_000):
        clock.now = round(clock.now + 0.01, 3)
        if len(queue):
            found = await taken(queue)
            assert found == key
            queue.done(key)
            return round(clock.now - began, 2)
    raise AssertionError(f"{key} never became due")


async def test_the_first_event_after_a_quiet_second_runs_at_once(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    assert await due_after(queue, clock, A) == COLLAPSE


async def test_what_comes_within_the_collapse_runs_together(queue: WorkQueue, clock: Clock) -> None:
    for _ in range(100):
        queue.add(A)
    await due_after(queue, clock, A)
    clock.now += 60
    assert len(queue) == 0


async def test_a_storm_runs_once_a_second(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    await due_after(queue, clock, A)
    for _ in range(5):
        queue.add(A)
        assert await due_after(queue, clock, A) == pytest.approx(STORM_INTERVAL, abs=0.02)


async def test_an_urgent_event_does_not_wait_for_the_second_to_end(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    await due_after(queue, clock, A)
    queue.add(A, urgent=True)
    assert await due_after(queue, clock, A) == COLLAPSE


async def test_a_patient_key_waits_for_a_second_from_the_first_event(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A, patient=True)
    clock.now += 0.4
    queue.add(A, patient=True)
    assert await due_after(queue, clock, A) == pytest.approx(STORM_INTERVAL - 0.4)
    clock.now += 60
    queue.add(A, patient=True)
    queue.add(A)
    assert await due_after(queue, clock, A) == COLLAPSE


async def test_a_storm_of_urgent_events_is_a_storm_like_any_other(queue: WorkQueue, clock: Clock) -> None:
    waits = []
    for _ in range(URGENT + 3):
        queue.add(A, urgent=True)
        waits.append(await due_after(queue, clock, A))
    assert waits[: URGENT + 1] == [COLLAPSE] * (URGENT + 1)
    assert sum(waits[URGENT + 1 :]) > STORM_INTERVAL


async def test_a_key_is_never_handed_out_twice_at_once(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    clock.now += 1
    await taken(queue)
    queue.add(A)
    clock.now += 60
    with pytest.raises(TimeoutError):
        await taken(queue, 0.01)
    queue.done(A)
    assert await taken(queue) == A


async def test_one_key_does_not_hold_up_another(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    clock.now += 1
    await taken(queue)
    queue.add(B)
    clock.now += 1
    assert await taken(queue) == B


async def test_the_earliest_of_several_times_counts(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 30)
    queue.add_after(A, 5)
    queue.add_after(A, 600)
    assert await due_after(queue, clock, A) == 5


async def test_failures_back_off_and_a_success_forgets_them(queue: WorkQueue, clock: Clock) -> None:
    waits = []
    for _ in range(15):
        waits.append(queue.retry(A))
        clock.now += BACKOFF_MAX
        await taken(queue)
        queue.done(A)
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == BACKOFF_MAX
    queue.succeeded(A)
    assert queue.retry(A) == 0.5


async def test_a_conflict_does_not_wait_for_the_backoff_of_a_long_refusal(queue: WorkQueue) -> None:
    for _ in range(15):
        refused = queue.retry(A)
    assert refused == BACKOFF_MAX
    assert queue.retry(A, at_most=CONFLICT_MAX) == CONFLICT_MAX


async def test_a_server_that_asks_for_patience_gets_it(queue: WorkQueue) -> None:
    assert queue.retry(A, at_least=17) == 17


async def test_an_event_during_the_last_pass_of_a_key_is_not_forgotten(
    queue: WorkQueue, clock: Clock
) -> None:
    queue.add(A)
    clock.now += 1
    await taken(queue)
    queue.add(A)  # made again under the same name
    queue.forget(A)
    queue.done(A)
    assert await due_after(queue, clock, A) <= STORM_INTERVAL


async def test_who_is_to_stop_takes_no_key(queue: WorkQueue, clock: Clock) -> None:
    stopping = asyncio.Event()
    waiting = [asyncio.create_task(queue.get(stopping)) for _ in range(3)]
    queue.add_after(A, 60)
    await asyncio.sleep(0.01)
    stopping.set()
    clock.now += 60
    queue.wake()
    assert await asyncio.gather(*waiting) == [None] * 3
    assert await taken(queue) == A


async def test_a_key_that_rests_comes_after_its_rest_and_no_earlier(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 0)
    assert await taken(queue) == A
    queue.add_after(A, 1)  # while it is worked on
    queue.pause(A, 20)
    queue.done(A)
    queue.add(A, urgent=True)
    queue.add_after(A, 0)
    queue.retry(A)
    assert await due_after(queue, clock, A) == 20.0
    queue.add_after(A, 1)
    assert await due_after(queue, clock, A) == 1.0, "it is paused once"
    assert not queue._paused


@pytest.mark.parametrize("pauses", [(20, 5), (5, 20)])
async def test_of_two_pauses_the_longer_counts(
    queue: WorkQueue, clock: Clock, pauses: tuple[float, float]
) -> None:
    queue.add_after(A, 0)
    assert await taken(queue) == A
    for pause in pauses:
        queue.pause(A, pause)
    queue.add(A)
    queue.done(A)
    assert await due_after(queue, clock, A) == 20.0


async def test_while_one_rests_the_others_come(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 0)
    assert await taken(queue) == A
    queue.pause(A, 20)
    queue.done(A)
    queue.add(A)
    queue.add_after(B, 1)
    assert await due_after(queue, clock, B) == 1.0
    assert await due_after(queue, clock, A) == 19.0


async def test_a_rest_does_not_hurry_what_comes_later(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after(A, 0)
    assert await taken(queue) == A
    queue.add_after(A, 30)
    queue.pause(A, 20)
    queue.done(A)
    assert await due_after(queue, clock, A) == 30.0


async def test_paused_resources_are_counted_by_kind_until_their_time(queue: WorkQueue, clock: Clock) -> None:
    other = Key("IMDSPolicy", "", "p")
    for key, seconds in ((A, 10), (B, 20), (other, 30)):
        queue.add(key)
        queue.pause(key, seconds)
    assert (queue.paused("DaemonTask"), queue.paused("IMDSPolicy")) == (2, 1)
    clock.now += 10
    assert (queue.paused("DaemonTask"), queue.paused("IMDSPolicy")) == (1, 1)
    clock.now += 10
    assert (queue.paused("DaemonTask"), queue.paused("IMDSPolicy")) == (0, 1)


def keys(namespace: str, number: int) -> list[Key]:
    return [Key("DaemonTask", namespace, f"t{one:03}") for one in range(number)]


async def test_long_passes_of_a_namespace_leave_workers_to_the_others(queue: WorkQueue, clock: Clock) -> None:
    for key in keys("many", 3 * PER_NAMESPACE):
        queue.add(key)
    clock.now += COLLAPSE
    running = [await taken(queue) for _ in range(PER_NAMESPACE)]
    queue.add(A)
    clock.now += COLLAPSE
    assert await taken(queue) == A, "though the others have waited longer"
    with pytest.raises(TimeoutError):
        await taken(queue, 0.01)
    assert len(queue) == 2 * PER_NAMESPACE
    for key in running:
        queue.done(key)
        assert (await taken(queue)).namespace == "many"
    with pytest.raises(TimeoutError):
        await taken(queue, 0.01)


async def test_long_passes_of_a_kind_leave_passes_of_its_namespace_to_the_others(
    queue: WorkQueue, clock: Clock
) -> None:
    for key in keys("many", 2 * PER_NAMESPACE):
        queue.add(key)
    clock.now += COLLAPSE
    for _ in range(PER_NAMESPACE):
        await taken(queue)
    queue.add(refresh := Key("S3AggregatedRefresh", "many", "refresh"))
    clock.now += COLLAPSE
    assert await taken(queue) == refresh


KEYS = st.builds(
    Key,
    st.sampled_from(["DaemonTask", "S3AggregatedRefresh"]),
    st.sampled_from("ab"),
    st.integers(0, 20).map(str),
)


class Passes(RuleBasedStateMachine):
    """A group has PER_NAMESPACE passes at a time, no key has two, and each event has its pass."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.clock = asyncio.new_event_loop(), Clock()
        self.queue = WorkQueue(clock=self.clock, jitter=lambda: 0.5)
        self.running: list[Key] = []

    @rule(key=KEYS, urgent=st.booleans())
    def event(self, key: Key, urgent: bool) -> None:
        self.queue.add(key, urgent=urgent)

    @rule(key=KEYS, delay=st.floats(0, 2))
    def later(self, key: Key, delay: float) -> None:
        self.queue.add_after(key, delay)

    @rule(key=KEYS)
    def deleted(self, key: Key) -> None:
        self.queue.forget(key)

    @rule(seconds=st.floats(0, 2))
    def begin(self, seconds: float) -> None:
        self.clock.now += seconds
        while self.take():
            pass

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 100), pause=st.floats(0, 2))
    def end(self, at: int, pause: float) -> None:
        key = self.running.pop(at % len(self.running))
        self.queue.pause(key, pause)
        self.queue.done(key)

    def take(self) -> bool:
        try:
            self.running.append(self.loop.run_until_complete(taken(self.queue, 0)))
        except TimeoutError:
            return False
        assert len(set(self.running)) == len(self.running)
        assert max(Counter(key.group for key in self.running).values()) <= PER_NAMESPACE
        return True

    def teardown(self) -> None:
        self.clock.now += 3600
        while self.take() or self.running:
            self.queue.done(self.running.pop(0))
        self.loop.close()
        assert len(self.queue) == 0, "no key is left behind"


TestPasses = Passes.TestCase
TestPasses.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)


def test_counts_are_read_by_another_thread_while_keys_come_and_go(queue: WorkQueue) -> None:
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            len(queue)
            queue.paused("DaemonTask")

    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape)
        for number in range(20_000):
            key = Key("DaemonTask", "default", str(number))
            queue.pause(key, 60)
            queue.add(key)
        done.set()
        scraping.result()
