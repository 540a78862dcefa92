"""Trace spans of operations; without an OpenTelemetry SDK in the process no tracing module is loaded and no
span is recorded.

Spans of one workload are correlated by the attributes `lattice.workload`, `lattice.revision` and
`lattice.term`, not by a propagated trace context.
"""

import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

AttributeValue = str | int | float | bool | list[str]
# A span names the first paths of a long list only.
MAX_SPAN_PATHS = 20


class Span(Protocol):
    @property
    def is_recording(self) -> bool:
        """False if no tracer records the span: the caller can skip attributes that are costly to compute."""
        ...

    def set_attributes(self, **attributes: AttributeValue) -> None:
        """Add attributes to the span after its start; the attribute `name` replaces the name of the span."""
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
    """One span of the OpenTelemetry SDK; the current span while the context manager is open."""

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
    """The switch of tracing; spans are no-ops until `enable` finds a tracer provider."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def span(self, name: str, **attributes: AttributeValue) -> AbstractContextManager[Span]:
        return NOOP_SPAN if self._tracer is None else _RecordingSpan(self._tracer, name, attributes)

    def enable(self, provider: "TracerProvider | None" = None) -> None:
        """Record spans with the given provider, or with the provider of the SDK in the process, if present.
        Called once, when a server or an agent starts."""
        has_sdk = "opentelemetry.trace" in sys.modules or bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
        if provider is None and not has_sdk:
            return
        from opentelemetry import trace

        from lattice import __version__

        active_provider = provider or trace.get_tracer_provider()
        if not isinstance(active_provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            self._tracer = active_provider.get_tracer("lattice", __version__)

    def disable(self) -> None:
        self._tracer = None


TRACING = Tracing()
span = TRACING.span


def first_paths(paths: list[str]) -> list[str]:
    """The first MAX_SPAN_PATHS paths, for a span attribute."""
    return paths[:MAX_SPAN_PATHS]
