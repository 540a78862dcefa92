"""Convert events between the core form, in which they are stored, and the form of events.k8s.io/v1."""

from lattice.errors import Cause
from lattice.kinds.core import Event
from lattice.kinds.event_v1 import EventV1
from lattice.kinds.meta.json_body import decode_stored
from lattice.kinds.meta.stored_encoding import Object, pack

# The v1 name of every core field that has another name; all other fields have the same name and form.
V1_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
CORE_NAMES = {v1: core for core, v1 in V1_NAMES.items()}
MAX_NOTE_BYTES = 1024
# Fields that a new event of events.k8s.io/v1 must state, as in Kubernetes.
REQUIRED_FIELDS = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")


def v1_value(core_value: bytes) -> bytes:
    """The stored bytes of a core event as the bytes of an event of events.k8s.io/v1."""
    event: Object = decode_stored(core_value)
    return pack(EventV1.resource, {V1_NAMES.get(name, name): value for name, value in event.items()})


def core_value(v1_event_value: bytes) -> bytes:
    """The bytes of an event of events.k8s.io/v1 as the stored bytes of a core event."""
    event: Object = decode_stored(v1_event_value)
    core = {CORE_NAMES.get(name, name): value for name, value in event.items()}
    # The core form requires the object; an event without one is about nothing in particular.
    core.setdefault("involvedObject", {})
    return pack(Event.resource, core)


def new_event_causes(event: Object) -> list[Cause]:
    """Return what a new event of events.k8s.io/v1 lacks; older core events, which are served too, state less."""
    causes = [
        Cause(name, "Required value", "FieldValueRequired") for name in REQUIRED_FIELDS if not event.get(name)
    ]
    if event.get("type") not in (None, "", "Normal", "Warning"):
        causes.append(Cause("type", 'Invalid value: must be "Normal" or "Warning"'))
    if len(str(event.get("note", "")).encode()) > MAX_NOTE_BYTES:
        causes.append(Cause("note", f"Invalid value: can have at most {MAX_NOTE_BYTES} bytes"))
    causes.extend(
        Cause(name, "Invalid value: needs to be unset")
        for name in ("deprecatedCount", "deprecatedFirstTimestamp", "deprecatedLastTimestamp")
        if event.get(name)
    )
    return causes
