"""The classes of AWS errors. Pure data."""

from enum import StrEnum


class ErrorClass(StrEnum):
    """The class of an error, the same for all services."""

    NOT_FOUND = "NotFound"
    THROTTLED = "Throttled"
    ACCESS_DENIED = "AccessDenied"
    NO_IDENTITY = "NoIdentity"  # no credentials, or AWS does not know or trust them
    IN_PROGRESS = "InProgress"
    INVALID_REQUEST = "InvalidRequest"
    TRANSIENT = "Transient"
    UNKNOWN_OUTCOME = "UnknownOutcome"
