"""Tables of `why` and `fit`, rendered from the JSON document of the query alone."""

from collections.abc import Mapping
from typing import Any

from lattice.cli.output.plan_tables import blocker_lines, data_sources, describe_event, format_placements
from lattice.cli.output.render import cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks
from lattice.kinds.meta.quantity import format_cents, format_hourly, pluralize

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
        f"{format_hourly(document['cost']['hourlyMicros'])}/h, "
        f"{format_cents(document['cost']['projected30DayMicros'])}/30d"
    )
    if not document.get("isPriced", True):
        lower_bound = f"at least {cost}, " if document["cost"]["hourlyMicros"] else ""
        cost = f"{lower_bound}the price of a node is unknown"
    now = f"now {format_placements(document['now'], renderer.wide)}" if document["now"] else "not placed yet"
    if document["isPlaced"]:
        now += f"; {cost}"
    elif document["placed"]:
        now += f"; {cost} for {document['placed']:,}"
    lines = _verdict(document, renderer)
    lines += [f"{pluralize(document['replicas'], 'replica')} desired, {now}"]
    unplaceable = sum(step["replicas"] for step in document["decisions"] if not step["chosen"])
    if document["isPlaced"] and unplaceable and document["now"]:
        text = f"no pool would accept {pluralize(unplaceable, 'replica')} of it today; running replicas stay"
        lines += renderer.bullets([text])
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
        last = step["firstReplica"] + step["replicas"] - 1
        number = f"{step['firstReplica']}" if step["replicas"] == 1 else f"{step['firstReplica']}-{last}"
        # Replica and requested resources stand in the first row of the step only.
        labels = [number, step["asked"]]
        for candidate in step["ranked"] if renderer.wide or pool else step["ranked"][:3]:
            scores = {part["plugin"]: f"{part['score']:.1f}" for part in candidate["parts"]}
            # The star marks the chosen pool.
            name = f"{candidate['name']} *" if candidate["name"] == step["chosen"] else candidate["name"]
            cells = [name, f"{candidate['score']:.2f}", *(scores.get(plugin, "") for plugin in plugins)]
            rows.append([*labels, *cells])
            labels = ["", ""]
        if not step["ranked"] and not pool:
            rows.append([*labels, "none", "", *("" for _ in plugins)])
    ties = {
        (step["ranked"][0]["name"], step["ranked"][1]["name"])
        for step in document["decisions"]
        if step.get("isTie") and len(step["ranked"]) > 1
    }
    return [
        *renderer.table(heads, rows, right_aligned=range(3, len(heads))),
        *renderer.bullets(
            [
                f"{name} and {rival} have equal scores: a hash of the names decides"
                for name, rival in sorted(ties)
            ]
        ),
    ]


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
        pools = groups[key]
        name = pools[0] if len(pools) == 1 else f"{pools[0]} and {len(pools) - 1} more"
        for reason in reasons[key]:
            columns = (reason[column] for column in ("filter", "what", "need", "have", "missing"))
            rows.append([name, reason["replicas"] or "", *columns])
            # The name stands in the first row only.
            name = ""
    heads = ["POOL", "REPLICA", "FILTER", "REJECTED FOR", "NEED", "HAVE", "MISSING"]
    # No reason is limited to single replicas: leave out the REPLICA column.
    if not any(row[1] for row in rows):
        heads, rows = [heads[0], *heads[2:]], [[row[0], *row[2:]] for row in rows]
    table = renderer.table(heads, rows)
    feasible = [candidate["name"] for candidate in document["pools"] if candidate["fits"]]
    return table or ([f"no filter rejects {pool}"] if pool in feasible else [])


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
        # Object, field path and values of every change, for a manifest.
        for part in suggestion["changes"]:
            subject = f"{part['object']['kind']}/{part['object']['name']}"
            change = f"{cell(part['before'])} → {cell(part['after'])}"
            field_changes.append(f"{subject} {part['path']}: {change}")
    table = renderer.table(
        ["", "BY", "COSTS $/H", "30 DAYS", "MORE $/H", "CHANGE"], rows, right_aligned=(2, 3, 4)
    )
    if table:
        placed, now = document["placed"], "now $0.00/h, not placed"
        if placed:
            hourly = format_hourly(document["serviceCost"]["hourlyMicros"])
            now = f"now {hourly}/h with {placed:,} of {document['replicas']:,} replicas"
        legend = f"COSTS: cost of this service after the change ({now}). MORE: increase of the total bill."
        table += ["", *renderer.wrap(legend, renderer.max_width)]
    else:
        fewest = min((len(parts) for parts in document["conflicts"]), default=0)
        together = f": {fewest} requirements would have to change together" if fewest > 1 else ""
        text = f"no tried change places the service{together}; `lattice why` lists the blockers"
        table = renderer.wrap(text, renderer.max_width)
    wide = field_changes if renderer.wide else []
    return join_blocks(head, table, wide, blocker_lines(document, document["service"], renderer))


def _suggestion(number: int, suggestion: JsonObject) -> list[list[str]]:
    """Rows of one suggestion: the changes, with the costs in the row of the first change, and a note on the
    unplaced services that the platform would place first."""
    service, increase = suggestion["serviceCost"], suggestion["cost"]["hourlyMicros"]
    # The cost of the service after the change, and the increase of the total bill; `≥` where a price is
    # unknown.
    costs = ["", ""]
    if service:
        costs = [format_hourly(service["hourlyMicros"]), format_cents(service["projected30DayMicros"])]
    if not suggestion["isPriced"]:
        costs = [f"≥ {cost}" for cost in costs]
    costs.append(format_hourly(increase, signed=True) if increase else "none")
    first, *following = suggestion["changes"]
    rows = [[f"{number}", first["who"], *costs, first["sentence"]]]
    rows += [["", part["who"], "", "", "", f"and {part['sentence']}"] for part in following]
    ahead = suggestion["ahead"]
    if ahead:
        hidden = len(ahead) - MAX_AHEAD_NAMES
        names = ", ".join(ahead[:MAX_AHEAD_NAMES]) + (f" and {hidden} more" if hidden > 0 else "")
        note = f"(not enough: {names} would be placed first and use the capacity)"
        if suggestion["isEnough"]:
            note = f"(places {names} first)"
        rows.append(["", "", "", "", "", note])
    return rows
