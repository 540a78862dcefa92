"""Property test of verdicts on edited manifests: removing the listed blockers places the service, removing
anything else does not."""

from collections.abc import Iterable

from build.manifest_edits import Label, ManifestBlocker, manifest_blockers, with_own_policies
from build.property_settings import EXAMPLES, LONG
from build.worlds import worlds
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from lattice.placement.explain.blockers import Blocker
from lattice.placement.explain.verdict import judge
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, converge, plan

LARGE = settings(
    max_examples=EXAMPLES if LONG else EXAMPLES // 8, deadline=None, suppress_health_check=list(HealthCheck)
)


def label(part: Blocker) -> Label:
    """The blocker in the words of a manifest edit."""
    value = getattr(part, "value", "")
    return (part.kind, value, part.source if value else "")


def alone(settled: FleetState, name: str) -> World:
    """The stored world without the other unplaced services, which would compete for freed capacity."""
    others = [world_key(each) for each in settled.unplaced if each != name]
    return settled.resulting_world().with_objects([], others)


def world_key(service: str) -> tuple[str, str, str]:
    namespace, _, name = service.partition("/")
    return ("LatticeService", namespace, name)


def is_placed(world: World, name: str, lifted: Iterable[ManifestBlocker]) -> bool:
    changed = world
    for each in lifted:
        changed = changed.with_objects(each.lift(changed))
    changes = [each for key, each in changed.objects.items() if each is not world.objects.get(key)]
    return name not in plan(world, changes).unplaced


@LARGE
@given(worlds(), st.data())
def test_removing_blockers_from_manifests_places_service(world: World, data: st.DataObject) -> None:
    first = converge(world)
    assume(first.unplaced)
    name = data.draw(st.sampled_from(sorted(first.unplaced)))
    settled = converge(with_own_policies(world, name))
    assume(not any(settled.fleet.assignments.get(each) for each in settled.unplaced if each != name))
    found = judge(settled.unplaced[name], settled.fleet, world.services)
    here, known = alone(settled, name), {each.label: each for each in manifest_blockers(settled.world, name)}
    note(
        f"{name}: {found.kind} {found.reason}, listed {[[str(part) for part in parts] for parts in found.blocker_sets]}"
    )
    singles = {label(parts[0]) for parts in found.blocker_sets if len(parts) == 1}
    if found.blocker_sets:
        listed = [known[label(part)] for part in data.draw(st.sampled_from(found.blocker_sets))]
        assert is_placed(here, name, listed)
        left_out = data.draw(st.sampled_from(listed))
        assert not is_placed(here, name, [each for each in listed if each is not left_out])
    other = data.draw(st.sampled_from(sorted(set(known) - singles)))
    assert not is_placed(here, name, [known[other]])
