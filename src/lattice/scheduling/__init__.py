"""Workload -> node: filter, score, select, reserve and bind, inside one table of nodes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lattice.engine.decide import Decision as Decision
    from lattice.engine.decide import decide as decide
    from lattice.engine.explain import as_json as as_json
    from lattice.engine.explain import sentence as sentence
    from lattice.engine.plugin import Filter as Filter
    from lattice.engine.plugin import Profile as Profile
    from lattice.engine.plugin import Reason as Reason
    from lattice.engine.plugin import Score as Score
    from lattice.scheduling.ask import WorkloadAsk as WorkloadAsk
    from lattice.scheduling.bind import Binder as Binder
    from lattice.scheduling.bind import BindEvent as BindEvent
    from lattice.scheduling.bind import BindingMode as BindingMode
    from lattice.scheduling.bind import BindRequest as BindRequest
    from lattice.scheduling.bind import Ledger as Ledger
    from lattice.scheduling.nodes import NodeTable as NodeTable
    from lattice.scheduling.preempt import Preemptor as Preemptor
    from lattice.scheduling.profile import PRESETS as PRESETS
    from lattice.scheduling.profile import ProfileSpec as ProfileSpec
    from lattice.scheduling.profile import compile_preset as compile_preset
    from lattice.scheduling.profile import parse_profile as parse_profile
    from lattice.scheduling.queue import Queue as Queue
    from lattice.scheduling.reserve import Reservation as Reservation
    from lattice.scheduling.reserve import Reservations as Reservations
    from lattice.scheduling.schedule import CompositeScheduler as CompositeScheduler
    from lattice.scheduling.schedule import Cycle as Cycle
    from lattice.scheduling.schedule import compose as compose
    from lattice.scheduling.select import Selection as Selection
    from lattice.scheduling.select import Selector as Selector
    from lattice.scheduling.select import TieBreaker as TieBreaker

_HOME = {  # looked up when first used, so that importing one module does not import them all
    "lattice.engine.decide": ("Decision", "decide"),
    "lattice.engine.explain": ("as_json", "sentence"),
    "lattice.engine.plugin": ("Filter", "Profile", "Reason", "Score"),
    "lattice.scheduling.ask": ("WorkloadAsk",),
    "lattice.scheduling.bind": ("BindEvent", "BindRequest", "Binder", "BindingMode", "Ledger"),
    "lattice.scheduling.nodes": ("NodeTable",),
    "lattice.scheduling.preempt": ("Preemptor",),
    "lattice.scheduling.profile": ("PRESETS", "ProfileSpec", "compile_preset", "parse_profile"),
    "lattice.scheduling.queue": ("Queue",),
    "lattice.scheduling.reserve": ("Reservation", "Reservations"),
    "lattice.scheduling.schedule": ("CompositeScheduler", "Cycle", "compose"),
    "lattice.scheduling.select": ("Selection", "Selector", "TieBreaker"),
}
_NAMES = {name: home for home, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__} has no {name}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_NAMES)
