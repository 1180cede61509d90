"""Whether a refused dry run says that the template is invalid."""

import pytest

from caretaker.daemontask.resource import by_admission
from caretaker.kube.errors import ApiError

POLICY = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
WEBHOOK = 'admission webhook "pods.example.com" denied the request: no'
INVALID = 'Pod "x" is invalid: spec.containers[0].image: Required value'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ApiError(403, "Forbidden", 'pods "x" is forbidden: exceeded quota'), True, id="a quota"),
        pytest.param(ApiError(422, "Invalid", POLICY), True, id="an admission policy, by default 422"),
        pytest.param(ApiError(400, "", WEBHOOK), True, id="a webhook that answers 400"),
        pytest.param(ApiError(422, "Invalid", INVALID), False, id="a field of the Pod"),
        pytest.param(ApiError(400, "BadRequest", "strict decoding error"), False, id="an unknown field"),
    ],
)
def test_a_refusal_by_admission_is_told_from_an_invalid_pod(error: ApiError, expected: bool) -> None:
    assert by_admission(error) is expected
