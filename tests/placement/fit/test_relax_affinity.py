"""fit and the verdict name affinity terms that keep a service unplaced."""

from build.affinity import apart, near
from build.worlds import a_pool, a_service, a_world, arranged

from lattice.placement.explain.verdict import judge
from lattice.placement.fit.fit import fit
from lattice.placement.greedy.place import place


def test_fit_proposes_to_drop_the_anti_affinity_that_blocks() -> None:
    world = a_world(a_pool(), a_service("a"), a_service("b", affinity=apart("a", key="region")))
    fleet = arranged(world, "default/b")
    verdict = judge(place(world.demands["default/b"], fleet), fleet, world.services)
    assert (verdict.kind, verdict.waits) == ("NotNow", ("service a to leave a region",))
    assert "1 with service a in the same region" in verdict.reason
    sentences = [suggestion.sentence for suggestion in fit(world, "default/b", fleet)]
    assert "allow service a in the same region" in sentences


def test_service_near_an_undefined_service_waits_for_it() -> None:
    world = a_world(a_pool(), a_service("b", affinity=near("a", "zone")))
    fleet = world.build_fleet()
    verdict = judge(place(world.demands["default/b"], fleet), fleet, world.services)
    assert (verdict.kind, verdict.waits) == ("NotNow", ("service a, which is not defined",))
    assert "a is not defined" in verdict.reason
