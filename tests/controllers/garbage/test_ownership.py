"""Ownership decisions on plain values."""

from collections.abc import Callable, Iterable

import pytest

from lattice.controllers.garbage.ownership import (
    GarbageObject,
    Owner,
    OwnershipDecision,
    is_blocked,
    judge_ownership,
)
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from lattice.store.protocol import Key


def item(name: str, *owners: Owner, finalizers: tuple[str, ...] = (), dying: bool = False) -> GarbageObject:
    return GarbageObject(Key("configmaps", "a", name), f"uid-{name}", owners, finalizers, dying)


def owner(name: str, *, uid: str = "", blocks: bool = True) -> Owner:
    return Owner(Key("configmaps", "a", name), uid or f"uid-{name}", blocks)


STRANGER = Owner(None, "uid-stranger", True)
LEAVING = {"finalizers": (FOREGROUND_FINALIZER,), "dying": True}


@pytest.mark.parametrize(
    ("owners", "present", "decision"),
    [
        pytest.param([], [], OwnershipDecision(), id="an object without owners stays"),
        pytest.param(
            [owner("x")], [item("x")], OwnershipDecision(), id="an object whose owner is there stays"
        ),
        pytest.param(
            [owner("x")],
            [],
            OwnershipDecision(remove=True),
            id="an object whose only owner is gone is deleted",
        ),
        pytest.param(
            [owner("x", uid="older")],
            [item("x")],
            OwnershipDecision(remove=True),
            id="a recreated owner is another owner",
        ),
        pytest.param(
            [owner("x"), owner("y")],
            [item("x")],
            OwnershipDecision(stale_owners=frozenset({"uid-y"})),
            id="one present owner is enough, the missing one is removed",
        ),
        pytest.param([STRANGER], [], OwnershipDecision(), id="owners of unknown kinds are left alone"),
        pytest.param(
            [STRANGER, owner("y")],
            [],
            OwnershipDecision(stale_owners=frozenset({"uid-y"})),
            id="an owner of unknown kind keeps the object",
        ),
        pytest.param(
            [owner("x")],
            [item("x", **LEAVING)],
            OwnershipDecision(remove=True, is_awaited=True),
            id="an owner in foreground deletion counts as gone",
        ),
        pytest.param(
            [owner("x")],
            [item("x", dying=True, finalizers=("a/b",))],
            OwnershipDecision(),
            id="an owner held by others is still there",
        ),
        pytest.param(
            [owner("x")],
            [item("x", dying=True, finalizers=(ORPHAN_FINALIZER,))],
            OwnershipDecision(),
            id="an owner that orphans is still there",
        ),
    ],
)
def test_owner_references_decide_collection(
    owners: list[Owner], present: list[GarbageObject], decision: OwnershipDecision
) -> None:
    assert judge_ownership(item("me", *owners), {each.key: each for each in present}.get) == decision


def test_terminating_object_is_not_collected_again() -> None:
    assert (
        judge_ownership(item("me", owner("x"), dying=True, finalizers=("a/b",)), lambda _: None)
        == OwnershipDecision()
    )


@pytest.mark.parametrize(
    ("others", "blocked"),
    [
        pytest.param([], False, id="nothing depends on it"),
        pytest.param([item("d", owner("me"))], True, id="a blocking dependent blocks"),
        pytest.param(
            [item("d", owner("me", blocks=False))], False, id="a non-blocking dependent does not block"
        ),
        pytest.param(
            [item("d", owner("me"), **LEAVING), item("e", owner("d"))],
            True,
            id="a dependent in foreground deletion blocks",
        ),
        pytest.param(
            [item("d", owner("me"), owner("e"), **LEAVING), item("e", owner("d"), **LEAVING)],
            True,
            id="others in a cycle",
        ),
    ],
)
def test_blocking_dependents(others: list[GarbageObject], blocked: bool) -> None:
    assert is_blocked(item("me", **LEAVING), _dependents([*others])) is blocked


def test_cycle_of_terminating_objects_does_not_block() -> None:
    first, second, third = (
        item("a", owner("c"), **LEAVING),
        item("b", owner("a"), **LEAVING),
        item("c", owner("b"), **LEAVING),
    )
    assert not is_blocked(first, _dependents([first, second, third]))


def test_self_owned_object_does_not_block_itself() -> None:
    itself = item("a", owner("a"), **LEAVING)
    assert not is_blocked(itself, _dependents([itself]))


def _dependents(items: Iterable[GarbageObject]) -> Callable[[str], list[GarbageObject]]:
    everything = list(items)
    return lambda uid: [each for each in everything if any(o.uid == uid for o in each.owners)]
