"""Tables of `why` and `fit`, rendered from the JSON document of the query alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from lattice.cli.output.plan_tables import blocker_lines, data_sources, describe_event, format_placements
from lattice.cli.output.render import cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks, pluralize
from lattice.kinds.meta.quantity import format_dollars

JsonObject = Mapping[str, Any]
# Names of the services that the platform would place first.
MAX_AHEAD_NAMES = 3


def why_lines(document: JsonObject, renderer: TableRenderer, pool: str = "") -> list[str]:
    """Lines of `lattice why`: verdict, ranking, rejections, blockers and price sources; `pool` limits the
    tables to one pool."""
    return join_blocks(
        _head(document, renderer),
        []
        if pool and not any(step["ranked"] for step in document["decisions"])
        else _ranking_table(document, renderer, pool),
        _rejection_table(document, renderer, pool),
        blocker_lines(document, document["service"], renderer)
        if not document["isPlaced"] and not pool
        else [],
        renderer.table(
            ["REQUIREMENT", "SOURCE"], [[part["text"], part["source"]] for part in document["requirements"]]
        )
        if renderer.wide
        else [],
        data_sources(document, renderer) if not pool else [],
    )


def _head(document: JsonObject, renderer: TableRenderer) -> list[str]:
    cost = (
        f"{format_dollars(document['cost']['hourlyMicros'])}/h, "
        f"{format_dollars(document['cost']['projected30DayMicros'])}/30d"
    )
    now = f"now {format_placements(document['now'], renderer.wide)}" if document["now"] else "not placed yet"
    if document["isPlaced"]:
        now += f"; {cost}"
    elif document["placed"]:
        now += f"; {cost} for {document['placed']:,}"
    lines = _verdict(document, renderer)
    lines += [f"{pluralize(document['replicas'], 'replica')} desired, {now}"]
    if document["isStale"]:
        would = format_placements(document["would"], renderer.wide)
        lines += renderer.bullets(
            [f"a new placement would choose {would}; running replicas are not moved automatically"]
        )
    return lines


def _verdict(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """The verdict with its reason, and the number of placed replicas if only a part is placed."""
    partly = f", {document['placed']:,} of {pluralize(document['replicas'], 'replica')} placed"
    verdict = document["verdict"] + (partly if document["placed"] and not document["isPlaced"] else "")
    return renderer.wrap(f"{document['service']}: {verdict}. {document['reason']}", renderer.max_width)


def _ranking_table(document: JsonObject, renderer: TableRenderer, pool: str) -> list[str]:
    """Feasible pools per replica with their scores, best first: all pools if wide, else the first three."""
    plugins: dict[str, float] = {}
    for step in document["decisions"]:
        for candidate in step["ranked"]:
            plugins |= {part["plugin"]: part["weight"] for part in candidate["parts"]}
    heads = [
        "REPLICA",
        "WHERE",
        "POOL",
        "SCORE",
        *(f"{name.upper()} ×{weight:g}" for name, weight in plugins.items()),
    ]
    rows: list[list[str]] = []
    for step in document["decisions"]:
        rows += _ranking_rows(step, list(plugins), renderer, pool)
    return renderer.table(heads, rows, right_aligned=range(3, len(heads)))


def _ranking_rows(
    step: JsonObject, plugins: Sequence[str], renderer: TableRenderer, pool: str
) -> list[list[str]]:
    last = step["firstReplica"] + step["replicas"] - 1
    number = f"{step['firstReplica']}" if step["replicas"] == 1 else f"{step['firstReplica']}-{last}"
    shown = step["ranked"] if renderer.wide or pool else step["ranked"][:3]
    rows = []
    for position, candidate in enumerate(shown):
        parts = {part["plugin"]: part["score"] for part in candidate["parts"]}
        scores = [f"{parts[name]:.1f}" if name in parts else "" for name in plugins]
        # The star marks the chosen pool.
        name = f"{candidate['name']} *" if candidate["name"] == step["chosen"] else candidate["name"]
        rows.append(
            [
                number if position == 0 else "",
                step["asked"] if position == 0 else "",
                name,
                f"{candidate['score']:.2f}",
                *scores,
            ]
        )
    return rows or ([] if pool else [[number, step["asked"], "none", "", *("" for _ in plugins)]])


def _rejection_table(document: JsonObject, renderer: TableRenderer, pool: str) -> list[str]:
    """Rejected pools, one line per reason; with more than MAX_ROWS reasons, pools with equal reasons share
    their lines."""
    groups: dict[str, list[str]] = {}
    reasons: dict[str, list[JsonObject]] = {}
    is_grouped = sum(len(pool["reasons"]) for pool in document["pools"]) > MAX_ROWS and not renderer.wide
    for rejected in document["pools"]:
        if rejected["reasons"]:
            # Pools with equal reasons share one key.
            key = cell(rejected["reasons"]) if is_grouped else rejected["name"]
            groups.setdefault(key, []).append(rejected["name"])
            reasons.setdefault(key, rejected["reasons"])
    keys = sorted(groups, key=lambda key: -len(groups[key])) if is_grouped else list(groups)
    rows: list[list[str]] = []
    for key in keys:
        rows += _rejection_rows(groups[key], reasons[key])
    heads = ["POOL", "REPLICA", "FILTER", "REJECTED FOR", "NEED", "HAVE", "MISSING"]
    # No reason is limited to single replicas: leave out the REPLICA column.
    if not any(row[1] for row in rows):
        heads, rows = [heads[0], *heads[2:]], [[row[0], *row[2:]] for row in rows]
    table = renderer.table(heads, rows)
    feasible = [candidate["name"] for candidate in document["pools"] if candidate["fits"]]
    return table or ([f"no filter rejects {pool}"] if pool in feasible else [])


def _rejection_rows(pools: Sequence[str], reasons: Sequence[JsonObject]) -> list[list[str]]:
    name = pools[0] if len(pools) == 1 else f"{pools[0]} and {len(pools) - 1} more"
    rows = []
    for number, reason in enumerate(reasons):
        cells = [
            reason["replicas"] or "",
            *(reason[key] for key in ("filter", "what", "need", "have", "missing")),
        ]
        rows.append([name if number == 0 else "", *cells])
    return rows


def fit_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Lines of `lattice fit`: the smallest changes that would place the service, each with its cost, and the
    blockers."""
    if document["isPlaced"]:
        event = document.get("event")
        if event:
            return [f"{document['service']} also fits {', '.join(describe_event(event))}"]
        return [f"{document['service']} fits without changes"]
    head = _verdict(document, renderer)
    rows: list[list[str]] = []
    field_changes: list[str] = []
    for number, suggestion in enumerate(document["suggestions"], 1):
        rows += _suggestion(number, suggestion)
        field_changes += _field_changes(suggestion)
    table = renderer.table(
        ["", "WHO", "COSTS $/H", "30 DAYS", "MORE $/H", "CHANGE"], rows, right_aligned=(2, 3, 4)
    )
    table += ["", *renderer.wrap(_legend(document), renderer.max_width)] if table else []
    nothing = renderer.wrap(_no_suggestion_text(document), renderer.max_width)
    wide = field_changes if renderer.wide else []
    return join_blocks(head, table or nothing, wide, blocker_lines(document, document["service"], renderer))


def _no_suggestion_text(document: JsonObject) -> str:
    """Sentence for a service that no tried change would place."""
    fewest = min((len(parts) for parts in document["conflicts"]), default=0)
    if fewest > 1:
        return (
            f"no tried change places the service: {fewest} requirements would have to change together; "
            "`lattice why` lists the blockers"
        )
    return "no tried change places the service; `lattice why` lists the blockers"


def _suggestion(number: int, suggestion: JsonObject) -> list[list[str]]:
    """Rows of one suggestion; the cost is in the row of the first change."""
    first, *following = suggestion["changes"]
    rows = [[f"{number}", first["who"], *_price(suggestion), first["sentence"]]]
    rows += [["", part["who"], "", "", "", f"and {part['sentence']}"] for part in following]
    return rows + [["", "", "", "", "", note] for note in _services_ahead(suggestion)]


def _price(suggestion: JsonObject) -> list[str]:
    """Cost of the service after the change, and the increase of the total bill; `≥` where a price is unknown."""
    service, increase = suggestion["serviceCost"], suggestion["cost"]["hourlyMicros"]
    at_least = "" if suggestion["isPriced"] else "≥ "
    costs = ["", ""]
    if service:
        costs = [format_dollars(service[name]) for name in ("hourlyMicros", "projected30DayMicros")]
    return [
        *(f"{at_least}{cost}" for cost in costs),
        format_dollars(increase, signed=True) if increase else "none",
    ]


def _legend(document: JsonObject) -> str:
    """Explanation of the cost columns."""
    placed, desired = document["placed"], document["replicas"]
    now = "now $0.00/h, not placed"
    if placed:
        hourly = format_dollars(document["serviceCost"]["hourlyMicros"])
        now = f"now {hourly}/h with {placed:,} of {desired:,} replicas"
    return f"COSTS: cost of this service after the change ({now}). MORE: increase of the total bill."


def _services_ahead(suggestion: JsonObject) -> list[str]:
    """Note on the unplaced services that the platform would place before this service."""
    if not suggestion["ahead"]:
        return []
    hidden = len(suggestion["ahead"]) - MAX_AHEAD_NAMES
    names = ", ".join(suggestion["ahead"][:MAX_AHEAD_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")
    return [
        f"(places {names} first)"
        if suggestion["isEnough"]
        else f"(not enough: {names} would be placed first and use the capacity)"
    ]


def _field_changes(suggestion: JsonObject) -> list[str]:
    """Object, field path and values of every change, for a manifest."""
    return [
        f"{part['object']['kind']}/{part['object']['name']} {part['path']}: "
        f"{cell(part['before'])} → {cell(part['after'])}"
        for part in suggestion["changes"]
    ]
