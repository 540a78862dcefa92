"""Spans: what was done, for what, and how it ended. Without an OpenTelemetry SDK in this process nothing is loaded, made or kept.

One workload's road is put together by attributes, not by a context that travels: `lattice.workload`, `lattice.revision`, `lattice.term`.
"""

import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

Value = str | int | float | bool | list[str]
MOST = 20  # paths that a span names: the first of many


class Span(Protocol):
    @property
    def is_kept(self) -> bool:
        """False: nobody listens, and what is costly to find out need not be."""
        ...

    def tell(self, **attributes: Value) -> None:
        """What was not known at the beginning; a `name` is the span's own."""
        ...


class _Nothing:
    is_kept = False

    def tell(self, **attributes: Value) -> None:
        return None

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Kept:
    """One span of the SDK, current while it lasts."""

    is_kept = True

    def __init__(self, tracer: "Tracer", name: str, attributes: dict[str, Value]) -> None:
        self._entered = tracer.start_as_current_span(
            name, attributes={f"lattice.{key}": value for key, value in attributes.items()}
        )

    def tell(self, **attributes: Value) -> None:
        for key, value in attributes.items():
            if key == "name":
                self._span.update_name(str(value))
            else:
                self._span.set_attribute(f"lattice.{key}", value)

    def __enter__(self) -> "_Kept":
        self._span = self._entered.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.__exit__(*error)  # type: ignore[arg-type]


NOTHING = _Nothing()


class Traces:
    """Off until somebody listens."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def span(self, name: str, **attributes: Value) -> AbstractContextManager[Span]:
        return NOTHING if self._tracer is None else _Kept(self._tracer, name, attributes)

    def listen(self, provider: "TracerProvider | None" = None) -> None:
        """Once, when a server or an agent begins: to this provider, or to the one of the SDK that runs in this process, if any does."""
        is_there = "opentelemetry.trace" in sys.modules or bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
        if provider is None and not is_there:
            return
        from opentelemetry import trace

        from lattice import __version__

        found = provider or trace.get_tracer_provider()
        if not isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            self._tracer = found.get_tracer("lattice", __version__)

    def deafen(self) -> None:
        self._tracer = None


TRACES = Traces()
span = TRACES.span


def first(paths: list[str]) -> list[str]:
    return paths[:MOST]
