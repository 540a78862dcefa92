"""Errors of Lattice: one class per meaning, each with one HTTP status and one exit code.

LatticeError
├── Malformed 400             the request cannot be parsed
│   └── UsageError            the command line is wrong
├── UnknownUser 401           the request has no credentials, or unknown ones
├── Denied 403                the user is known, but may not do this
├── NotFound 404              the object, namespace or kind does not exist
├── MethodNotAllowed 405      the resource does not support this verb
├── NotAcceptable 406         the server cannot answer in the requested format
├── Exists 409                an object with this name exists already
├── Conflict 409              another writer changed the object first, or owns the field
├── Gone 410                  the requested revision is compacted
├── TooLarge 413              the request exceeds a limit
├── UnsupportedMediaType 415  the server does not support the format of the body
├── Invalid 422               the object was parsed, but is invalid; every cause is listed
├── TooManyRequests 429       the client sends too many requests and must wait
├── Unavailable 503           the store or the server cannot answer now
│   └── Fenced                the leadership term of the writer has ended
├── RevisionTooNew 504        the requested revision does not exist yet
└── Full 507                  the disk or the quota of the store is full; reads still work
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Cause:
    """One problem of one field; `reason` is a Kubernetes cause type such as FieldValueInvalid."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class LatticeError(Exception):
    """The base class of errors: the text states the place, the problem and the fix, in this order."""

    status: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", fix: str = "", causes: Sequence[Cause] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix
        self.causes = tuple(causes)
        # The name of an object that is about to be created; empty where the request path names the object.
        self.object_name = ""
        # The plural of the object that the error is about, where the request path names another object.
        self.object_kind = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class Malformed(LatticeError):
    status, reason = 400, "BadRequest"


class UnknownUser(LatticeError):
    status, reason, exit_code = 401, "Unauthorized", 4


class Denied(LatticeError):
    status, reason, exit_code = 403, "Forbidden", 4


class NotFound(LatticeError):
    status, reason = 404, "NotFound"


class MethodNotAllowed(LatticeError):
    status, reason = 405, "MethodNotAllowed"


class NotAcceptable(LatticeError):
    status, reason = 406, "NotAcceptable"


class Exists(LatticeError):
    status, reason = 409, "AlreadyExists"


class Conflict(LatticeError):
    status, reason = 409, "Conflict"


class Gone(LatticeError):
    status, reason = 410, "Expired"
    # Of an expired list: the token that continues the list from the newest state.
    continue_token: str = ""


class TooLarge(LatticeError):
    status, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(LatticeError):
    status, reason = 415, "UnsupportedMediaType"


class Invalid(LatticeError):
    status, reason = 422, "Invalid"


class TooManyRequests(LatticeError):
    status, reason, exit_code = 429, "TooManyRequests", 3


class Unavailable(LatticeError):
    status, reason, exit_code = 503, "ServiceUnavailable", 3


class Fenced(Unavailable):
    reason = "StaleTerm"


class RevisionTooNew(LatticeError):
    status, reason = 504, "Timeout"


class Full(LatticeError):
    status, reason, exit_code = 507, "StorageFull", 3


class UsageError(Malformed):
    """A wrong command line; the command exits before the client sends a request to a server."""

    exit_code = 2
