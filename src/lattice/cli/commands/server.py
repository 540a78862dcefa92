"""`lattice server`: one API server of a production installation; any number of servers share an etcd."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TextIO, cast

import click
from click.core import ParameterSource

from lattice.cli.client.daemon_flags import SETTING_TYPES, config_flag
from lattice.errors import UsageError
from lattice.settings import SETTINGS_BY_NAME, Settings

SERVER_FLAGS = tuple(SETTINGS_BY_NAME)
# Environment variables with which OpenSSL finds certificate authorities.
TRUST_STORE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
# The value came neither from a flag nor from the environment.
DEFAULT_SOURCES = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def settings_flags(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags of these settings to a command, in order, each with its environment variable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # click applies decorators from the bottom up: reversed keeps the order of the help text.
        for name in reversed(names):
            setting = SETTINGS_BY_NAME[name]
            is_switch = setting.default is False
            option = click.option(
                f"--{name}",
                default=setting.default,
                type=SETTING_TYPES.get(name),
                is_flag=is_switch,
                envvar=list(setting.env),
                show_default=not is_switch and setting.default != "",
                show_envvar=True,
                help=setting.help,
            )
            function = option(function)
        return function

    return decorate


@click.command()
@config_flag("LATTICE_CONFIG")
@settings_flags(*SERVER_FLAGS)
@click.option("--verbose", is_flag=True, help="Log debug messages.")
def server(verbose: bool, **values: Any) -> None:
    """Run one API server of a production installation.

    \b
    Examples:
      lattice server --store etcd://10.0.0.1:2379,10.0.0.2:2379 --listen 0.0.0.0 --advertise lattice.example
      lattice server --data-dir /var/lib/lattice
      lattice server --config /etc/lattice.yaml
    """
    settings = with_etcd_host(Settings(**values))
    configure_logging(verbose=verbose)
    asyncio.run(_run(settings))


def with_etcd_host(settings: Settings) -> Settings:
    """The settings with the store of ETCD_HOST and ETCD_PORT, unless --store or LATTICE_STORE is set; the
    environment wins over a settings file."""
    import os
    from dataclasses import replace

    host, port = os.environ.get("ETCD_HOST", ""), os.environ.get("ETCD_PORT", "") or "2379"
    if not host or click.get_current_context().get_parameter_source("store") not in DEFAULT_SOURCES:
        return settings
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UsageError(
            f"must be 1 to 65535, got {port}",
            where="ETCD_PORT",
            fix="give the port at which etcd listens for clients",
        )
    return replace(settings, store=f"etcd://{host}:{port}")


class _BestEffortStream:
    """Text stream that drops output instead of raising: a full disk or a closed pipe must not stop the
    server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


@contextlib.contextmanager
def _hide_modules(*names: str) -> Iterator[None]:
    """Context in which imports behave as if these modules were not installed."""
    import sys

    # A module that is already loaded must stay usable.
    hidden = [name for name in names if name not in sys.modules]
    # A None entry makes `import` raise ImportError.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _empty_trust_store() -> Iterator[None]:
    """Context with an empty system trust store.

    aiohttp builds a TLS context with every authority of the system at import; Lattice builds its contexts
    where they are used.
    """
    import os

    previous_values = {name: os.environ.get(name) for name in TRUST_STORE_VARIABLES}
    os.environ.update(dict.fromkeys(TRUST_STORE_VARIABLES, os.devnull))
    try:
        yield
    finally:
        for name, value in previous_values.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def render_in_words(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    """One line for people: the time, the event, and its fields."""
    time, level = str(event.pop("timestamp", ""))[11:19], str(event.pop("level", "info"))
    head = f"{time} {event.pop('event', '')}"
    trace = event.pop("exception", "")
    fields = ", ".join(f"{name} {value}" for name, value in event.items() if value not in ("", None))
    marked = head if level in {"info", "debug"} else f"{head} ({level})"
    line = f"{marked}: {fields}" if fields else marked
    return f"{line}\n{trace}" if trace else line


def configure_logging(*, verbose: bool, in_words: bool | None = None) -> None:
    """Log to standard error: lines for people on a terminal, else one JSON line per event."""
    import sys

    if in_words is None:
        in_words = sys.stderr.isatty()

    # structlog imports rich and greenlet where they are installed: 3 MiB of memory for colour tracebacks, which
    # a server never prints.
    with _hide_modules("rich", "greenlet"):
        import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render_in_words if in_words else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _BestEffortStream(sys.stderr))),
    )
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def install_stop_event() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set; from here on the signals do not end the process themselves."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _run(settings: Settings) -> None:
    import structlog

    # Loaded here: the import costs time and memory that other commands do not need.
    with _empty_trust_store():
        from lattice.app.serve import serve

    log = structlog.get_logger()
    async with serve(settings, fallback_port=False) as running:
        stop = install_stop_event()
        log.info(
            "serving",
            url=running.url,
            store=running.store_location,
            kubeconfig=str(running.kubeconfig),
            instance=running.instance_id,
        )
        await stop.wait()
        log.info("stopping")
