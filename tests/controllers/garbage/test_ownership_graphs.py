"""Any graph of owners converges to the fixpoint of a plain reference algorithm."""

from dataclasses import dataclass

from build.garbage_world import World, new_world
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.core import ConfigMap
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER
from lattice.kinds.meta.stored_encoding import pack, unpack
from lattice.store.protocol import Key, Put

NAMES = tuple("uvwxyz")


@dataclass(frozen=True)
class Plan:
    owners: dict[str, list[tuple[str, bool]]]  # name -> (owner, does it block); "gone" never was
    rounds: list[list[tuple[str, str]]]  # what is deleted together: (name, how)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    some = st.lists(
        st.tuples(st.sampled_from([*NAMES, "gone"]), st.booleans()),
        max_size=3,
        unique_by=lambda pair: pair[0],
    )
    owners = {name: draw(some) for name in NAMES}
    deed = st.tuples(st.sampled_from(NAMES), st.sampled_from(["background", "foreground", "anew"]))
    return Plan(
        owners,
        draw(st.lists(st.lists(deed, min_size=1, max_size=3, unique_by=lambda pair: pair[0]), max_size=3)),
    )


def survivors(plan: Plan) -> dict[str, list[str]]:
    """The reference algorithm: delete, then remove every object that has lost all its owners until none is
    left to remove. Name -> remaining owners."""
    alive = {name: [owner for owner, _ in owners] for name, owners in plan.owners.items()}
    renewed: set[str] = set()
    _strike(alive)
    for deeds in plan.rounds:
        for name, how in [(name, how) for name, how in deeds if name in alive]:
            del alive[name]
            renewed |= {name} if how == "anew" else set()
        _strike(alive)
    return alive | {f"{name} anew": [] for name in renewed}


def _strike(alive: dict[str, list[str]]) -> None:
    while struck := [
        name for name, owners in alive.items() if owners and not any(owner in alive for owner in owners)
    ]:
        for name in struck:
            del alive[name]
    for name, owners in alive.items():
        alive[name] = [owner for owner in owners if owner in alive]


@given(plan=plans())
@settings(max_examples=3000 if LONG else 60, deadline=None)
async def test_any_graph_matches_reference_fixpoint(plan: Plan) -> None:
    world = await new_world()
    await _build(world, plan.owners)
    async with world.collecting():
        await world.settle()
        for deeds in plan.rounds:
            for name, how in deeds:
                await _do(world, name, how)
            await world.settle()
        left = await world.store.list("configmaps")
    objects = {entry.key.name: unpack(entry.value, 1)["metadata"] for entry in left.entries}
    found = {
        name if metadata["uid"] == f"uid-{name}" else f"{name} anew": [
            owner["name"] for owner in metadata.get("ownerReferences", ())
        ]
        for name, metadata in objects.items()
    }
    assert found == survivors(plan)


async def _build(world: World, graph: dict[str, list[tuple[str, bool]]]) -> None:
    writes = []
    for name, owners in graph.items():
        references = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner,
                "uid": f"uid-{owner}",
                "blockOwnerDeletion": blocks,
            }
            for owner, blocks in owners
        ]
        metadata = {"name": name, "namespace": "a", "uid": f"uid-{name}"} | (
            {"ownerReferences": references} if references else {}
        )
        writes.append(Put(Key("configmaps", "a", name), pack(ConfigMap.resource, {"metadata": metadata}), 0))
    await world.store.commit(writes)


async def _do(world: World, name: str, how: str) -> None:
    what = f"ConfigMap/a/{name}"
    if (obj := await world.get(what)) is None or obj["metadata"]["uid"] != f"uid-{name}":
        return
    await world.delete(what, *([FOREGROUND_FINALIZER] if how == "foreground" else []))
    if how == "anew":
        await world.make(what)
