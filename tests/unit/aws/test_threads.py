"""Threads that never keep the process from ending."""

import asyncio
import threading

import pytest

from caretaker.aws.threads import DaemonPool


async def test_results_and_errors_come_back() -> None:
    pool = DaemonPool("t", 2)
    assert await pool.run(lambda: 7) == 7
    with pytest.raises(KeyError, match="x"):
        await pool.run(lambda: {}["x"])


async def test_no_more_than_the_limit_run_at_a_time_and_threads_are_used_again() -> None:
    pool, lock, names = DaemonPool("t", 3), threading.Lock(), set()
    now, most = 0, 0
    full = threading.Barrier(3)
    seen = threading.Event()

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            names.add(threading.current_thread().ident)
        if not seen.is_set():
            full.wait(5)
            seen.set()
        with lock:
            now -= 1

    await asyncio.gather(*(pool.run(work) for _ in range(60)))
    assert (most, len(names)) == (3, 3)


async def test_an_owner_has_a_number_of_the_threads_and_its_jobs_keep_their_order() -> None:
    pool, release, begun = DaemonPool("t", 3, per_owner=2), threading.Event(), []

    def work(number: int) -> None:
        begun.append(number)
        release.wait(5)

    busy = [asyncio.create_task(pool.run(lambda n=n: work(n), "a")) for n in range(5)]
    await asyncio.sleep(0)
    busy[3].cancel()
    assert await asyncio.wait_for(pool.run(lambda: pool.running, "b"), 5) <= 3
    assert sorted(begun) == [0, 1]
    release.set()
    await asyncio.gather(*busy, return_exceptions=True)
    assert sorted(begun) == [0, 1, 2, 4]
    assert await pool.run(lambda: 7, "a") == 7


async def test_jobs_without_an_owner_have_all_threads() -> None:
    pool, all_run = DaemonPool("t", 3, per_owner=1), threading.Barrier(3)
    await asyncio.gather(*(pool.run(lambda: all_run.wait(5)) for _ in range(3)))


async def test_an_owner_whose_jobs_have_ended_is_forgotten() -> None:
    pool = DaemonPool("t", 3, per_owner=1)
    await asyncio.gather(*(pool.run(int, f"n{n % 4}") for n in range(40)))
    while pool.running:  # noqa: ASYNC110 - turns of threads are what is awaited
        await asyncio.sleep(0)
    assert (len(pool._admitted), len(pool._held)) == (0, 0)


async def test_threads_are_daemons() -> None:
    thread = await DaemonPool("t", 1).run(threading.current_thread)
    assert thread.daemon


async def test_what_is_cancelled_before_its_turn_is_never_called() -> None:
    pool, release, called = DaemonPool("t", 1), threading.Event(), []
    busy = asyncio.create_task(pool.run(lambda: release.wait(5)))
    waiting = asyncio.create_task(pool.run(lambda: called.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    release.set()
    await busy
    await pool.run(lambda: None)
    assert called == []


async def test_an_idle_thread_ends_and_another_is_started_when_needed() -> None:
    pool = DaemonPool("t", 1, idle_seconds=0.001)
    first = await pool.run(threading.current_thread)
    await asyncio.to_thread(first.join, 5)
    assert not first.is_alive()
    second = await pool.run(threading.current_thread)
    assert second is not first


async def test_a_closed_pool_takes_nothing_and_its_idle_threads_end() -> None:
    pool = DaemonPool("t", 1)
    thread = await pool.run(threading.current_thread)
    pool.close()
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(lambda: None)


def test_a_loop_that_ended_meanwhile_is_no_error() -> None:
    pool, release, done = DaemonPool("t", 1), threading.Event(), threading.Event()

    def work() -> None:
        release.wait(5)
        done.set()

    async def leave() -> None:
        task = asyncio.create_task(pool.run(work))
        while not pool.running:  # noqa: ASYNC110 - turns of the loop are what is awaited
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    release.set()
    assert done.wait(5)
    assert asyncio.run(pool.run(lambda: 1)) == 1
