"""Logs as a collector, or a person, reads them."""

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from caretaker.obs import log

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


class Output:
    """What was logged since the set-up."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The root logger as pytest wants it, after each test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def start(log_format: log.LogFormat = "json", level: str = "INFO") -> Output:
    stream = io.StringIO()
    log.setup(log_format, level, stream)
    return Output(stream)


logger = logging.getLogger("caretaker.test")


def fail(text: str) -> None:
    """Log an exception that says `text`."""
    try:
        raise_with(text)
    except ValueError:
        logger.exception("failed")


def raise_with(text: str) -> None:
    raise ValueError(text)


def test_a_record_has_the_fixed_keys_and_its_extras() -> None:
    output = start()
    with log.bind(kind="DaemonTask", namespace="ns", name="t", reconcile_id="r1"):
        logger.warning("made %d pods", 3, extra={"node": "n1", "pods": 3})
    (record,) = output.records
    assert list(record)[:4] == ["ts", "level", "logger", "msg"]
    assert record.pop("ts").endswith("Z")
    assert record == {
        "level": "warning",
        "logger": "caretaker.test",
        "msg": "made 3 pods",
        "kind": "DaemonTask",
        "namespace": "ns",
        "name": "t",
        "node": "n1",
        "reconcile_id": "r1",
        "pods": 3,
    }


def test_a_time_is_rfc_3339_with_milliseconds_in_utc() -> None:
    record = logging.makeLogRecord({"created": 1763637483.0567, "msg": "x", "levelname": "INFO"})
    assert json.loads(log.JsonFormatter().format(record))["ts"] == "2025-11-20T11:18:03.056Z"


def test_the_context_ends_with_its_block_and_nests() -> None:
    output = start()
    with log.bind(kind="DaemonTask"):
        with log.bind(node="n1"):
            logger.info("inner")
        logger.info("outer")
    logger.info("none")
    assert [(r.get("kind"), r.get("node")) for r in output.records] == [
        ("DaemonTask", "n1"),
        ("DaemonTask", None),
        (None, None),
    ]


async def test_tasks_at_the_same_time_keep_their_own_context() -> None:
    output = start()

    async def work(name: str) -> None:
        with log.bind(name=name):
            await asyncio.sleep(0)
            logger.info("of %s", name)
            await asyncio.to_thread(logger.info, "of %s", name)

    await asyncio.gather(*(work(f"t{i}") for i in range(3)))
    assert len(output.records) == 6
    assert all(r["msg"] == f"of {r['name']}" for r in output.records)


def test_a_field_that_is_no_context_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"reconcile_id.*not pod"), log.bind(pod="p"):
        pass


def test_an_extra_cannot_take_the_place_of_a_fixed_key() -> None:
    output = start()
    logger.info("true", extra={"ts": "never", "level": "none"})
    (record,) = output.records
    assert record["level"] == "info"
    assert record["extra_level"] == "none"
    assert record["extra_ts"] == "never"


def test_an_exception_is_one_field_of_one_line() -> None:
    output = start()
    fail("broken")
    (record,) = output.records
    assert record["exc"].startswith("Traceback (most recent call last)")
    assert record["exc"].endswith("ValueError: broken")


def test_what_is_not_json_is_written_as_text() -> None:
    output = start()
    logger.info("x", extra={"who": object, "set": {1}, "nan": float("nan"), "odd": "\udcff"})
    (record,) = output.records
    assert (record["set"], record["nan"], record["odd"]) == ([1], None, "\\udcff")


def test_kopfs_object_reference_fills_the_context() -> None:
    output = start()
    ref = {"kind": "DaemonTask", "namespace": "ns", "name": "t", "uid": "u", "apiVersion": "v1"}
    # As kopf has it, whose own handler looks at them wherever kopf has been imported.
    settings = SimpleNamespace(posting=SimpleNamespace(enabled=False, level=logging.INFO, loggers=False))
    extra = {"k8s_ref": ref, "settings": settings, "k8s_skip": True}
    logging.getLogger("kopf.objects").warning("x", extra=extra)
    (record,) = output.records
    assert {k: v for k, v in record.items() if k not in ("ts", "level", "logger", "msg")} == {
        "kind": "DaemonTask",
        "namespace": "ns",
        "name": "t",
    }


def test_kopfs_chatter_is_left_out_and_its_warnings_stay() -> None:
    output = start(level="DEBUG")
    logging.getLogger("kopf.objects").info("handler succeeded")
    logging.getLogger("kopf._core.engines.activities").info("Initial authentication has been initiated.")
    logging.getLogger("kopf._core.reactor.running").warning("OS signals are ignored: running not in main")
    logging.getLogger("caretaker").debug("ours")
    logging.getLogger("kopf._core.reactor.running").warning("a watcher died")
    assert [r["msg"] for r in output.records] == ["ours", "a watcher died"]


def test_setting_up_twice_logs_once() -> None:
    start()
    output = start()
    logger.info("once")
    assert len(output.records) == 1


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        pytest.param("Authorization: Bearer abc.def-1", "abc.def-1", id="a bearer header"),
        pytest.param("{'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz", id="a header in a dict"),
        pytest.param('{"authorization":"AWS4-HMAC-SHA256"}', "AWS4-HMAC-SHA256", id="a header in JSON"),
        pytest.param("sent bearer 0123456789abcdef", "0123456789abcdef", id="a bearer token in prose"),
        pytest.param(f"token is {TOKEN}", TOKEN, id="a service account token"),
        pytest.param(f"aws_secret_access_key = {SECRET_KEY}", SECRET_KEY, id="an AWS secret key in a file"),
        pytest.param(f'"SecretAccessKey": "{SECRET_KEY}"', SECRET_KEY, id="an AWS secret key in JSON"),
        pytest.param(f"AWS_SESSION_TOKEN={SECRET_KEY}", SECRET_KEY, id="an AWS session token"),
        pytest.param("https://s3/x?X-Amz-Signature=abcdef0123&y=1", "abcdef0123", id="a presigned URL"),
        pytest.param("X-Amz-Security-Token=FwoGZXIvYXdz", "FwoGZXIvYXdz", id="a security token in a URL"),
        pytest.param("GET https://me:hunter2@host/x failed", "hunter2", id="a password in a URL"),
    ],
)
def test_a_credential_is_never_written(text: str, hidden: str) -> None:
    for log_format in ("json", "text"):
        output = start("json" if log_format == "json" else "text")
        logger.info(text)
        logger.info("%s", text)
        logger.info("x", extra={"detail": {"list": [text]}})
        fail(text)
        assert hidden not in output.text
        assert output.text.count(log.REDACTED) >= 4


@pytest.mark.parametrize(
    "key", ["authorization", "token", "password", "secret_access_key", "SecretAccessKey", "id_token"]
)
def test_a_value_under_a_secrets_name_is_hidden_whole(key: str) -> None:
    output = start()
    logger.info("x", extra={"request": {key: "plain text"}})
    assert output.records[0]["request"] == {key: log.REDACTED}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pods is forbidden: User cannot list", id="a refusal by RBAC"),
        pytest.param("https://127.0.0.1:6443/api/v1/nodes?limit=500&continue=eyJ2IjoibWV0", id="a URL"),
        pytest.param("the bearer of this", id="the word bearer"),
        pytest.param("image registry/app@sha256:0123456789abcdef", id="an image digest"),
        pytest.param("template hash 7c9d5f8b6, node ip-10-0-0-1.ec2.internal", id="hashes and names"),
        pytest.param("Grüße", id="what is not ASCII"),
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert log.redact(text) == text


def test_text_for_people_is_one_line_with_pairs() -> None:
    output = start("text")
    with log.bind(kind="DaemonTask", name="t"):
        logger.info("started", extra={"pods": 3, "why": "a spec change", "empty": ""})
    line = output.text
    assert line.count("\n") == 1
    assert line.partition(" ")[2] == (
        'INFO    caretaker.test: started kind=DaemonTask name=t pods=3 why="a spec change" empty=""\n'
    )


def test_text_cannot_fake_a_second_record() -> None:
    output = start("text")
    logger.info("one\n2025-11-20T11:18:03.056Z INFO    caretaker: forged")
    assert all(line.startswith("    ") for line in output.text.splitlines()[1:])


@pytest.mark.parametrize("tty", [True, False], ids=["a terminal gets colours", "a file gets none"])
def test_colours(tty: bool) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: tty  # type: ignore[method-assign]
    log.setup("text", "INFO", stream)
    logger.error("x")
    assert ("\x1b[31m" in stream.getvalue()) == tty


UNITS = (
    "a.",
    "eyJ-",
    "://",
    "a://b:c",
    "bearer ",
    "authorization ",
    "password=",
    "secret_access_key",
    " \t",
    "é",
)


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_written_costs_no_more_than_in_proportion(unit: str) -> None:
    """The square of four would be sixteen. Texts are cut at 32 KiB, so both are shorter."""
    text = unit * 32_000
    assert spent(text[:32_000]) < 10 * spent(text[:8_000]) + 0.001


def spent(text: str) -> float:
    """CPU seconds of looking at a text, cut as it is."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        log.redact(text)
        found.append(time.thread_time() - began)
    return min(found)


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    text = "x " * 20_000
    assert log.redact(text) == f"{text[: log.MAX_CHARACTERS]}... (40000 characters)"
    assert log.redact(text[: log.MAX_CHARACTERS]) == text[: log.MAX_CHARACTERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "secret", ["https://me:hunter2hunter2@host/", f"token {TOKEN}", f"password={SECRET_KEY}"]
)
def test_a_secret_at_the_cut_is_not_shown_in_part(secret: str) -> None:
    for shown in range(1, len(secret)):
        text = log.redact("x " * ((log.MAX_CHARACTERS - shown) // 2) + secret + " x" * 100)
        assert "hunter" not in text
        assert TOKEN[:30] not in text
        assert SECRET_KEY[:8] not in text
