"""Refusals of a gateway that may be caused by one of the folders."""

from typing import Any

import pytest

from caretaker.aws.errors import AwsError
from caretaker.aws.responses import classify
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.targets.storagegateway import (
    Discover,
    SharesSpec,
    StorageGatewayShares,
    StorageGatewayTarget,
)

SHARE = Share("share-1", "arn:share-1", "bucket", region="eu-west-1")
CLAIM = Claim("c1", "me", 0.0, Request(("a", "/"), recursive=False), 0.0)
GATEWAY = "InvalidGatewayRequestException"
BUSY = "Too many requests have been sent to server."


class Answers:
    """Storage Gateway with this answer."""

    def __init__(self, code: str, cause: str, message: str, status: int) -> None:
        told = classify(code, status, cause, write=True)
        self._error = AwsError(told, code, message, status=status, cause=cause, service="storagegateway")

    async def refresh_cache(self, **_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("code", "cause", "message", "status", "refused"),
    [
        pytest.param(GATEWAY, "InvalidParameters", "no", 400, True, id="invalid parameters"),
        pytest.param(GATEWAY, "", "no", 400, True, id="no cause"),
        pytest.param(
            GATEWAY, "InternalError", "The specified folder x was not found", 400, True, id="a folder"
        ),
        pytest.param("ValidationException", "", "FolderList", 400, True, id="by the service itself"),
        pytest.param(GATEWAY, "InternalError", BUSY, 400, False, id="busy"),
        pytest.param(GATEWAY, "", BUSY, 400, False, id="busy, without a cause"),
        pytest.param(GATEWAY, "GatewayNotConnected", "no", 400, False, id="the gateway is away"),
        pytest.param("ThrottlingException", "", "Rate exceeded", 400, False, id="throttled"),
        pytest.param("AccessDeniedException", "", "no", 400, False, id="not permitted"),
        pytest.param("InternalServerError", "", "no", 500, False, id="the service fails"),
    ],
)
async def test_what_may_be_about_a_folder(
    code: str, cause: str, message: str, status: int, refused: bool
) -> None:
    client: Any = Answers(code, cause, message, status)
    target = StorageGatewayShares(
        {"eu-west-1": client}, StorageGatewayTarget(shares=SharesSpec(discover=Discover()))
    )
    result = await target.refresh(SHARE, CLAIM)
    assert result.code
    assert result.refused is refused
