"""Everything that can go wrong, one class per meaning, each with one HTTP status and one exit code.

LatticeError
├── Malformed 400       the request cannot be read at all
├── UnknownUser 401     no credentials, or none that we know
├── Denied 403          we know who asks; they may not
├── NotFound 404        no such object, namespace or kind
├── NotAllowed 405      the verb does not exist for this thing
├── NotAcceptable 406   the answer cannot be given in the asked form
├── Exists 409          create of something that is there
├── Conflict 409        someone else was first, or owns the field
├── Gone 410            the history asked for is compacted away
├── TooLarge 413        over a stated limit
├── Unsupported 415     a body in a form we do not read
├── Invalid 422         read, understood, and wrong; every cause listed
├── TooMany 429         slow down and come again
├── Unavailable 503     the store, or the server, cannot answer now
│   └── Fenced          the writer's leadership term is over
├── Ahead 504           the revision asked for has not happened yet
└── Full 507            the disk, or the store's quota, is full; reads go on
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
    """The base class of errors: the text states the problem, the place and the fix, in this order."""

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
