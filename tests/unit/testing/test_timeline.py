"""What is shown of a test that failed."""

import json
from pathlib import Path

from testing.timeline import timeline

REQUEST = {
    "stage": "ResponseComplete",
    "requestURI": "/api/v1/nodes",
    "verb": "list",
    "user": {"username": "system:admin"},
    "responseStatus": {"code": 200},
    "requestReceivedTimestamp": "2026-11-26T22:00:00.000000Z",
    "stageTimestamp": "2026-11-26T22:00:00.010000Z",
}


def test_a_request_that_was_not_authenticated_is_shown_too(tmp_path: Path) -> None:
    """The API server's audit log names no user of it."""
    refused = REQUEST | {"user": {}, "responseStatus": {"code": 401}}
    lines = [json.dumps(REQUEST), json.dumps(refused), '{"stage": "half']
    (tmp_path / "audit.jsonl").write_text("\n".join(lines))
    words = [line.text for line in timeline(tmp_path, 0.0) if line.source == "api"]
    assert words == ["admin list /api/v1/nodes -> 200 in 10 ms", "nobody list /api/v1/nodes -> 401 in 10 ms"]
