"""Validate the readable parts of an object that cannot be decoded as its kind."""

from collections.abc import Iterator
from functools import cache
from inspect import signature
from typing import Any

import msgspec
from msgspec import inspect

from lattice.errors import Cause
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import number_problems
from lattice.kinds.meta.validator import join_path


def readable_part_problems(kind: type[Kind], obj: Any) -> Iterator[Cause]:
    """The problems of every part of the spec that can be decoded as its class and whose `problems` method
    needs only the part and its path."""
    for field in _struct_type(kind).fields:
        if field.name == "spec":
            yield from _problems(field.type, obj.get("spec"), "spec")


@cache
def _struct_type(kind: type[Kind]) -> inspect.StructType:
    # Inspecting a kind takes longer than the rest of its validation, and its result never changes.
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), info  # noqa: S101 - a kind is a Struct by definition
    return info


def _problems(info: inspect.Type, value: Any, path: str) -> Iterator[Cause]:
    match info, value:
        case inspect.Metadata(), _:
            yield from _problems(info.type, value, path)
        case inspect.UnionType(), _:
            for member in info.types:
                yield from _problems(member, value, path)
        case inspect.StructType(), dict():
            yield from _struct_problems(info, value, path)
        case ((inspect.VarTupleType() | inspect.ListType()), list()):
            for index, item in enumerate(value):
                yield from _problems(info.item_type, item, f"{path}[{index}]")
        case inspect.DictType(), dict():
            for key, item in value.items():
                yield from _problems(info.value_type, item, join_path(path, key))


def _struct_problems(info: inspect.StructType, value: dict[str, Any], path: str) -> Iterator[Cause]:
    check = getattr(info.cls, "problems", None)
    # A check with two parameters, the part and its path, needs no context of the object.
    if check is not None and len(signature(check).parameters) == 2:
        try:
            part = msgspec.convert(value, info.cls)
        except msgspec.ValidationError:
            pass
        else:
            # The checks compare numbers, so invalid numbers are reported alone.
            yield from list(number_problems(part, path)) or check(part, path)
            return
    for field in info.fields:
        if field.encode_name in value:
            yield from _problems(field.type, value[field.encode_name], f"{path}.{field.encode_name}")
