"""A plan, or what would happen if, as tables; from its document alone, whoever made that."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lattice.cli.output.render import cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks, pluralize
from lattice.placement.inputs.ledger_math import format_dollars

MAX_FIELDS = 5  # fields of an object
MAX_VALUE_CHARS = 40  # characters of a value that are shown
CONTEXT_CHARS = 12  # of them, before the first that differs


JsonObject = Mapping[str, Any]
MAX_DETAILED_SERVICES = 3  # unplaced services told at length
MAX_NAMES_INLINE = 5  # of many, in one line


def declaration_summary(found: Sequence[JsonObject], *, has_no_other_changes: bool) -> Iterator[str]:
    """What changes besides places: services that are restarted, always; other declarations, if there is nothing else to tell."""
    restarted = sum(each["isRestarted"] for each in found)
    if restarted:
        yield f"{pluralize(restarted, 'service')} restarted replica by replica"
    if not has_no_other_changes:
        return
    if len(found) > restarted:
        yield f"{pluralize(len(found) - restarted, 'other declaration' if restarted else 'declaration')} changed"
    yield "nothing is placed otherwise" if found else "nothing changes"


def declared_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    """What the manifests change, one line a field; of services that only go elsewhere, where they go says more."""
    listed = {each["name"] for each in document["services"]}
    shown = [
        each
        for each in document["declared"]
        if each["isRestarted"] or f"{each.get('namespace')}/{each['name']}" not in listed
    ]
    rows = [row for each in shown for row in _declared_rows(each, look)]
    return look.table(["", "DECLARED", "CHANGE"], rows)


def _declared_rows(each: JsonObject, look: TableRenderer) -> list[list[str]]:
    told = [_field(part) for part in (each["fields"] if look.wide else each["fields"][:MAX_FIELDS])]
    rest = len(each["fields"]) - len(told)
    told += [f"and {pluralize(rest, 'more field')}; -o wide lists all"] if rest else []
    first, *more = told or ["deleted" if each["mark"] == "-" else "new"]
    return [[each["mark"], _object(each), first], *(["", "", words] for words in more)]


def _object(each: JsonObject) -> str:
    return "/".join(part for part in (each["kind"].lower(), each.get("namespace"), each["name"]) if part)


def _field(each: JsonObject) -> str:
    before, after = _differing_excerpts(*(_single_line(each[name]) for name in ("before", "after")))
    return f"{each['path']} {before} → {after}"


def _single_line(value: Any) -> str:
    """In one line, with the ends of its lines written out."""
    return cell(value.replace("\n", "\\n") if isinstance(value, str) else value)


def _differing_excerpts(before: str, after: str) -> tuple[str, str]:
    """Of long values, what is around the first character that differs."""
    longest, same = max(len(before), len(after)), _common_prefix_length(before, after)
    start = max(0, min(same - CONTEXT_CHARS, longest - MAX_VALUE_CHARS))
    return _excerpt(before, start), _excerpt(after, start)


def _common_prefix_length(before: str, after: str) -> int:
    """Characters until they differ."""
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[at] != after[at]), shorter)


def _excerpt(text: str, start: int) -> str:
    end = start + MAX_VALUE_CHARS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def plan_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    """Without how to apply it: the command knows what was typed."""
    return join_blocks(
        _summary(document, look),
        declared_lines(document, look),
        _services(document, look),
        _clusters(document, look),
        _pools(document, look),
        _budgets(document, look),
        _would_move(document, look),
        unplaced_table(document["unplaced"], look),
        look.bullets(document["risks"]),
        _findings(document, look),
        data_sources(document, look),
    )


def _summary(document: JsonObject, look: TableRenderer) -> list[str]:
    parts = [
        *_change_counts(document["services"], "service"),
        *_change_counts(document["clusters"], "cluster"),
        *_node_count_change(document["clusters"]),
    ]
    parts += (
        [f"{pluralize(len(document['wouldMove']), 'service')} would move"] if document["wouldMove"] else []
    )
    parts += _unplaced_summary(document["unplaced"])
    total = document["total"]
    before, after = (format_dollars(total[each]["hourlyMicros"]) for each in ("before", "after"))
    change = format_dollars(total["change"]["projected30DayMicros"], signed=True)
    cost = f"{before}/h → {after}/h ({change}/30d)" if before != after else f"{after}/h as before"
    said = ", ".join([*parts, *declaration_summary(document["declared"], has_no_other_changes=not parts)])
    return [*look.wrap(f"{said}; {cost}", look.max_width), *_pending(document["pending"], look)]


def _unplaced_summary(found: Sequence[JsonObject]) -> Iterator[str]:
    """Services without some of their replicas are told apart from those without any."""
    as_before = "" if any(each["isNew"] for each in found) else " as before"
    for word, services in (
        ("partly", [each for each in found if _placed_replicas(each)]),
        ("not", [each for each in found if not _placed_replicas(each)]),
    ):
        if services:
            yield f"{pluralize(len(services), 'service')} {word} placed{as_before}"


def _placed_replicas(each: JsonObject) -> int:
    """Replicas of a service that lacks some, which have a place."""
    return int(each["replicas"] - each["missing"])


def _pending(found: JsonObject | None, look: TableRenderer) -> list[str]:
    """Before is not always what is there."""
    if found is None:
        return []
    real, late = format_dollars(found["cost"]["before"]["hourlyMicros"]), len(found["services"])
    waits = (
        f"{pluralize(late, 'service')} still {'waits' if late == 1 else 'wait'} for that, and "
        if late
        else ""
    )
    return look.bullets(
        [f"before is as if all that is declared already had its place; {waits}{real}/h is paid now"]
    )


def _change_counts(rows: Sequence[JsonObject], noun: str) -> Iterator[str]:
    for mark, verb in (("+", "placed" if noun == "service" else "made"), ("~", "changed"), ("-", "removed")):
        if found := [each for each in rows if each["mark"] == mark and each.get("isPlaced", True)]:
            yield f"{pluralize(len(found), noun)} {verb}"


def _node_count_change(clusters: Sequence[JsonObject]) -> Iterator[str]:
    change = sum(sum(each["after"].values()) - sum(each["before"].values()) for each in clusters)
    if change:
        yield f"{pluralize(abs(change), 'node')} {'more' if change > 0 else 'less'}"


def _services(document: JsonObject, look: TableRenderer) -> list[str]:
    rows = [_service(each, look) for each in document["services"] if each["before"] or each["after"]]
    empty = document["overhead"]["change"]
    if empty["hourlyMicros"]:
        rows = [
            *(rows if look.wide else rows[:MAX_ROWS]),
            [
                "",
                "(empty nodes)",
                "",
                format_dollars(empty["hourlyMicros"], signed=True),
                _monthly_change(empty),
            ],
        ]
    return look.table(["", "SERVICE", "WHERE", "$/H", "30 DAYS"], rows, right_aligned=(3, 4))


def _service(each: JsonObject, look: TableRenderer) -> list[str]:
    change = each["cost"]["change"]
    before, after = format_placements(each["before"], look.wide), format_placements(each["after"], look.wide)
    text = (
        after if not each["before"] else f"{after}, as before" if before == after else f"{before} → {after}"
    )
    if not each["isPlaced"] and each["after"]:
        text += f" ({sum(place['replicas'] for place in each['after']):,} of {pluralize(each['replicas'], 'replica')})"
    return [
        each["mark"],
        each["name"],
        text,
        format_dollars(change["hourlyMicros"], signed=True),
        _monthly_change(change),
    ]


def _monthly_change(change: JsonObject) -> str:
    return format_dollars(change["projected30DayMicros"], signed=True)


def format_placements(places: Sequence[JsonObject], wide: bool = False) -> str:
    """`us-east 2, eu-west 1`; with clusters and classes if wide."""
    if wide:
        return (
            ", ".join(f"{each['replicas']:,} in {each['cluster']} ({each['class']})" for each in places)
            or "nowhere"
        )
    counts: dict[str, int] = {}
    for each in places:
        counts[each["pool"]] = counts.get(each["pool"], 0) + each["replicas"]
    return ", ".join(f"{pool} {count:,}" for pool, count in counts.items()) or "nowhere"


def _clusters(document: JsonObject, look: TableRenderer) -> list[str]:
    rows = [
        [
            each["mark"],
            each["name"],
            each["pool"],
            machine_changes(each),
            format_dollars(each["cost"]["change"]["hourlyMicros"], signed=True),
        ]
        for each in document["clusters"]
    ]
    return look.table(["", "CLUSTER", "POOL", "NODES", "$/H"], rows, right_aligned=(4,))


def machine_changes(each: JsonObject) -> str:
    """`3 × medium`, or `2 → 3 × medium`."""
    names = sorted({*each["before"], *each["after"]})
    return ", ".join(
        _machine_count_change(each["before"].get(name, 0), each["after"].get(name, 0), each["mark"], name)
        for name in names
    )


def _machine_count_change(before: int, after: int, mark: str, name: str) -> str:
    if mark == "+" or before == after:
        return f"{after:,} × {name}"
    return f"{before:,} × {name}" if mark == "-" else f"{before:,} → {after:,} × {name}"


def _pools(document: JsonObject, look: TableRenderer) -> list[str]:
    rows = [_cost_change_row(each["name"], each) for each in document["pools"]]
    if len(rows) > 1:
        rows = [*(rows if look.wide else rows[:MAX_ROWS]), _cost_change_row("total", document["total"])]
    return look.table(
        ["POOL", "BEFORE $/H", "AFTER $/H", "CHANGE $/H", "30 DAYS"], rows, right_aligned=(1, 2, 3, 4)
    )


def _cost_change_row(name: str, each: JsonObject) -> list[str]:
    hourly = [format_dollars(each[when]["hourlyMicros"]) for when in ("before", "after")]
    return [
        name,
        *hourly,
        format_dollars(each["change"]["hourlyMicros"], signed=True),
        _monthly_change(each["change"]),
    ]


def _budgets(document: JsonObject, look: TableRenderer) -> list[str]:
    """Those that are used otherwise than before; one that is used up to its alert, or refuses the next machine, is marked."""
    shown = [
        each
        for each in document["budgets"]
        if look.wide or each["before"] != each["after"] or each["limitBefore"] != each["limit"]
    ]
    table = look.table(
        [
            "",
            "BUDGET",
            "PER MONTH",
            f"USED IN {document['month'] or '30 DAYS'}",
            "ALERT AT",
            "LIMIT",
            "LEFT $/H",
        ],
        [_budget(each) for each in shown],
        right_aligned=(2, 6),
    )
    return [
        *table,
        *look.bullets(
            [_exhausted_budget_note(each, document["month"]) for each in shown if each["isUsedUp"]]
        ),
    ]


def _exhausted_budget_note(each: JsonObject, month: str | None) -> str:
    """`month`: USED is what was spent of it, and the rate until it ends; without one it is 30 days at the rate."""
    need, have = (each[name]["hourlyMicros"] for name in ("cheapestMachine", "left"))
    also = "; the limit also holds for 30 days, USED is this month" if month else ""
    return (
        f"budget of {each['subject']} refuses one more machine: needs {format_dollars(need)}/h, has {format_dollars(have)}/h, "
        f"missing {format_dollars(need - have)}/h{also}"
    )


def _budget(each: JsonObject) -> list[str]:
    before, after = (format_dollars(each[name]["micros"]) for name in ("limitBefore", "limit"))
    return [
        "!" if each["isUsedUp"] or each["percentAfter"] >= each["alertPercent"] else "",
        each["subject"],
        after if before == after else f"{before} → {after}",
        f"{each['percentBefore']} % → {each['percentAfter']} %",
        f"{each['alertPercent']} %",
        "hard" if each["isHard"] else "soft",
        format_dollars(each["left"]["hourlyMicros"]) if each["left"] else "",
    ]


def _would_move(document: JsonObject, look: TableRenderer) -> list[str]:
    rows = [
        [
            each["name"],
            "nowhere" if each["to"] is None else format_placements(each["to"], look.wide),
            "; ".join(each["reasons"]),
        ]
        for each in document["wouldMove"]
    ]
    told = look.table(["WOULD MOVE", "TO", "WHY"], rows)
    return [*told, "They stay where they are until moving them is asked for."] if told else []


def unplaced_table(found: Sequence[JsonObject], look: TableRenderer) -> list[str]:
    rows = [
        [
            "!" if each["isNew"] else "",
            each["name"],
            f"{_placed_replicas(each):,} of {each['replicas']:,}",
            each["verdict"],
            each["reason"],
        ]
        for each in found
    ]
    told = look.table(["", "NOT ALL PLACED", "HAS", "VERDICT", "WHY"], rows)
    for each in found if look.wide else found[:MAX_DETAILED_SERVICES]:
        told += ["", each["name"], *blocker_lines(each, each["name"], look)]
    return told


def blocker_lines(each: JsonObject, service: str, look: TableRenderer) -> list[str]:
    """Any of the conflicts gone would be enough; and what a new place would have to be like."""
    own = f"service/{service.rpartition('/')[2]}"
    ways = [" and ".join(_with_source(part, own) for part in parts) for parts in each["conflicts"]]
    rows = [["", "fits without" if number == 0 else "or without", way] for number, way in enumerate(ways)]
    rows += [["", "contradict", each_of["text"]] for each_of in each["contradictions"]]
    rows += [["", "waits for", "; ".join(each["waits"])]] if each["waits"] else []
    rows += [["", "fits in", _required(each["required"])]] if each["required"] else []
    return look.aligned_rows(rows)


def _with_source(part: JsonObject, own: str) -> str:
    return f"{part['text']} ({part['source']})" if part["source"] not in ("", own) else str(part["text"])


def _required(required: JsonObject) -> str:
    """`2 new places with region us-*; compliance gdpr; 3 nodes of cpu 2, memory 4Gi`."""
    count, wanted = required["places"], dict(required["requiredProperties"])
    machine, number = wanted.pop("machine", {}), wanted.pop("machines", 1)
    near = [_latency_requirement(name, each) for name, each in wanted.pop("latency", {}).items()]
    words = [f"{_split_camel_case(name)} {_value(value)}" for name, value in wanted.items()]
    sized = f" of {_value(machine)}" if machine else ""
    return f"{'a new place' if count == 1 else f'{count} new places'} with {'; '.join([*words, *near, pluralize(number, 'node') + sized])}"


def _latency_requirement(name: str, each: JsonObject) -> str:
    where_to = f" in {', '.join(each['to'])}" if each["to"] else ""
    return f"at most {each['maxMs']} ms to {name}{where_to}"


def _split_camel_case(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _findings(document: JsonObject, look: TableRenderer) -> list[str]:
    return look.bullets([f"{each['subject']}: {each['message']}" for each in document["findings"]])


def data_sources(document: JsonObject, look: TableRenderer) -> list[str]:
    """Who says what things cost, and which latencies nobody measured."""
    prices = document["prices"]
    lines = []
    if look.wide and prices["classes"]:
        rows = [
            [
                each["pool"],
                each["class"],
                f"{each['machines']}",
                format_dollars(each["hourlyMicros"]),
                _dated(each),
            ]
            for each in prices["classes"]
        ]
        lines += look.table(["POOL", "CLASS", "NODES", "$/H", "PRICE FROM"], rows, right_aligned=(2, 3))
    elif prices["sources"]:
        lines += [f"prices: {'; '.join(_dated(each) for each in prices['sources'])}"]
    if prices["unknown"] and look.wide:
        lines += [f"no price known: {', '.join(prices['unknown'])}"]
    elif prices["unknown"]:
        lines += [
            f"no price known for {pluralize(len(prices['unknown']), 'class')[:-1]}es; -o wide lists them"
        ]
    return [*lines, *_latencies(document.get("latencies", ()), look)]


def _dated(each: JsonObject) -> str:
    return f"{each['source']} as of {each['asOf']}" if each["asOf"] else str(each["source"])


def _latencies(found: Sequence[JsonObject], look: TableRenderer) -> list[str]:
    if look.wide and found:
        rows = [
            [each["service"], each["dependency"], f"{each['from']} → {each['to']}", *_latency_cells(each)]
            for each in found
        ]
        return [
            "",
            *look.table(
                ["SERVICE", "NEEDS", "WAY", "MS", "AT MOST", "ACCORDING TO"], rows, right_aligned=(3, 4)
            ),
        ]
    guessed = [each for each in found if each["isEstimate"]]
    return (
        [f"latencies: {len(guessed):,} of {len(found):,} are estimates; --latency gives measured ones"]
        if guessed
        else []
    )


def _latency_cells(each: JsonObject) -> list[str]:
    estimate = "~" if each["isEstimate"] else ""
    return [f"{estimate}{each['ms']}", f"{each['maxMs']}", each["source"]]


def whatif_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    """What happens, in words, and what follows from it."""
    first, *rest = plan_lines(document, look)
    return [*look.wrap(f"{', '.join(describe_event(document['event']))}: {first}", look.max_width), *rest]


def describe_event(event: JsonObject) -> list[str]:
    words = [f"without {each}" for each in event["lose"]]
    words += [f"with {each['pool']} not certified for {each['compliance']}" for each in event["drop"]]
    percent = (event["priceMillionths"] - 1_000_000) / 10_000
    return [*words, f"with prices {percent:+g} %"] if percent else words


def pool_loss_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    """What hurts most comes first; of harmless losses one line says how many."""
    hurting = [each for each in document["losses"] if look.wide or each["moved"] or each["leftWithout"]]
    worst_first = sorted(
        hurting, key=lambda each: (-len(each["leftWithout"]), -len(each["moved"]), each["pool"])
    )
    rows = [_loss(each, look) for each in worst_first]
    table = look.table(
        ["", "LOST", "MOVE", "COST AFTER $/H", "CHANGE $/H", "NOT ALL PLACED"], rows, right_aligned=(2, 3, 4)
    )
    harmless = len(document["losses"]) - len(hurting)
    return join_blocks(
        table,
        [f"{pluralize(harmless, 'other pool')} could be lost without moving anybody"] if harmless else [],
    )


def _loss(each: JsonObject, look: TableRenderer) -> list[str]:
    without = each["leftWithout"] if look.wide else each["leftWithout"][:3]
    more = len(each["leftWithout"]) - len(without)
    names = ", ".join(without) + (f" and {more} more" if more else "")
    after, change = each["cost"]["after"], each["cost"]["change"]
    money = [format_dollars(after["hourlyMicros"]), format_dollars(change["hourlyMicros"], signed=True)]
    return ["!" if without else "", each["pool"], f"{len(each['moved'])}", *money, names or "nobody"]


def optimise_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    gap = f"{document['gapMillionths'] / 10_000:.2f} %"
    bound = f"no arrangement costs less than {format_dollars(document['bound']['hourlyMicros'])}/h: the gap is at most {gap}"
    note = document["solver"]["note"]
    told = [bound, *([note] if note else [])]
    if not document["moves"]:
        cost = format_dollars(document["total"]["after"]["hourlyMicros"])
        return [f"no move would pay for itself: {cost}/h", *told]
    saving = f"{pluralize(document['moves'], 'move')} would save {format_dollars(document['saving']['projected30DayMicros'])} in 30 days"
    return join_blocks([saving, *told], plan_lines(document, look))


def cost_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    by, total = document["by"], document["total"]
    rows = [_cost(each, by) for each in document["rows"]]
    if len(rows) > 1:
        whole = {
            "name": "total",
            **total,
            "shareMillionths": 1_000_000 if total["hourlyMicros"] else 0,
            "overhead": document["overhead"],
        }
        rows = [*(rows if look.wide else rows[:MAX_ROWS]), _cost(whole, by)]
    empty = ["EMPTY $/H"] if by == "pool" else []
    table = look.table(
        [by.removeprefix("label:").upper(), "$/H", "30 DAYS", "SHARE", *empty],
        rows,
        right_aligned=range(1, 4 + len(empty)),
    )
    nothing = "nothing costs anything" + (
        f" in namespace {document['namespace']}" if document["namespace"] else ""
    )
    return join_blocks(table or [nothing], _uncounted_services(document), data_sources(document, look))


def _uncounted_services(document: JsonObject) -> list[str]:
    """Who is not in the sum, and who is only with a part."""
    partly = [
        f"{each['name']} {each['placed']:,} of {each['replicas']:,}" for each in document["partlyPlaced"]
    ]
    lines = (
        [
            f"{pluralize(len(partly), 'service')} partly placed, counted with the replicas that have a place: {_truncated_list(partly)}"
        ]
        if partly
        else []
    )
    without = document["unplaced"]
    return (
        [
            *lines,
            f"{pluralize(len(without), 'service')} without a place, not counted: {_truncated_list(without)}",
        ]
        if without
        else lines
    )


def _truncated_list(words: Sequence[str]) -> str:
    more = len(words) - MAX_NAMES_INLINE
    return ", ".join(words[:MAX_NAMES_INLINE]) + (f" and {more} more" if more > 0 else "")


def _cost(each: JsonObject, by: str) -> list[str]:
    cells = [
        each["name"],
        format_dollars(each["hourlyMicros"]),
        format_dollars(each["projected30DayMicros"]),
        f"{each['shareMillionths'] / 10_000:.1f} %",
    ]
    return [*cells, format_dollars(each["overhead"]["hourlyMicros"])] if by == "pool" else cells
