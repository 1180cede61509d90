"""What a failure of AWS means: the classes that errors.py tells apart. Pure data."""

from enum import StrEnum


class ErrorClass(StrEnum):
    """What a failure means, whatever the service calls it."""

    NOT_FOUND = "NotFound"
    THROTTLED = "Throttled"
    ACCESS_DENIED = "AccessDenied"
    NO_IDENTITY = "NoIdentity"  # no credentials, or AWS does not know or trust them
    IN_PROGRESS = "InProgress"
    INVALID_REQUEST = "InvalidRequest"
    TRANSIENT = "Transient"
    UNKNOWN_OUTCOME = "UnknownOutcome"
