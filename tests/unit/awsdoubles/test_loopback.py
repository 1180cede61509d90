"""Programs that go past the proxy of the user's environment to our own servers."""

import pytest

from awsdoubles.loopback import past_proxy

HOST = "198.19.53.1"


@pytest.mark.parametrize(
    ("given", "excepted"),
    [
        pytest.param({}, HOST, id="nothing is excepted"),
        pytest.param({"no_proxy": "example.com"}, f"example.com,{HOST}", id="what the user excepts stays"),
        pytest.param({"NO_PROXY": "example.com"}, f"example.com,{HOST}", id="in either spelling"),
    ],
)
def test_a_host_is_excepted_in_both_spellings(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], excepted: str
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert past_proxy(HOST) == {"NO_PROXY": excepted, "no_proxy": excepted}
