"""The result of a call to AWS that failed, for targets whose calls have an id of their own.

Pure. The same call may be made again under the claim's id, so an outcome that is not known keeps the claim. A
refusal before the request is processed says nothing of an earlier attempt; nor does a service that is busy,
for which the plan keeps the claim.
"""

from caretaker.aws.errors import AwsError
from caretaker.s3refresh import conditions
from caretaker.s3refresh.debounce import BUSY, UNKNOWN, Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Result


def failed(share: Share, claim: Claim, error: AwsError) -> Result:
    """The result of the call that the claim records."""
    decided = error.code in BUSY or (error.status > 0 and (error.invalid or error.not_found))
    unknown = error.unknown_outcome or error.status >= 500 or (claim.attempt > 1 and not decided)
    return Result(
        share.id,
        claim.id,
        code=UNKNOWN if unknown else error.code or "Unknown",
        message=conditions.with_remedy(error, str(error) if unknown else error.message),
    )
