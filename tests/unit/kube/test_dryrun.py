"""What a refusal says of each field, in each form in which the API server says it."""

import pytest

from caretaker.kube.errors import ApiError, faults_in

OBJECT = r'"{\"spec\":{\"note\":\"unknown field \\\"spec.note\\\"\",\"paralelism\":1}}"'
PATCHED = f'Invalid value: {OBJECT}: strict decoding error: unknown field "spec.paralelism"'


@pytest.mark.parametrize(
    ("error", "faults"),
    [
        pytest.param(
            ApiError(
                400, "BadRequest", 'x: strict decoding error: unknown field "spec.a", duplicate field "b"'
            ),
            [("spec.a", "unknown field"), ("b", "duplicate field")],
            id="a create",
        ),
        pytest.param(
            ApiError(422, "Invalid", f' "" is invalid: patch: {PATCHED}', causes=(("patch", PATCHED),)),
            [("spec.paralelism", "unknown field")],
            id="a patch, after the whole object",
        ),
        pytest.param(
            ApiError(422, "Invalid", "no", causes=(("spec.a", "too small"), ("<nil>", "not checked"))),
            [("spec.a", "too small")],
            id="causes",
        ),
        pytest.param(
            ApiError(422, "Invalid", "no", causes=(("patch", "cannot be applied"),)),
            [("", "no")],
            id="a patch that is refused for something else",
        ),
        pytest.param(ApiError(403, "Forbidden", "no"), [("", "no")], id="words alone"),
    ],
)
def test_each_fault_has_its_field(error: ApiError, faults: list[tuple[str, str]]) -> None:
    assert faults_in(error) == faults
