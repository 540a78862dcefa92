"""fit and the verdict name affinity terms that keep a service unplaced, and what a gang needs to be placed whole."""

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


def test_fit_places_the_gang_of_a_service_whole() -> None:
    group = {"name": "crew", "minMember": 2}
    services = [a_service(name, cores=4, group=group) for name in ("a", "b")]
    world = a_world(a_pool(capacity={"maxNodes": 1}), *services)
    for name in ("default/a", "default/b"):
        sentences = [suggestion.sentence for suggestion in fit(world, name, world.build_fleet())]
        assert "raise maxNodes of p1 by 1 to 2" in sentences
