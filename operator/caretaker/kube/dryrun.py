"""Objects submitted to be judged and not stored, and what a refusal says of each field.

Pure: (ApiError) -> what is wrong where.
"""

import re
from typing import Final

from caretaker.kube.errors import ApiError

STRICT_DRY_RUN: Final = {"dryRun": "All", "fieldValidation": "Strict"}
# fieldValidation=Strict has no causes: 'unknown field "spec.x", duplicate field "spec.y"'.
_STRICT: Final = re.compile(r'(unknown|duplicate) field "([^"]+)"')


def by_admission(error: ApiError) -> bool:
    """Whether a policy or webhook refused, and not the Pod's own validation: the status code does not tell,
    since either may choose it (a ValidatingAdmissionPolicy's default is 422 Invalid). The words are those of
    k8s.io/apiserver, admission.NewForbidden and webhook/errors.ToStatusErr."""
    return error.forbidden or " is forbidden: " in error.message or "admission webhook" in error.message


def faults_in(error: ApiError) -> list[tuple[str, str]]:
    """(field, what is wrong with it) of a refusal, by its causes or by the words of strict decoding."""
    # "some validation rules were not checked" comes with field <nil> beside the faults that say why.
    if named := [(field, said) for field, said in error.causes if field != "<nil>"]:
        return named
    found = _STRICT.findall(error.message) if "strict decoding" in error.message else []
    return [(field, f"{what} field") for what, field in found] or [("", error.message)]
