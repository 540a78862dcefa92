"""Build Event objects, which a controller writes in the same commit as the change that the event reports."""

from collections.abc import Callable
from dataclasses import dataclass

from lattice.clock import Clock
from lattice.controllers.runtime.object_writes import key_of
from lattice.kinds.core import Event, EventSource, ObjectReference
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Kind, Metadata
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.protocol import ABSENT, Put

MAX_MESSAGE_CHARS = 1024


@dataclass(frozen=True)
class EventRecorder:
    """Build the events of one controller. Every call builds a new Event: equal events are not merged."""

    component: str
    clock: Clock
    new_uid: Callable[[], str]

    def event(self, about: Kind, reason: str, message: str, *, warning: bool = False) -> Put:
        """Return the write that creates an Event about an object; a message over the limit is cut and ends
        with "…"."""
        uid, now, metadata = self.new_uid(), format_timestamp(self.clock.now()), about.metadata
        reference = ObjectReference(
            api_version=about.resource.api_version,
            kind=about.resource.kind,
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
        )
        event = Event(
            api_version=Event.resource.api_version,
            kind=Event.resource.kind,
            metadata=Metadata(
                # The random part keeps the name unique: two events about one object must not conflict in a
                # commit.
                name=f"{metadata.name}.{uid.replace('-', '')[:16]}",
                # Events about cluster-scoped objects are in the default namespace.
                namespace=metadata.namespace or DEFAULT_NAMESPACE,
                uid=uid,
                creation_timestamp=now,
                generation=1,
            ),
            involved_object=reference,
            reason=reason,
            message=message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 1]}…",
            source=EventSource(component=self.component),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
            type="Warning" if warning else "Normal",
            reporting_component=f"lattice.dev/{self.component}",
        )
        return Put(key_of(event), encode(event), ABSENT)
