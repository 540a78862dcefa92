"""Spans: what was done, for what, and how it ended. Without an OpenTelemetry SDK in this process nothing is loaded, made or kept.

One workload's road is put together by attributes, not by a context that travels: `lattice.workload`, `lattice.revision`, `lattice.term`.
"""

import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

AttributeValue = str | int | float | bool | list[str]
MAX_SPAN_PATHS = 20  # paths that a span names: the first of many


class Span(Protocol):
    @property
    def is_recording(self) -> bool:
        """False: nobody listens, and what is costly to find out need not be."""
        ...

    def set_attributes(self, **attributes: AttributeValue) -> None:
        """What was not known at the beginning; a `name` is the span's own."""
        ...


class _NoopSpan:
    is_recording = False

    def set_attributes(self, **attributes: AttributeValue) -> None:
        return None

    def __enter__(self) -> "_NoopSpan":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _RecordingSpan:
    """One span of the SDK, current while it lasts."""

    is_recording = True

    def __init__(self, tracer: "Tracer", name: str, attributes: dict[str, AttributeValue]) -> None:
        self._span_context = tracer.start_as_current_span(
            name, attributes={f"lattice.{key}": value for key, value in attributes.items()}
        )

    def set_attributes(self, **attributes: AttributeValue) -> None:
        for key, value in attributes.items():
            if key == "name":
                self._span.update_name(str(value))
            else:
                self._span.set_attribute(f"lattice.{key}", value)

    def __enter__(self) -> "_RecordingSpan":
        self._span = self._span_context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._span_context.__exit__(*error)  # type: ignore[arg-type]


NOOP_SPAN = _NoopSpan()


class Tracing:
    """Off until somebody listens."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def span(self, name: str, **attributes: AttributeValue) -> AbstractContextManager[Span]:
        return NOOP_SPAN if self._tracer is None else _RecordingSpan(self._tracer, name, attributes)

    def enable(self, provider: "TracerProvider | None" = None) -> None:
        """Once, when a server or an agent begins: to this provider, or to the one of the SDK that runs in this process, if any does."""
        is_there = "opentelemetry.trace" in sys.modules or bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
        if provider is None and not is_there:
            return
        from opentelemetry import trace

        from lattice import __version__

        found = provider or trace.get_tracer_provider()
        if not isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            self._tracer = found.get_tracer("lattice", __version__)

    def disable(self) -> None:
        self._tracer = None


TRACING = Tracing()
span = TRACING.span


def first_paths(paths: list[str]) -> list[str]:
    return paths[:MAX_SPAN_PATHS]
