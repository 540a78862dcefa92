"""Tables of `plan`, `whatif` and `optimise`, rendered from the JSON document of the query alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lattice.cli.output.render import cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks
from lattice.kinds.meta.quantity import MILLIONTHS, format_cents, format_dollars, format_hourly, pluralize

# Limits without `-o wide`: fields per object, and characters of a value.
MAX_FIELDS = 5
MAX_VALUE_CHARS = 40
# Characters shown before the first character that differs.
CONTEXT_CHARS = 12
JsonObject = Mapping[str, Any]
# Unplaced services whose blockers are listed without `-o wide`.
MAX_DETAILED_SERVICES = 3


def declaration_summary(declarations: Sequence[JsonObject], *, has_no_other_changes: bool) -> Iterator[str]:
    """Summary of declared changes: restarted services always, other declarations only if the plan has no
    other changes."""
    restarted = sum(declaration["isRestarted"] for declaration in declarations)
    if restarted:
        yield f"{pluralize(restarted, 'service')} restarted replica by replica"
    if not has_no_other_changes:
        return
    if len(declarations) > restarted:
        yield f"{pluralize(len(declarations) - restarted, 'other declaration' if restarted else 'declaration')} changed"
    yield "no placement changes" if declarations else "nothing changes"


def declared_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Table of the fields that the manifests change; a service that only moves is left to the table of
    services."""
    listed = {service["name"] for service in document["services"]}
    rows: list[list[str]] = []
    for declaration in document["declared"]:
        name = f"{declaration.get('namespace')}/{declaration['name']}"
        if declaration["isRestarted"] or name not in listed:
            rows += _declared_rows(declaration, renderer)
    return renderer.table(["", "DECLARED", "CHANGE"], rows)


def _declared_rows(declaration: JsonObject, renderer: TableRenderer) -> list[list[str]]:
    fields = declaration["fields"] if renderer.wide else declaration["fields"][:MAX_FIELDS]
    changes = []
    for part in fields:
        before, after = _single_line(part["before"]), _single_line(part["after"])
        longest, shortest = max(len(before), len(after)), min(len(before), len(after))
        same = next((index for index in range(shortest) if before[index] != after[index]), shortest)
        # Both excerpts begin at the same character, shortly before the first difference.
        start = max(0, min(same - CONTEXT_CHARS, longest - MAX_VALUE_CHARS))
        changes.append(f"{part['path']} {_excerpt(before, start)} → {_excerpt(after, start)}")
    hidden = len(declaration["fields"]) - len(changes)
    changes += [f"and {pluralize(hidden, 'more field')}; -o wide lists all"] if hidden else []
    first, *following = changes or ["deleted" if declaration["mark"] == "-" else "new"]
    name_parts = (declaration["kind"].lower(), declaration.get("namespace"), declaration["name"])
    name = "/".join(part for part in name_parts if part)
    return [[declaration["mark"], name, first], *(["", "", text] for text in following)]


def _single_line(value: Any) -> str:
    r"""A value on one line, with line breaks written as `\n`."""
    return cell(value.replace("\n", "\\n") if isinstance(value, str) else value)


def _excerpt(text: str, start: int) -> str:
    end = start + MAX_VALUE_CHARS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def plan_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """All tables of a plan, without the hint how to apply the plan: only the command knows the flags that
    were typed."""
    rows = [
        [
            cluster["mark"],
            cluster["name"],
            cluster["pool"],
            machine_changes(cluster),
            change_cells(cluster["cost"]["change"], cluster)[0],
        ]
        for cluster in document["clusters"]
    ]
    return join_blocks(
        _summary(document, renderer),
        declared_lines(document, renderer),
        _services(document, renderer),
        renderer.table(["", "CLUSTER", "POOL", "NODES", "$/H"], rows, right_aligned=(4,)),
        _pools(document, renderer),
        _budgets(document, renderer),
        _would_move(document, renderer),
        unplaced_table(document["unplaced"], renderer),
        unknown_prices(document["prices"], renderer),
        renderer.bullets(document["risks"]),
        renderer.bullets([f"{finding['subject']}: {finding['message']}" for finding in document["findings"]]),
        data_sources(document, renderer),
    )


def _summary(document: JsonObject, renderer: TableRenderer) -> list[str]:
    parts = [
        *_change_counts(document["services"], "service"),
        *_change_counts(document["clusters"], "cluster"),
    ]
    nodes = 0
    for cluster in document["clusters"]:
        nodes += sum(cluster["after"].values()) - sum(cluster["before"].values())
    parts += [f"{pluralize(abs(nodes), 'node')} {'more' if nodes > 0 else 'fewer'}"] if nodes else []
    moves = len(document["wouldMove"])
    parts += [f"{pluralize(moves, 'service')} would move"] if moves else []
    unplaced = document["unplaced"]
    as_before = "" if any(service["isNew"] for service in unplaced) else " (unchanged)"
    # Partly placed services are counted apart from services without any placed replica.
    partly_count = sum(_placed_replicas(service) > 0 for service in unplaced)
    for word, count in (("partly", partly_count), ("not", len(unplaced) - partly_count)):
        if count:
            parts.append(f"{pluralize(count, 'service')} {word} placed{as_before}")
    total = document["total"]
    before, after = (format_hourly(total[moment]["hourlyMicros"]) for moment in ("before", "after"))
    change = format_cents(total["change"]["projected30DayMicros"], signed=True)
    is_changed = total["change"]["hourlyMicros"] != 0
    cost = f"{before}/h → {after}/h ({change}/30d)" if is_changed else f"{after}/h, unchanged"
    if unpriced := sum(line["machines"] for line in document["prices"].get("unpriced", ())):
        cost += f", without {pluralize(unpriced, 'node')} of unknown price"
    summary = ", ".join([*parts, *declaration_summary(document["declared"], has_no_other_changes=not parts)])
    lines = renderer.wrap(f"{summary}; {cost}", renderer.max_width)
    lines += renderer.bullets(list(_surge_notes(document)))
    pending = document["pending"]
    if pending is None:
        return lines
    # The baseline of the plan differs from the machines that run now.
    real, late = format_hourly(pending["cost"]["before"]["hourlyMicros"]), len(pending["services"])
    waits = f" ({pluralize(late, 'service')} still {'waits' if late == 1 else 'wait'})" if late else ""
    note = f"The baseline assumes all pending services are placed{waits}. You pay {real}/h now."
    return [*lines, *renderer.bullets([note])]


def _surge_notes(document: JsonObject) -> Iterator[str]:
    """The machines that exist only while updates replace replicas, with the cost at the peak and afterwards."""
    surge = document.get("surge")
    if surge is None:
        return
    rates = [document["total"][moment]["hourlyMicros"] for moment in ("before", "after")]
    peak, end = format_dollars(surge["peak"]["hourlyMicros"]), format_dollars(rates[1])
    if not surge["machines"]:
        if surge["peak"]["hourlyMicros"] > max(rates):
            yield f"Until the update ends, the old machines stay: {peak}/h at the peak, {end}/h afterwards."
        return
    machines = ", ".join(
        f"{pluralize(row['machines'], 'node')} of class {row['class']} in {row['cluster']}"
        for row in surge["machines"]
    )
    yield f"The update needs {machines} more until it ends: {peak}/h at the peak, {end}/h afterwards."


def _placed_replicas(service: JsonObject) -> int:
    """Number of placed replicas of a service with missing replicas."""
    return int(service["replicas"] - service["missing"])


def _change_counts(rows: Sequence[JsonObject], noun: str) -> Iterator[str]:
    for mark, verb in (
        ("+", "placed" if noun == "service" else "created"),
        ("~", "changed"),
        ("-", "removed"),
    ):
        if changed := [row for row in rows if row["mark"] == mark and row.get("isPlaced", True)]:
            yield f"{pluralize(len(changed), noun)} {verb}"


def _services(document: JsonObject, renderer: TableRenderer) -> list[str]:
    rows = []
    for service in document["services"]:
        if not service["before"] and not service["after"]:
            continue
        change = service["cost"]["change"]
        before = format_placements(service["before"], renderer.wide)
        after = format_placements(service["after"], renderer.wide)
        if not service["before"]:
            text = after
        elif before == after:
            text = f"{after}, unchanged"
        else:
            text = f"{before} → {after}"
        if not service["isPlaced"] and service["after"]:
            placed = sum(placement["replicas"] for placement in service["after"])
            text += f" ({placed:,} of {pluralize(service['replicas'], 'replica')})"
        rows.append([service["mark"], service["name"], text, *change_cells(change, service)])
    empty = document["overhead"]["change"]
    if empty["hourlyMicros"]:
        # The row of empty nodes stays visible when the table is cut.
        rows = rows if renderer.wide else rows[:MAX_ROWS]
        rows.append(["", "(empty nodes)", "", *change_cells(empty, {})])
    return renderer.table(["", "SERVICE", "WHERE", "$/H", "30 DAYS"], rows, right_aligned=(3, 4))


def change_cells(change: JsonObject, row: JsonObject) -> list[str]:
    """The change per hour and in 30 days; `unknown`, or a lower bound, if the row has machines of unknown price."""
    cells = [format_hourly(change["hourlyMicros"], signed=True), _monthly_change(change)]
    if row.get("isPriced", True):
        return cells
    return [f"≥ {text}" for text in cells] if change["hourlyMicros"] else ["unknown", "unknown"]


def _monthly_change(change: JsonObject) -> str:
    return format_cents(change["projected30DayMicros"], signed=True)


def format_placements(placements: Sequence[JsonObject], wide: bool = False) -> str:
    """Replicas per pool, `us-east 2, eu-west 1`; with clusters and node classes if wide."""
    if wide:
        return (
            ", ".join(
                f"{placement['replicas']:,} in {placement['cluster']} ({placement['class']})"
                for placement in placements
            )
            or "nowhere"
        )
    counts: dict[str, int] = {}
    for placement in placements:
        counts[placement["pool"]] = counts.get(placement["pool"], 0) + placement["replicas"]
    return ", ".join(f"{pool} {count:,}" for pool, count in counts.items()) or "nowhere"


def machine_changes(cluster: JsonObject) -> str:
    """Machines per node class, `3 × medium`, or their change, `2 → 3 × medium`."""
    texts = []
    for name in sorted({*cluster["before"], *cluster["after"]}):
        before, after = cluster["before"].get(name, 0), cluster["after"].get(name, 0)
        if cluster["mark"] == "+" or before == after:
            texts.append(f"{after:,} × {name}")
        elif cluster["mark"] == "-":
            texts.append(f"{before:,} × {name}")
        else:
            texts.append(f"{before:,} → {after:,} × {name}")
    return ", ".join(texts)


def _pools(document: JsonObject, renderer: TableRenderer) -> list[str]:
    rows = [_cost_change_row(pool["name"], pool) for pool in document["pools"]]
    if len(rows) > 1:
        # The total stays visible when the table is cut.
        rows = [*(rows if renderer.wide else rows[:MAX_ROWS]), _cost_change_row("total", document["total"])]
    return renderer.table(
        ["POOL", "BEFORE $/H", "AFTER $/H", "CHANGE $/H", "30 DAYS"], rows, right_aligned=(1, 2, 3, 4)
    )


def _cost_change_row(name: str, cost: JsonObject) -> list[str]:
    hourly = [format_hourly(cost[when]["hourlyMicros"]) for when in ("before", "after")]
    return [
        name,
        *hourly,
        format_hourly(cost["change"]["hourlyMicros"], signed=True),
        _monthly_change(cost["change"]),
    ]


def _budgets(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Table of the budgets whose use or limit changes; a mark shows budgets over their alert level or without
    headroom for one machine."""
    shown = [
        budget
        for budget in document["budgets"]
        if renderer.wide or budget["before"] != budget["after"] or budget["limitBefore"] != budget["limit"]
    ]
    rows = []
    for budget in shown:
        before, after = (format_cents(budget[name]["micros"]) for name in ("limitBefore", "limit"))
        is_alerting = budget["isUsedUp"] or budget["percentAfter"] >= budget["alertPercent"]
        rows.append(
            [
                "!" if is_alerting else "",
                budget["subject"],
                after if before == after else f"{before} → {after}",
                f"{budget['percentBefore']} % → {budget['percentAfter']} %",
                f"{budget['alertPercent']} %",
                "hard" if budget["isHard"] else "soft",
                format_hourly(budget["left"]["hourlyMicros"]) if budget["left"] else "",
            ]
        )
    table = renderer.table(
        [
            "",
            "BUDGET",
            "PER MONTH",
            "USED",
            "ALERT AT",
            "LIMIT",
            "LEFT $/H",
        ],
        rows,
        right_aligned=(2, 6),
    )
    return [
        *table,
        *renderer.bullets([_exhausted_budget_note(budget) for budget in shown if budget["isUsedUp"]]),
    ]


def _exhausted_budget_note(budget: JsonObject) -> str:
    """Note on a budget without headroom for one more machine."""
    need, have = (budget[name]["hourlyMicros"] for name in ("cheapestMachine", "left"))
    return (
        f"budget of {budget['subject']} has no headroom for one more machine: need {format_dollars(need)}/h, "
        f"have {format_dollars(have)}/h, missing {format_dollars(need - have)}/h"
    )


def _would_move(document: JsonObject, renderer: TableRenderer) -> list[str]:
    rows = [
        [
            service["name"],
            "nowhere" if service["to"] is None else format_placements(service["to"], renderer.wide),
            "; ".join(service["reasons"]),
        ]
        for service in document["wouldMove"]
    ]
    lines = renderer.table(["WOULD MOVE", "TO", "WHY"], rows)
    return [*lines, "Running replicas are not moved automatically."] if lines else []


def unplaced_table(unplaced: Sequence[JsonObject], renderer: TableRenderer) -> list[str]:
    rows = [
        [
            "!" if service["isNew"] else "",
            service["name"],
            f"{_placed_replicas(service):,} of {service['replicas']:,}",
            service["verdict"],
            service["reason"],
        ]
        for service in unplaced
    ]
    lines = renderer.table(["", "NOT ALL PLACED", "HAS", "VERDICT", "WHY"], rows)
    for service in unplaced if renderer.wide else unplaced[:MAX_DETAILED_SERVICES]:
        lines += ["", service["name"], *blocker_lines(service, service["name"], renderer)]
    return lines


def blocker_lines(document: JsonObject, service: str, renderer: TableRenderer) -> list[str]:
    """Blockers of a service: conflicting requirements (the service fits without the requirements of any one
    row), and the properties of an offer that would fit."""
    own = f"service/{service.rpartition('/')[2]}"
    rows = []
    for number, parts in enumerate(document["conflicts"]):
        texts = [
            f"{part['text']} ({part['source']})" if part["source"] not in ("", own) else str(part["text"])
            for part in parts
        ]
        rows.append(["", "fits without" if number == 0 else "or without", " and ".join(texts)])
    rows += [["", "conflict", conflict["text"]] for conflict in document["contradictions"]]
    rows += [["", "waits for", "; ".join(document["waits"])]] if document["waits"] else []
    rows += [["", "fits in", _required(document["required"])]] if document["required"] else []
    return renderer.aligned_rows(rows)


def _required(required: JsonObject) -> str:
    """Requirements of an offer that would fit: `2 new pools with region us-*; compliance gdpr; 3 nodes of
    cpu 2, memory 4Gi`."""
    count, properties = required["places"], dict(required["requiredProperties"])
    machine, number = properties.pop("machine", {}), properties.pop("machines", 1)
    latencies = []
    for name, latency in properties.pop("latency", {}).items():
        regions = f" in {', '.join(latency['to'])}" if latency["to"] else ""
        latencies.append(f"at most {latency['maxMs']} ms to {name}{regions}")
    words = []
    for name, value in properties.items():
        # A field's name as words: `dataResidency` becomes `data residency`.
        spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
        words.append(f"{spaced} {_value(value)}")
    sized = f" of {_value(machine)}" if machine else ""
    place = "a new pool" if count == 1 else f"{count} new pools"
    return f"{place} with {'; '.join([*words, *latencies, pluralize(number, 'node') + sized])}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def data_sources(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Sources of the prices, and the number of latencies that are estimates."""
    prices = document["prices"]
    lines = []
    if renderer.wide and prices["classes"]:
        rows = [
            [
                price["pool"],
                price["class"],
                f"{price['machines']}",
                format_hourly(price["hourlyMicros"]) if price.get("isPriced", True) else "unknown",
                _dated(price),
            ]
            for price in prices["classes"]
        ]
        lines += renderer.table(["POOL", "CLASS", "NODES", "$/H", "PRICE FROM"], rows, right_aligned=(2, 3))
    elif prices["sources"]:
        lines += [f"prices: {'; '.join(_dated(source) for source in prices['sources'])}"]
    if prices["unknown"] and renderer.wide:
        lines += [f"no price known: {', '.join(prices['unknown'])}"]
    elif prices["unknown"]:
        lines += [f"no price known for {pluralize(len(prices['unknown']), 'class')}; -o wide lists them"]
    return [*lines, *_latencies(document.get("latencies", ()), renderer)]


def _dated(price: JsonObject) -> str:
    return f"{price['source']} as of {price['asOf']}" if price["asOf"] else str(price["source"])


def _latencies(latencies: Sequence[JsonObject], renderer: TableRenderer) -> list[str]:
    if renderer.wide and latencies:
        rows = [
            [
                latency["service"],
                latency["dependency"],
                f"{latency['from']} → {latency['to']}",
                "unknown"
                if latency["ms"] is None
                else f"{'~' if latency['isEstimate'] else ''}{latency['ms']}",
                f"{latency['maxMs']}",
                latency["source"],
            ]
            for latency in latencies
        ]
        return [
            "",
            *renderer.table(
                ["SERVICE", "NEEDS", "FROM → TO", "MS", "AT MOST", "SOURCE"], rows, right_aligned=(3, 4)
            ),
        ]
    estimates = [latency for latency in latencies if latency["isEstimate"]]
    return (
        [
            f"latencies: {len(estimates):,} of {len(latencies):,} are estimates; --latency provides measured values"
        ]
        if estimates
        else []
    )


def whatif_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Lines of a what-if result: the event, then the plan that follows from the event."""
    first, *remaining_lines = plan_lines(document, renderer)
    return [
        *renderer.wrap(f"{', '.join(describe_event(document['event']))}: {first}", renderer.max_width),
        *remaining_lines,
    ]


def describe_event(event: JsonObject) -> list[str]:
    """Phrases that describe the event: lost pools, dropped compliance, and a price change in percent."""
    words = [f"without {name}" for name in event["lose"]]
    words += [f"without compliance {drop['compliance']} in {drop['pool']}" for drop in event["drop"]]
    # Millionths: 1,200,000 is +20 %.
    percent = (event["priceMillionths"] - MILLIONTHS) / 10_000
    return [*words, f"with prices {percent:+g} %"] if percent else words


def pool_loss_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Table of pool losses, the most harmful first; one line counts the losses without effect."""
    harmful = [loss for loss in document["losses"] if renderer.wide or loss["moved"] or loss["leftWithout"]]
    worst_first = sorted(
        harmful, key=lambda loss: (-len(loss["leftWithout"]), -len(loss["moved"]), loss["pool"])
    )
    rows = []
    for loss in worst_first:
        unplaced = loss["leftWithout"] if renderer.wide else loss["leftWithout"][:3]
        hidden = len(loss["leftWithout"]) - len(unplaced)
        names = ", ".join(unplaced) + (f" and {hidden} more" if hidden else "")
        after, change = loss["cost"]["after"], loss["cost"]["change"]
        money = [format_hourly(after["hourlyMicros"]), format_hourly(change["hourlyMicros"], signed=True)]
        mark = "!" if unplaced else ""
        rows.append([mark, loss["pool"], f"{len(loss['moved'])}", *money, names or "none"])
    table = renderer.table(
        ["", "LOST", "MOVE", "COST AFTER $/H", "CHANGE $/H", "NOT ALL PLACED"], rows, right_aligned=(2, 3, 4)
    )
    harmless = len(document["losses"]) - len(harmful)
    return join_blocks(
        table,
        [f"{pluralize(harmless, 'other pool')} could be lost without moving a replica"] if harmless else [],
    )


def optimise_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """The saving of the moves with the lower bound of the cost, then the plan of the moves."""
    gap = f"{document['gapMillionths'] / 10_000:.2f} %"
    lowest = format_hourly(document["bound"]["hourlyMicros"])
    bound = f"no placement costs less than {lowest}/h: the gap is at most {gap}"
    note = document["solver"]["note"]
    notes = [bound, *([note] if note else [])]
    if not document["moves"]:
        cost = format_hourly(document["total"]["after"]["hourlyMicros"])
        return [f"no move would pay for itself: {cost}/h", *notes]
    saved = format_cents(document["saving"]["projected30DayMicros"])
    saving = f"{pluralize(document['moves'], 'move')} would save {saved} in 30 days"
    return join_blocks([saving, *notes], plan_lines(document, renderer))


def unknown_prices(prices: JsonObject, renderer: TableRenderer) -> list[str]:
    """Notes about the machines of unknown price: what they count with, and how to state the price."""
    notes = []
    for line in prices.get("unpriced", ()):
        last = line["lastKnown"]
        counted = (
            f"counted with the last known {format_hourly(last['hourlyMicros'])}/h" if last else "not counted"
        )
        notes.append(
            f"the price of {pluralize(line['machines'], 'node')} of class {line['class']} in {line['pool']} is "
            f"unknown, {counted}: declare costPerHour of the class"
        )
    return renderer.bullets(notes)
