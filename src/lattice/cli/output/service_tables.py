"""Why a service is where it is, and what would make it fit, as tables; from the document alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from lattice.cli.output.plan_tables import blocker_lines, data_sources, describe_event, format_placements
from lattice.cli.output.render import cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks, pluralize
from lattice.placement.inputs.ledger_math import format_dollars

JsonObject = Mapping[str, Any]
MAX_AHEAD_NAMES = 3  # services named that come first


def why_lines(document: JsonObject, look: TableRenderer, pool: str = "") -> list[str]:
    return join_blocks(
        _head(document, look),
        []
        if pool and not any(each["ranked"] for each in document["decisions"])
        else _ranking_table(document, look, pool),
        _rejection_table(document, look, pool),
        blocker_lines(document, document["service"], look) if not document["isPlaced"] and not pool else [],
        _demands(document, look) if look.wide else [],
        data_sources(document, look) if not pool else [],
    )


def _head(document: JsonObject, look: TableRenderer) -> list[str]:
    cost = f"{format_dollars(document['cost']['hourlyMicros'])}/h, {format_dollars(document['cost']['projected30DayMicros'])}/30d"
    now = f"now {format_placements(document['now'], look.wide)}" if document["now"] else "none there yet"
    now += (
        f"; {cost}"
        if document["isPlaced"]
        else f"; {cost} for {document['placed']:,}"
        if document["placed"]
        else ""
    )
    lines = _verdict(document, look)
    lines += [f"{pluralize(document['replicas'], 'replica')} wanted, {now}"]
    if document["isStale"]:
        lines += look.bullets(
            [
                f"placed today, it would go to {format_placements(document['would'], look.wide)}; it stays until moving it is asked for"
            ]
        )
    return lines


def _verdict(document: JsonObject, look: TableRenderer) -> list[str]:
    """With how many replicas have a place all the same."""
    partly = f", {document['placed']:,} of {pluralize(document['replicas'], 'replica')} placed"
    said = document["verdict"] + (partly if document["placed"] and not document["isPlaced"] else "")
    return look.wrap(f"{document['service']}: {said}. {document['reason']}", look.max_width)


def _ranking_table(document: JsonObject, look: TableRenderer, pool: str) -> list[str]:
    """For each replica, the pools that could take it, best first: all if wide, else the first three."""
    plugins: dict[str, float] = {}
    for step in document["decisions"]:
        for each in step["ranked"]:
            plugins |= {part["plugin"]: part["weight"] for part in each["parts"]}
    heads = [
        "REPLICA",
        "WHERE",
        "POOL",
        "SCORE",
        *(f"{name.upper()} ×{weight:g}" for name, weight in plugins.items()),
    ]
    rows = [row for step in document["decisions"] for row in _ranking_rows(step, list(plugins), look, pool)]
    return look.table(heads, rows, right_aligned=range(3, len(heads)))


def _ranking_rows(
    step: JsonObject, plugins: Sequence[str], look: TableRenderer, pool: str
) -> list[list[str]]:
    last = step["firstReplica"] + step["replicas"] - 1
    number = f"{step['firstReplica']}" if step["replicas"] == 1 else f"{step['firstReplica']}-{last}"
    shown = step["ranked"] if look.wide or pool else step["ranked"][:3]
    rows = []
    for place, each in enumerate(shown):
        parts = {part["plugin"]: part["score"] for part in each["parts"]}
        scores = [f"{parts[name]:.1f}" if name in parts else "" for name in plugins]
        name = f"{each['name']} *" if each["name"] == step["chosen"] else each["name"]
        rows.append(
            [
                number if place == 0 else "",
                step["asked"] if place == 0 else "",
                name,
                f"{each['score']:.2f}",
                *scores,
            ]
        )
    return rows or ([] if pool else [[number, step["asked"], "none", "", *("" for _ in plugins)]])


def _rejection_table(document: JsonObject, look: TableRenderer, pool: str) -> list[str]:
    """Every pool with everything that rules it out, one line a reason; of very many, those refused alike together."""
    groups: dict[str, list[str]] = {}
    reasons: dict[str, list[JsonObject]] = {}
    many = sum(len(each["reasons"]) for each in document["pools"]) > MAX_ROWS and not look.wide
    for each in document["pools"]:
        if each["reasons"]:
            alike = cell(each["reasons"]) if many else each["name"]
            groups.setdefault(alike, []).append(each["name"])
            reasons.setdefault(alike, each["reasons"])
    most_first = sorted(groups, key=lambda each: -len(groups[each])) if many else list(groups)
    rows = [row for alike in most_first for row in _rejection_rows(groups[alike], reasons[alike])]
    heads = ["POOL", "REPLICA", "FILTER", "REFUSED FOR", "NEED", "HAVE", "MISSING"]
    if not any(row[1] for row in rows):
        heads, rows = [heads[0], *heads[2:]], [[row[0], *row[2:]] for row in rows]
    table = look.table(heads, rows)
    fits = [each["name"] for each in document["pools"] if each["fits"]]
    return table or ([f"nothing rules {pool} out"] if pool in fits else [])


def _rejection_rows(pools: Sequence[str], reasons: Sequence[JsonObject]) -> list[list[str]]:
    name = pools[0] if len(pools) == 1 else f"{pools[0]} and {len(pools) - 1} more"
    found = [
        [each["replicas"] or "", each["filter"], each["what"], each["need"], each["have"], each["missing"]]
        for each in reasons
    ]
    return [[name if number == 0 else "", *each] for number, each in enumerate(found)]


def _demands(document: JsonObject, look: TableRenderer) -> list[str]:
    return look.table(
        ["DEMANDS", "SAYS"], [[each["text"], each["source"]] for each in document["requirements"]]
    )


def fit_lines(document: JsonObject, look: TableRenderer) -> list[str]:
    if document["isPlaced"]:
        return [f"{document['service']} fits {_event_text(document)}"]
    head = _verdict(document, look)
    rows = [
        row for number, each in enumerate(document["suggestions"], 1) for row in _suggestion(number, each)
    ]
    table = look.table(
        ["", "WHO", "COSTS $/H", "30 DAYS", "MORE $/H", "CHANGE"], rows, right_aligned=(2, 3, 4)
    )
    table += ["", *look.wrap(_legend(document), look.max_width)] if table else []
    nothing = look.wrap(_no_suggestion_text(document), look.max_width)
    wide = [line for each in document["suggestions"] for line in _field_changes(each)] if look.wide else []
    return join_blocks(head, table or nothing, wide, blocker_lines(document, document["service"], look))


def _no_suggestion_text(document: JsonObject) -> str:
    """None of the ways was found to be passable."""
    fewest = min((len(parts) for parts in document["conflicts"]), default=0)
    if fewest > 1:
        return (
            f"no change that was tried makes it fit, since none of the {fewest} things that it fits without is enough alone: "
            "they would have to change all together; `lattice why` lists what stands in its way"
        )
    return "nothing that was tried makes it fit; `lattice why` lists what stands in its way"


def _event_text(document: JsonObject) -> str:
    event = document.get("event")
    return f"{', '.join(describe_event(event))}, too" if event else "as it is"


def _suggestion(number: int, each: JsonObject) -> list[list[str]]:
    """The price stands with the first of the changes that belong together."""
    first, *more = each["changes"]
    rows = [[f"{number}", first["who"], *_price(each), first["sentence"]]]
    rows += [["", part["who"], "", "", "", f"and {part['sentence']}"] for part in more]
    return rows + [["", "", "", "", "", words] for words in _services_ahead(each)]


def _price(each: JsonObject) -> list[str]:
    """What the service costs then, and what that is more for all there is; not in full where a price is not known."""
    service, more, at_least = (
        each["serviceCost"],
        each["cost"]["hourlyMicros"],
        "" if each["isPriced"] else "≥ ",
    )
    costs = (
        [format_dollars(service[name]) for name in ("hourlyMicros", "projected30DayMicros")]
        if service
        else ["", ""]
    )
    return [
        *(f"{at_least}{cost}" for cost in costs),
        format_dollars(more, signed=True) if more else "no more",
    ]


def _legend(document: JsonObject) -> str:
    """What the columns of money are."""
    has, wanted = document["placed"], document["replicas"]
    now = (
        "$0.00/h without a place"
        if not has
        else f"{format_dollars(document['serviceCost']['hourlyMicros'])}/h with {has:,} of {wanted:,} replicas"
    )
    return f"COSTS is what the service costs then ({now}); MORE is what is paid more for all there is."


def _services_ahead(each: JsonObject) -> list[str]:
    """Who waits, too, and comes first."""
    if not each["ahead"]:
        return []
    rest = len(each["ahead"]) - MAX_AHEAD_NAMES
    names = ", ".join(each["ahead"][:MAX_AHEAD_NAMES]) + (f" and {rest} more" if rest > 0 else "")
    return [
        f"(serves {names} first)"
        if each["isEnough"]
        else f"(not enough: {names} would be first, and take it)"
    ]


def _field_changes(each: JsonObject) -> list[str]:
    """Where to write it."""
    return [
        f"{_object_name(part['object'])} {part['path']}: {cell(part['before'])} → {cell(part['after'])}"
        for part in each["changes"]
    ]


def _object_name(subject: JsonObject) -> str:
    return f"{subject['kind']}/{subject['name']}"
