"""Invalid responses of Storage Gateway: no share counts as deleted, no event is lost, no body is shown."""

import json
from typing import Any

import pytest

from awsdoubles.sqsproxy.proxy import SqsProxy
from testing.operator import OperatorProcess
from testing.refreshing import Refreshing, gateway, stands

pytestmark = pytest.mark.slow

DESCRIBE = "DescribeNFSFileShares"


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        pytest.param(DESCRIBE, {"action": "cut_body"}, id="a description that was cut"),
        pytest.param(
            DESCRIBE, {"action": "without", "member": "NFSFileShareInfoList"}, id="no list of descriptions"
        ),
        pytest.param(DESCRIBE, {"action": "without", "member": "GatewayARN"}, id="no gateway"),
        pytest.param(DESCRIBE, {"action": "html"}, id="a page of HTML"),
        pytest.param("ListFileShares", {"action": "without"}, id="an empty answer instead of a list"),
        pytest.param("ListFileShares", {"action": "html"}, id="a page of HTML instead of a list"),
    ],
)
async def test_shares_that_cannot_be_read_are_not_gone(
    shared: Refreshing,
    shared_operator: OperatorProcess,
    sqs_proxy: SqsProxy,
    operation: str,
    fault: dict[str, Any],
) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue)
    await resource.condition("Ready")
    shared.control.fault(operation=operation, count=None, **fault)
    # A changed configuration starts discovery anew, without known shares.
    await resource.edit(filter={"prefixes": ["a/"]}, target=gateway(maxFolders=7))
    told = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    await shared.polls_over(sqs_proxy)
    await shared.put(source.bucket, "a/1")
    assert f"{operation}: UnreadableAnswer: the answer cannot be read" in told["message"]
    found = await resource.get()
    assert [target["id"] for target in found["status"]["targets"]] == [share.rpartition("/")[2]]
    assert "hunter2" not in json.dumps(found["status"])
    shared.control.clear_faults()
    await resource.condition("Ready")
    await shared.refreshed(share)
    await shared.fresh(share)
    assert "hunter2" not in "\n".join(shared_operator.lines)
    shared_operator.assert_clean_logs()


@pytest.mark.parametrize("fault", [{"action": "cut_body"}, {"action": "html"}, {"action": "without"}])
async def test_a_refresh_whose_answer_cannot_be_read_is_made_again(
    shared: Refreshing, shared_operator: OperatorProcess, fault: dict[str, Any]
) -> None:
    source = shared.aws.source()
    share = shared.share(source.bucket)
    resource = await shared.create(source.queue)
    await resource.condition("Ready")
    shared.control.fault(operation="RefreshCache", count=1, **fault)
    await shared.put(source.bucket, "a/1")
    found = await resource.when(lambda f: any("failure" in one for one in f["status"]["targets"]))
    (target,) = found["status"]["targets"]
    assert target["failure"]["code"] == "OutcomeUnknown"
    assert "hunter2" not in json.dumps(found["status"])
    await resource.when(lambda f: stands(f, "CaughtUp"))
    assert len(shared.control.calls("RefreshCache")) == 2
    await shared.fresh(share)
    shared_operator.assert_clean_logs()
