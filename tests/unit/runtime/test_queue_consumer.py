"""A flood of malformed messages is a line a minute."""

import asyncio

import pytest

from caretaker.runtime.queue_consumer import LOG_SECONDS, MalformedLog
from fakes.virtualtime import run


async def flood(log: MalformedLog, seconds: int) -> None:
    for second in range(seconds):
        for number in range(100):
            log.add(f"m-{second}-{number}", "no JSON")
        await asyncio.sleep(1)


def test_of_many_one_line_a_minute_has_the_number_and_none_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        await flood(MalformedLog(), 150)
        await asyncio.sleep(2 * LOG_SECONDS)

    run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "message m-0-0 cannot be read: no JSON"
    assert len(lines) == 4
    assert 1 + sum(int(line.split()[0]) for line in lines[1:]) == 150 * 100
    assert lines[-1].endswith("the last, m-149-99: no JSON")


def test_after_a_quiet_minute_the_next_is_written_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        log = MalformedLog()
        for number in range(3):
            log.add(f"m-{number}", "no JSON")
            assert len(caplog.records) == number + 1
            await asyncio.sleep(2 * LOG_SECONDS + 1)

    run(scenario())


def test_an_id_that_is_none_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        MalformedLog().add("a\nb", "no JSON")

    run(scenario())
    assert caplog.records[0].getMessage() == "message ? cannot be read: no JSON"
