"""Server-side dry runs: their query parameters, and the fields that a refusal names.

Pure: (ApiError) -> (field, fault) pairs.
"""

import re
from typing import Final

from caretaker.kube.errors import ApiError

STRICT_DRY_RUN: Final = {"dryRun": "All", "fieldValidation": "Strict"}
# fieldValidation=Strict: 'unknown field "spec.x", duplicate field "spec.y"'. For an object that is created it
# has no causes; for one that is patched it has the cause `patch`, with the whole object before these words.
_DECODING: Final = "strict decoding error: "
_STRICT: Final = re.compile(r'(unknown|duplicate) field "([^"]+)"')


def by_admission(error: ApiError) -> bool:
    """Whether a policy or webhook refused, and not the Pod's own validation. The status code does not show
    it, since either may choose it (a ValidatingAdmissionPolicy's default is 422 Invalid). The texts are those
    of k8s.io/apiserver, admission.NewForbidden and webhook/errors.ToStatusErr."""
    return error.forbidden or " is forbidden: " in error.message or "admission webhook" in error.message


def faults_in(error: ApiError) -> list[tuple[str, str]]:
    """(field, fault) pairs of a refusal, from its causes or from the text of strict decoding."""
    # "some validation rules were not checked" comes with field <nil> beside the actual faults.
    if named := [(field, message) for field, message in error.causes if field not in ("<nil>", "patch")]:
        return named
    patch = next((message for field, message in error.causes if field == "patch"), "")
    return _undecoded(patch or error.message) or [("", error.message)]


def _undecoded(message: str) -> list[tuple[str, str]]:
    """The fields that strict decoding names; none for another refusal."""
    _, refused, words = message.rpartition(_DECODING)
    return [(field, f"{what} field") for what, field in _STRICT.findall(words)] if refused else []
