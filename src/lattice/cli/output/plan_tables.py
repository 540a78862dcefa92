"""A plan, or what would happen if, as tables; from its document alone, whoever made that."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lattice.cli.output.columns import FEW, Look, blocks, counted
from lattice.cli.output.declared_tables import declared_lines, only_declared
from lattice.placement.inputs.ledger_math import dollars

Document = Mapping[str, Any]
DETAILED = 3  # unplaced services told at length
NAMED = 5  # of many, in one line


def plan_lines(document: Document, look: Look) -> list[str]:
    """Without how to apply it: the command knows what was typed."""
    return blocks(
        _summary(document, look),
        declared_lines(document, look),
        _services(document, look),
        _clusters(document, look),
        _pools(document, look),
        _budgets(document, look),
        _would_move(document, look),
        unplaced(document["unplaced"], look),
        look.bullets(document["risks"]),
        _findings(document, look),
        sources(document, look),
    )


def _summary(document: Document, look: Look) -> list[str]:
    parts = [
        *_tally(document["services"], "service"),
        *_tally(document["clusters"], "cluster"),
        *_nodes(document["clusters"]),
    ]
    parts += [f"{counted(len(document['wouldMove']), 'service')} would move"] if document["wouldMove"] else []
    parts += _short(document["unplaced"])
    total = document["total"]
    before, after = (dollars(total[each]["hourlyMicros"]) for each in ("before", "after"))
    change = dollars(total["change"]["projected30DayMicros"], signed=True)
    cost = f"{before}/h → {after}/h ({change}/30d)" if before != after else f"{after}/h as before"
    said = ", ".join([*parts, *only_declared(document["declared"], is_all=not parts)])
    return [*look.wrapped(f"{said}; {cost}", look.columns), *_pending(document["pending"], look)]


def _short(found: Sequence[Document]) -> Iterator[str]:
    """Services without some of their replicas are told apart from those without any."""
    as_before = "" if any(each["isNew"] for each in found) else " as before"
    for word, services in (
        ("partly", [each for each in found if _has(each)]),
        ("not", [each for each in found if not _has(each)]),
    ):
        if services:
            yield f"{counted(len(services), 'service')} {word} placed{as_before}"


def _has(each: Document) -> int:
    """Replicas of a service that lacks some, which have a place."""
    return int(each["replicas"] - each["missing"])


def _pending(found: Document | None, look: Look) -> list[str]:
    """Before is not always what is there."""
    if found is None:
        return []
    real, late = dollars(found["cost"]["before"]["hourlyMicros"]), len(found["services"])
    waits = (
        f"{counted(late, 'service')} still {'waits' if late == 1 else 'wait'} for that, and " if late else ""
    )
    return look.bullets(
        [f"before is as if all that is declared already had its place; {waits}{real}/h is paid now"]
    )


def _tally(rows: Sequence[Document], noun: str) -> Iterator[str]:
    for mark, verb in (("+", "placed" if noun == "service" else "made"), ("~", "changed"), ("-", "removed")):
        if found := [each for each in rows if each["mark"] == mark and each.get("isPlaced", True)]:
            yield f"{counted(len(found), noun)} {verb}"


def _nodes(clusters: Sequence[Document]) -> Iterator[str]:
    change = sum(sum(each["after"].values()) - sum(each["before"].values()) for each in clusters)
    if change:
        yield f"{counted(abs(change), 'node')} {'more' if change > 0 else 'less'}"


def _services(document: Document, look: Look) -> list[str]:
    rows = [_service(each, look) for each in document["services"] if each["before"] or each["after"]]
    empty = document["overhead"]["change"]
    if empty["hourlyMicros"]:
        rows = [
            *(rows if look.wide else rows[:FEW]),
            ["", "(empty nodes)", "", dollars(empty["hourlyMicros"], signed=True), _month(empty)],
        ]
    return look.table(["", "SERVICE", "WHERE", "$/H", "30 DAYS"], rows, right=(3, 4))


def _service(each: Document, look: Look) -> list[str]:
    change = each["cost"]["change"]
    before, after = where(each["before"], look.wide), where(each["after"], look.wide)
    text = (
        after if not each["before"] else f"{after}, as before" if before == after else f"{before} → {after}"
    )
    if not each["isPlaced"] and each["after"]:
        text += f" ({sum(place['replicas'] for place in each['after']):,} of {counted(each['replicas'], 'replica')})"
    return [each["mark"], each["name"], text, dollars(change["hourlyMicros"], signed=True), _month(change)]


def _month(change: Document) -> str:
    return dollars(change["projected30DayMicros"], signed=True)


def where(places: Sequence[Document], wide: bool = False) -> str:
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


def _clusters(document: Document, look: Look) -> list[str]:
    rows = [
        [
            each["mark"],
            each["name"],
            each["pool"],
            machines(each),
            dollars(each["cost"]["change"]["hourlyMicros"], signed=True),
        ]
        for each in document["clusters"]
    ]
    return look.table(["", "CLUSTER", "POOL", "NODES", "$/H"], rows, right=(4,))


def machines(each: Document) -> str:
    """`3 × medium`, or `2 → 3 × medium`."""
    names = sorted({*each["before"], *each["after"]})
    return ", ".join(
        _count(each["before"].get(name, 0), each["after"].get(name, 0), each["mark"], name) for name in names
    )


def _count(before: int, after: int, mark: str, name: str) -> str:
    if mark == "+" or before == after:
        return f"{after:,} × {name}"
    return f"{before:,} × {name}" if mark == "-" else f"{before:,} → {after:,} × {name}"


def _pools(document: Document, look: Look) -> list[str]:
    rows = [_money(each["name"], each) for each in document["pools"]]
    if len(rows) > 1:
        rows = [*(rows if look.wide else rows[:FEW]), _money("total", document["total"])]
    return look.table(["POOL", "BEFORE $/H", "AFTER $/H", "CHANGE $/H", "30 DAYS"], rows, right=(1, 2, 3, 4))


def _money(name: str, each: Document) -> list[str]:
    hourly = [dollars(each[when]["hourlyMicros"]) for when in ("before", "after")]
    return [name, *hourly, dollars(each["change"]["hourlyMicros"], signed=True), _month(each["change"])]


def _budgets(document: Document, look: Look) -> list[str]:
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
        right=(2, 6),
    )
    return [*table, *look.bullets([_used_up(each, document["month"]) for each in shown if each["isUsedUp"]])]


def _used_up(each: Document, month: str | None) -> str:
    """`month`: USED is what was spent of it, and the rate until it ends; without one it is 30 days at the rate."""
    need, have = (each[name]["hourlyMicros"] for name in ("cheapestMachine", "left"))
    also = "; the limit also holds for 30 days, USED is this month" if month else ""
    return (
        f"budget of {each['subject']} refuses one more machine: needs {dollars(need)}/h, has {dollars(have)}/h, "
        f"missing {dollars(need - have)}/h{also}"
    )


def _budget(each: Document) -> list[str]:
    before, after = (dollars(each[name]["micros"]) for name in ("limitBefore", "limit"))
    return [
        "!" if each["isUsedUp"] or each["percentAfter"] >= each["alertPercent"] else "",
        each["subject"],
        after if before == after else f"{before} → {after}",
        f"{each['percentBefore']} % → {each['percentAfter']} %",
        f"{each['alertPercent']} %",
        "hard" if each["isHard"] else "soft",
        dollars(each["left"]["hourlyMicros"]) if each["left"] else "",
    ]


def _would_move(document: Document, look: Look) -> list[str]:
    rows = [
        [
            each["name"],
            "nowhere" if each["to"] is None else where(each["to"], look.wide),
            "; ".join(each["reasons"]),
        ]
        for each in document["wouldMove"]
    ]
    told = look.table(["WOULD MOVE", "TO", "WHY"], rows)
    return [*told, "They stay where they are until moving them is asked for."] if told else []


def unplaced(found: Sequence[Document], look: Look) -> list[str]:
    rows = [
        [
            "!" if each["isNew"] else "",
            each["name"],
            f"{_has(each):,} of {each['replicas']:,}",
            each["verdict"],
            each["reason"],
        ]
        for each in found
    ]
    told = look.table(["", "NOT ALL PLACED", "HAS", "VERDICT", "WHY"], rows)
    for each in found if look.wide else found[:DETAILED]:
        told += ["", each["name"], *in_the_way(each, each["name"], look)]
    return told


def in_the_way(each: Document, service: str, look: Look) -> list[str]:
    """Any of the conflicts gone would be enough; and what a new place would have to be like."""
    own = f"service/{service.rpartition('/')[2]}"
    ways = [" and ".join(_named(part, own) for part in parts) for parts in each["conflicts"]]
    rows = [["", "fits without" if number == 0 else "or without", way] for number, way in enumerate(ways)]
    rows += [["", "contradict", each_of["text"]] for each_of in each["contradictions"]]
    rows += [["", "waits for", "; ".join(each["waits"])]] if each["waits"] else []
    rows += [["", "fits in", _required(each["required"])]] if each["required"] else []
    return look.rows(rows)


def _named(part: Document, own: str) -> str:
    return f"{part['text']} ({part['source']})" if part["source"] not in ("", own) else str(part["text"])


def _required(required: Document) -> str:
    """`2 new places with region us-*; compliance gdpr; 3 nodes of cpu 2, memory 4Gi`."""
    count, wanted = required["places"], dict(required["requiredProperties"])
    machine, number = wanted.pop("machine", {}), wanted.pop("machines", 1)
    near = [_within(name, each) for name, each in wanted.pop("latency", {}).items()]
    words = [f"{_spaced(name)} {_value(value)}" for name, value in wanted.items()]
    sized = f" of {_value(machine)}" if machine else ""
    return f"{'a new place' if count == 1 else f'{count} new places'} with {'; '.join([*words, *near, counted(number, 'node') + sized])}"


def _within(name: str, each: Document) -> str:
    where_to = f" in {', '.join(each['to'])}" if each["to"] else ""
    return f"at most {each['maxMs']} ms to {name}{where_to}"


def _spaced(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _findings(document: Document, look: Look) -> list[str]:
    return look.bullets([f"{each['subject']}: {each['message']}" for each in document["findings"]])


def sources(document: Document, look: Look) -> list[str]:
    """Who says what things cost, and which latencies nobody measured."""
    prices = document["prices"]
    lines = []
    if look.wide and prices["classes"]:
        rows = [
            [each["pool"], each["class"], f"{each['machines']}", dollars(each["hourlyMicros"]), _dated(each)]
            for each in prices["classes"]
        ]
        lines += look.table(["POOL", "CLASS", "NODES", "$/H", "PRICE FROM"], rows, right=(2, 3))
    elif prices["sources"]:
        lines += [f"prices: {'; '.join(_dated(each) for each in prices['sources'])}"]
    if prices["unknown"] and look.wide:
        lines += [f"no price known: {', '.join(prices['unknown'])}"]
    elif prices["unknown"]:
        lines += [f"no price known for {counted(len(prices['unknown']), 'class')[:-1]}es; -o wide lists them"]
    return [*lines, *_latencies(document.get("latencies", ()), look)]


def _dated(each: Document) -> str:
    return f"{each['source']} as of {each['asOf']}" if each["asOf"] else str(each["source"])


def _latencies(found: Sequence[Document], look: Look) -> list[str]:
    if look.wide and found:
        rows = [
            [each["service"], each["dependency"], f"{each['from']} → {each['to']}", *_ms(each)]
            for each in found
        ]
        return [
            "",
            *look.table(["SERVICE", "NEEDS", "WAY", "MS", "AT MOST", "ACCORDING TO"], rows, right=(3, 4)),
        ]
    guessed = [each for each in found if each["isEstimate"]]
    return (
        [f"latencies: {len(guessed):,} of {len(found):,} are estimates; --latency gives measured ones"]
        if guessed
        else []
    )


def _ms(each: Document) -> list[str]:
    estimate = "~" if each["isEstimate"] else ""
    return [f"{estimate}{each['ms']}", f"{each['maxMs']}", each["source"]]


def whatif_lines(document: Document, look: Look) -> list[str]:
    """What happens, in words, and what follows from it."""
    first, *rest = plan_lines(document, look)
    return [*look.wrapped(f"{', '.join(event_words(document['event']))}: {first}", look.columns), *rest]


def event_words(event: Document) -> list[str]:
    words = [f"without {each}" for each in event["lose"]]
    words += [f"with {each['pool']} not certified for {each['compliance']}" for each in event["drop"]]
    percent = (event["priceMillionths"] - 1_000_000) / 10_000
    return [*words, f"with prices {percent:+g} %"] if percent else words


def drill_lines(document: Document, look: Look) -> list[str]:
    """What hurts most comes first; of harmless losses one line says how many."""
    hurting = [each for each in document["losses"] if look.wide or each["moved"] or each["leftWithout"]]
    worst_first = sorted(
        hurting, key=lambda each: (-len(each["leftWithout"]), -len(each["moved"]), each["pool"])
    )
    rows = [_loss(each, look) for each in worst_first]
    table = look.table(
        ["", "LOST", "MOVE", "COST AFTER $/H", "CHANGE $/H", "NOT ALL PLACED"], rows, right=(2, 3, 4)
    )
    harmless = len(document["losses"]) - len(hurting)
    return blocks(
        table, [f"{counted(harmless, 'other pool')} could be lost without moving anybody"] if harmless else []
    )


def _loss(each: Document, look: Look) -> list[str]:
    without = each["leftWithout"] if look.wide else each["leftWithout"][:3]
    more = len(each["leftWithout"]) - len(without)
    names = ", ".join(without) + (f" and {more} more" if more else "")
    after, change = each["cost"]["after"], each["cost"]["change"]
    money = [dollars(after["hourlyMicros"]), dollars(change["hourlyMicros"], signed=True)]
    return ["!" if without else "", each["pool"], f"{len(each['moved'])}", *money, names or "nobody"]


def optimum_lines(document: Document, look: Look) -> list[str]:
    gap = f"{document['gapMillionths'] / 10_000:.2f} %"
    bound = f"no arrangement costs less than {dollars(document['bound']['hourlyMicros'])}/h: the gap is at most {gap}"
    note = document["solver"]["note"]
    told = [bound, *([note] if note else [])]
    if not document["moves"]:
        cost = dollars(document["total"]["after"]["hourlyMicros"])
        return [f"no move would pay for itself: {cost}/h", *told]
    saving = f"{counted(document['moves'], 'move')} would save {dollars(document['saving']['projected30DayMicros'])} in 30 days"
    return blocks([saving, *told], plan_lines(document, look))


def cost_lines(document: Document, look: Look) -> list[str]:
    by, total = document["by"], document["total"]
    rows = [_cost(each, by) for each in document["rows"]]
    if len(rows) > 1:
        whole = {
            "name": "total",
            **total,
            "shareMillionths": 1_000_000 if total["hourlyMicros"] else 0,
            "overhead": document["overhead"],
        }
        rows = [*(rows if look.wide else rows[:FEW]), _cost(whole, by)]
    empty = ["EMPTY $/H"] if by == "pool" else []
    table = look.table(
        [by.removeprefix("label:").upper(), "$/H", "30 DAYS", "SHARE", *empty],
        rows,
        right=range(1, 4 + len(empty)),
    )
    nothing = "nothing costs anything" + (
        f" in namespace {document['namespace']}" if document["namespace"] else ""
    )
    return blocks(table or [nothing], _uncounted(document), sources(document, look))


def _uncounted(document: Document) -> list[str]:
    """Who is not in the sum, and who is only with a part."""
    partly = [
        f"{each['name']} {each['placed']:,} of {each['replicas']:,}" for each in document["partlyPlaced"]
    ]
    lines = (
        [
            f"{counted(len(partly), 'service')} partly placed, counted with the replicas that have a place: {_some(partly)}"
        ]
        if partly
        else []
    )
    without = document["unplaced"]
    return (
        [*lines, f"{counted(len(without), 'service')} without a place, not counted: {_some(without)}"]
        if without
        else lines
    )


def _some(words: Sequence[str]) -> str:
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _cost(each: Document, by: str) -> list[str]:
    cells = [
        each["name"],
        dollars(each["hourlyMicros"]),
        dollars(each["projected30DayMicros"]),
        f"{each['shareMillionths'] / 10_000:.1f} %",
    ]
    return [*cells, dollars(each["overhead"]["hourlyMicros"])] if by == "pool" else cells
