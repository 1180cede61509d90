"""What the services answer instead of a result: codes as in "Error codes for the Amazon EC2 API"."""

from typing import Final

# All other client errors are 400.
STATUSES: Final = {
    "DryRunOperation": 412,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AuthFailure": 401,
    "MissingAuthenticationToken": 403,
    "RequestLimitExceeded": 503,
    "InternalError": 500,
    "Unavailable": 503,
}


class AwsError(Exception):
    """A refusal; `status` is the code's own unless given."""

    def __init__(self, code: str, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or STATUSES.get(code, 400)

    def named(self, code: str) -> "AwsError":
        """The same in a service's own word."""
        return self if code == self.code else AwsError(code, str(self))


def invalid_value(message: str) -> AwsError:
    """The most common of them."""
    return AwsError("InvalidParameterValue", message)
