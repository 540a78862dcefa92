"""What a plan's manifests change, whatever comes of it: field by field, and which services are restarted for it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lattice.cli.output.columns import Look, counted
from lattice.cli.output.render import cell

Document = Mapping[str, Any]
NAMED = 5  # fields of an object
LONG = 40  # characters of a value that are shown
LEAD = 12  # of them, before the first that differs


def only_declared(found: Sequence[Document], *, is_all: bool) -> Iterator[str]:
    """What changes besides places: services that are restarted, always; other declarations, if there is nothing else to tell."""
    restarted = sum(each["isRestarted"] for each in found)
    if restarted:
        yield f"{counted(restarted, 'service')} restarted replica by replica"
    if not is_all:
        return
    if len(found) > restarted:
        yield f"{counted(len(found) - restarted, 'other declaration' if restarted else 'declaration')} changed"
    yield "nothing is placed otherwise" if found else "nothing changes"


def declared_lines(document: Document, look: Look) -> list[str]:
    """What the manifests change, one line a field; of services that only go elsewhere, where they go says more."""
    listed = {each["name"] for each in document["services"]}
    shown = [
        each
        for each in document["declared"]
        if each["isRestarted"] or f"{each.get('namespace')}/{each['name']}" not in listed
    ]
    rows = [row for each in shown for row in _fields(each, look)]
    return look.table(["", "DECLARED", "CHANGE"], rows)


def _fields(each: Document, look: Look) -> list[list[str]]:
    told = [_field(part) for part in (each["fields"] if look.wide else each["fields"][:NAMED])]
    rest = len(each["fields"]) - len(told)
    told += [f"and {counted(rest, 'more field')}; -o wide lists all"] if rest else []
    first, *more = told or ["deleted" if each["mark"] == "-" else "new"]
    return [[each["mark"], _object(each), first], *(["", "", words] for words in more)]


def _object(each: Document) -> str:
    return "/".join(part for part in (each["kind"].lower(), each.get("namespace"), each["name"]) if part)


def _field(each: Document) -> str:
    before, after = _differing(*(_whole(each[name]) for name in ("before", "after")))
    return f"{each['path']} {before} → {after}"


def _whole(value: Any) -> str:
    """In one line, with the ends of its lines written out."""
    return cell(value.replace("\n", "\\n") if isinstance(value, str) else value)


def _differing(before: str, after: str) -> tuple[str, str]:
    """Of long values, what is around the first character that differs."""
    longest, same = max(len(before), len(after)), _same(before, after)
    start = max(0, min(same - LEAD, longest - LONG))
    return _part(before, start), _part(after, start)


def _same(before: str, after: str) -> int:
    """Characters until they differ."""
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[at] != after[at]), shorter)


def _part(text: str, start: int) -> str:
    end = start + LONG
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
