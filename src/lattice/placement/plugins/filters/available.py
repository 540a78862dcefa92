"""Available: the offer must be open, and have a machine type that one replica fits on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.kinds.constraints import Toleration
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.machine_catalog import (
    fits_empty_machine,
    matches_gpu_model,
    missing_runtimes,
    offers_gpu_model,
    untolerated_taints,
)
from lattice.placement.model.offer import MachineType, Offer
from lattice.placement.plugins.rejection_reasons import (
    fleet_of,
    format_amount,
    join_sorted,
    offer_at,
    offer_mask,
    select_rows,
)

# Shown for an offer that a what-if removes.
LOST_OFFER_HINT = "lost: create it again"


@dataclass(frozen=True, slots=True)
class OfferClosed:
    """The offer accepts no new replicas; the hint says which change opens the offer, and is equal for many
    offers."""

    reopen_hint: str
    plugin: str = "Available"

    def summary(self) -> str:
        return f"closed ({self.reopen_hint})"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(
            "open", "an open pool", offer_at(table, row).closed_reason or "lost", self.reopen_hint
        )


@dataclass(frozen=True, eq=False)
class ReplicaTooLarge:
    """No machine type of the offer fits one replica, even on an empty machine."""

    demand: Demand
    plugin: str = "Available"

    # Demands of equal machine shape share one reason.
    def __eq__(self, value: object) -> bool:
        return isinstance(value, ReplicaTooLarge) and value.demand.machine_shape == self.demand.machine_shape

    def __hash__(self) -> int:
        return hash(self.demand.machine_shape)

    def summary(self) -> str:
        return "without a machine type that fits one replica"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The first resource that every machine type lacks, else every constraint that the nearest machine
        type violates."""
        short = list(_size_shortfalls(self.demand, offer_at(table, row)))
        if short:
            return short[0]
        # One shortfall for all violations: the words of every field are joined.
        fields = zip(*self.shortfalls(table, row), strict=True)
        return Shortfall(*(" and ".join(dict.fromkeys(words)) for words in fields))

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        """Every resource that all machine types lack, and the constraints that the nearest machine type
        violates."""
        offer, needs = offer_at(table, row), self.demand.effective_needs
        types = offer.types
        if not types:
            return [Shortfall("machines", "a node class", "none", "a node class")]
        short = list(_size_shortfalls(self.demand, offer))
        # If a machine type is large enough, only such types can be the nearest.
        large = [
            machine_type
            for machine_type in types
            if all(machine_type.size.get(resource, 0) >= amount for resource, amount in needs.items())
        ]
        # The nearest machine type violates the fewest constraints.
        violations = min(
            (
                list(_constraint_shortfalls(self.demand, machine_type, offer))
                for machine_type in large or types
            ),
            key=len,
        )
        if short or violations:
            return [*short, *violations]
        combined = " and ".join(f"{format_amount(name, amount)} {name}" for name, amount in needs.items())
        return [
            Shortfall(
                "machines",
                f"one node class with {combined}",
                f"none of {', '.join(machine_type.name for machine_type in types)}",
                "such a node class",
            )
        ]


@dataclass(frozen=True, slots=True)
class RuntimeMissing:
    """Machines of the offer that are large enough lack a runtime that the replica needs."""

    runtimes: frozenset[str]
    plugin: str = "Available"

    def summary(self) -> str:
        return f"without {' and '.join(sorted(self.runtimes))} runtime"

    def detail(self, table: Table, row: int) -> Shortfall:
        have: set[str] = set()
        for kind in offer_at(table, row).types:
            have |= kind.runtimes or frozenset()
        need = join_sorted(self.runtimes)
        return Shortfall("runtime of machines", need, join_sorted(have), join_sorted(self.runtimes - have))


@dataclass(frozen=True, eq=False)
class MachinesDiffer:
    """The classes of the offer promise a machine for the replica, and the real machines are not such."""

    demand: Demand
    plugin: str = "Available"

    # Demands of equal machine shape share one reason.
    def __eq__(self, value: object) -> bool:
        return isinstance(value, MachinesDiffer) and value.demand.machine_shape == self.demand.machine_shape

    def __hash__(self) -> int:
        return hash(("MachinesDiffer", self.demand.machine_shape))

    def summary(self) -> str:
        return "whose real machines do not accept the replica"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.shortfalls(table, row)[0]

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        """What the replica needs and the real machines have, by class."""
        demand, offer = self.demand, offer_at(table, row)
        short: list[Shortfall] = []
        for kind in offer.types:
            if kind.promised is None or not fits_empty_machine(demand, kind.promised):
                continue
            subject = f"on the real machines of class {kind.name}"
            for resource, amount in demand.effective_needs.items():
                have = kind.size.get(resource, 0)
                if have < amount:
                    short.append(
                        Shortfall(
                            f"{resource} {subject}",
                            format_amount(resource, amount),
                            format_amount(resource, have),
                            format_amount(resource, amount - have),
                        )
                    )
            if not matches_gpu_model(demand, kind):
                model = kind.gpu_model or "another model"
                short.append(Shortfall(f"gpu model {subject}", demand.gpu_model, model, demand.gpu_model))
            if missing := missing_runtimes(demand, kind):
                have_runtimes = join_sorted(kind.runtimes or ())
                short.append(
                    Shortfall(
                        f"runtime {subject}",
                        join_sorted(demand.runtimes),
                        have_runtimes,
                        join_sorted(missing),
                    )
                )
        for refusal in demand.refusals:
            if refusal.offer == offer.name:
                need = refusal.need or "a machine that accepts the replica"
                have_text = refusal.have or "an empty machine that did not accept it"
                short.append(
                    Shortfall(f"on the real machines of class {refusal.node_class}", need, have_text, need)
                )
        return short


def _size_shortfalls(demand: Demand, offer: Offer) -> Iterator[Shortfall]:
    for resource, amount in demand.effective_needs.items():
        largest = max((machine_type.size.get(resource, 0) for machine_type in offer.types), default=amount)
        if largest < amount:
            yield Shortfall(
                f"{resource} on one machine",
                format_amount(resource, amount),
                format_amount(resource, largest),
                format_amount(resource, amount - largest),
            )


def _constraint_shortfalls(demand: Demand, kind: MachineType, offer: Offer) -> Iterator[Shortfall]:
    """Labels, GPU model and taints of a machine type that keep a replica off its machines."""
    for key, value in demand.node_selector:
        if kind.labels.get(key) != value:
            have = f"{key}={kind.labels[key]}" if key in kind.labels else f"no label {key}"
            yield Shortfall(f"label of class {kind.name}", f"{key}={value}", have, f"{key}={value}")
    if not offers_gpu_model(demand, frozenset(offer.limits.gpus)):
        yield Shortfall("gpu model", demand.gpu_model, join_sorted(offer.limits.gpus), demand.gpu_model)
    elif not matches_gpu_model(demand, kind):
        models = {machine_type.gpu_model for machine_type in offer.types if machine_type.gpu_model}
        yield Shortfall(
            "gpu model",
            demand.gpu_model,
            join_sorted(models) if models else "no model specified",
            demand.gpu_model,
        )
    tolerated = join_sorted(map(_toleration, demand.tolerations)) if demand.tolerations else "no toleration"
    for taint in untolerated_taints(demand, kind):
        # In the format of a manifest: dedicated=db:NoSchedule.
        text = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
        required = f"toleration of {text}"
        yield Shortfall(f"taint of class {kind.name}", required, tolerated, required)


def _toleration(toleration: Toleration) -> str:
    text = toleration.key or "any taint"
    if toleration.operator == "Equal":
        text += f"={toleration.value}"
    return f"{text}:{toleration.effect}" if toleration.effect else text


@dataclass(frozen=True, slots=True)
class Available:
    """Filter plugin: rejects offers that are closed or lost, and offers without a machine type for the
    replica."""

    name: ClassVar[str] = "Available"
    # An offer may be lost during a what-if, so the answer follows the row.
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quotes = fleet_of(rows).quotes
        fit, hosts = quotes.machine_fit(ask.demand), quotes.hosts(ask.demand)
        hints = fleet_of(rows).table.reopen_hints
        closed: dict[Reason, Flags] = {
            OfferClosed(hint): offer_mask(rows, ("closed", hint), _has_reopen_hint(hint)) for hint in hints
        }
        rejections: dict[Reason, Flags] = {
            **closed,
            OfferClosed(LOST_OFFER_HINT): rows.column("lost").copy(),
        }
        too_large = ~hosts
        if fit.lacks_only_promise is not None:
            differing = fit.lacks_only_promise & too_large
            rejections[MachinesDiffer(ask.demand)] = select_rows(rows, differing).copy()
            too_large &= ~differing
        if fit.lacks_only_runtime is not None:
            without_runtime = fit.lacks_only_runtime & too_large
            rejections[RuntimeMissing(ask.demand.runtimes)] = select_rows(rows, without_runtime).copy()
            too_large &= ~without_runtime
        rejections[ReplicaTooLarge(ask.demand)] = select_rows(rows, too_large).copy()
        return rejections


def _has_reopen_hint(hint: str) -> Callable[[Offer], bool]:
    return lambda offer: bool(offer.closed_reason) and offer.reopen_hint == hint
