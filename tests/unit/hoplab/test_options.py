"""Where the lab's metadata options come from, and what is no options at all."""

import json
from pathlib import Path

import pytest

from hoplab.needs import HopLabError
from hoplab.options import MetadataOptions, from_file


def test_what_describe_instances_answers_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    given = {
        "State": "applied",
        "HttpTokens": "optional",
        "HttpPutResponseHopLimit": 2,
        "HttpEndpoint": "disabled",
        "HttpProtocolIpv6": "disabled",
        "InstanceMetadataTags": "disabled",
    }
    file.write_text(json.dumps(given))
    assert from_file(file)() == MetadataOptions(2, "optional", "disabled", "disabled")


def test_a_change_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    source = from_file(file)
    for hops in (1, 2):
        file.write_text(json.dumps({"HttpPutResponseHopLimit": hops}))
        assert source().http_put_response_hop_limit == hops


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"HttpPutResponseHopLimit": 0}', id="no hops"),
        pytest.param('{"HttpPutResponseHopLimit": 65}', id="more hops than EC2 knows"),
        pytest.param('{"HttpTokens": "maybe"}', id="an unknown setting"),
        pytest.param("{", id="half a file"),
    ],
)
def test_what_cannot_be_options_is_refused_with_its_source(tmp_path: Path, text: str) -> None:
    file = tmp_path / "options.json"
    file.write_text(text)
    with pytest.raises(HopLabError, match=r"options\.json"):
        from_file(file)()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HopLabError, match=r"absent\.json"):
        from_file(tmp_path / "absent.json")()
