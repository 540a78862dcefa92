"""Event of events.k8s.io/v1: the newer form of the core Event, with other names for the same fields."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.core import EventSeries, EventSource, ObjectReference, event_namespace_problems
from lattice.kinds.meta.base import Column, Kind, Resource


class EventV1(Kind):
    """A record of something that happened to an object, in the form of events.k8s.io. The server stores events
    once and serves each event in both forms."""

    resource: ClassVar[Resource] = Resource(
        kind="Event",
        plural="events",
        group="events.k8s.io",
        version="v1",
        short_names=("ev",),
        categories=(),
        namespaced=True,
        has_status=False,
        columns=(
            Column("Last Seen", "", "date"),
            Column("Type", ".type"),
            Column("Reason", ".reason"),
            Column("Object", ""),
            Column("Source", ".deprecatedSource.component", priority=1),
            Column("Message", ".note"),
            Column("Count", ".deprecatedCount", "integer", 1),
        ),
    )

    event_time: Annotated[str, Meta(description="Time of the event, to the microsecond.")] | None = None
    series: Annotated[EventSeries, Meta(description="Repetitions of the event, if there are any.")] | None = (
        None
    )
    reporting_controller: Annotated[str, Meta(description="Component that reports the event.")] = ""
    reporting_instance: Annotated[str, Meta(description="Instance of the component.")] = ""
    action: Annotated[str, Meta(description="Action that the component took.")] = ""
    reason: Annotated[str, Meta(description="Reason as one word, for programs.")] = ""
    regarding: Annotated[ObjectReference, Meta(description="Object that the event is about.")] = (
        ObjectReference()
    )
    related: Annotated[ObjectReference, Meta(description="Second object that the event is about.")] | None = (
        None
    )
    note: Annotated[str, Meta(description="Description of the event, for people.")] = ""
    type: Annotated[str, Meta(description="Normal or Warning.")] = ""
    deprecated_source: Annotated[
        EventSource, Meta(description="Component that reports the event, as older clients state it.")
    ] = EventSource()
    deprecated_first_timestamp: (
        Annotated[str, Meta(description="Time of the first occurrence, as older clients state it.")] | None
    ) = None
    deprecated_last_timestamp: (
        Annotated[str, Meta(description="Time of the last occurrence, as older clients state it.")] | None
    ) = None
    deprecated_count: (
        Annotated[int, Meta(description="Number of occurrences, as older clients state it.")] | None
    ) = None

    def problems(self) -> Iterator[Cause]:
        yield from event_namespace_problems("regarding", self.regarding, self.metadata.namespace)
