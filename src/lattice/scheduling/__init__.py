"""Choose nodes for workloads. Python imports the module of a name when the name is first used.

Imported by: nothing.
May import: errors engine scheduling.cycle scheduling.preemption scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lattice.engine.decide import Decision as Decision
    from lattice.engine.decide import decide as decide
    from lattice.engine.explain import as_json as as_json
    from lattice.engine.explain import summarize as summarize
    from lattice.engine.plugin import Filter as Filter
    from lattice.engine.plugin import Profile as Profile
    from lattice.engine.plugin import Reason as Reason
    from lattice.engine.plugin import Score as Score
    from lattice.scheduling.cycle.binder import Binder as Binder
    from lattice.scheduling.cycle.binder import BindEvent as BindEvent
    from lattice.scheduling.cycle.binder import BindingMode as BindingMode
    from lattice.scheduling.cycle.binder import BindingStore as BindingStore
    from lattice.scheduling.cycle.binder import BindRequest as BindRequest
    from lattice.scheduling.cycle.cycle import CompositeScheduler as CompositeScheduler
    from lattice.scheduling.cycle.cycle import CycleResult as CycleResult
    from lattice.scheduling.cycle.cycle import compose as compose
    from lattice.scheduling.cycle.profile import PRESETS as PRESETS
    from lattice.scheduling.cycle.profile import ProfileSpec as ProfileSpec
    from lattice.scheduling.cycle.profile import compile_preset as compile_preset
    from lattice.scheduling.cycle.profile import parse_profile as parse_profile
    from lattice.scheduling.cycle.reservations import Reservation as Reservation
    from lattice.scheduling.cycle.reservations import Reservations as Reservations
    from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue as SchedulingQueue
    from lattice.scheduling.cycle.tie_break import Selection as Selection
    from lattice.scheduling.cycle.tie_break import Selector as Selector
    from lattice.scheduling.cycle.tie_break import TieBreaker as TieBreaker
    from lattice.scheduling.preemption.preemptor import Preemptor as Preemptor
    from lattice.scheduling.table.node_table import NodeTable as NodeTable
    from lattice.scheduling.table.workload_ask import WorkloadAsk as WorkloadAsk

# A module is imported when its first name is used, so that importing one scheduling module does not import
# every other.
_EXPORTS_BY_MODULE = {
    "lattice.engine.decide": ("Decision", "decide"),
    "lattice.engine.explain": ("as_json", "summarize"),
    "lattice.engine.plugin": ("Filter", "Profile", "Reason", "Score"),
    "lattice.scheduling.table.workload_ask": ("WorkloadAsk",),
    "lattice.scheduling.cycle.binder": ("BindEvent", "BindRequest", "Binder", "BindingMode", "BindingStore"),
    "lattice.scheduling.table.node_table": ("NodeTable",),
    "lattice.scheduling.preemption.preemptor": ("Preemptor",),
    "lattice.scheduling.cycle.profile": ("PRESETS", "ProfileSpec", "compile_preset", "parse_profile"),
    "lattice.scheduling.cycle.scheduling_queue": ("SchedulingQueue",),
    "lattice.scheduling.cycle.reservations": ("Reservation", "Reservations"),
    "lattice.scheduling.cycle.cycle": ("CompositeScheduler", "CycleResult", "compose"),
    "lattice.scheduling.cycle.tie_break": ("Selection", "Selector", "TieBreaker"),
}
_MODULE_BY_EXPORT: dict[str, str] = {}
for _module, _names in _EXPORTS_BY_MODULE.items():
    _MODULE_BY_EXPORT.update(dict.fromkeys(_names, _module))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_EXPORT:
        raise AttributeError(f"module {__name__} has no {name}")
    return getattr(import_module(_MODULE_BY_EXPORT[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULE_BY_EXPORT)
