"""A service with the maximum number of replicas delays no other: all are placed in one round, with few fleet
models built."""

from typing import Any

import pytest
from build.service_world import running_fleet
from build.worlds import a_class, a_pool, a_service

from lattice.controllers.services.placement import FLEET_KEY
from lattice.engine import decide as engine
from lattice.kinds.service import LatticeService
from lattice.placement.greedy import incremental as series

MOST = 100_000  # replicas that a service may have
OTHERS = 20
LOOKS = (
    10 * OTHERS
)  # at the whole fleet, for all of them together: each costs milliseconds where there are thousands of pools


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("limits", "placed"),
    [
        pytest.param({}, MOST, id="all of it fits"),
        pytest.param({"capacity": {"maxNodes": 300}}, 12_000, id="its pool is full before"),
        pytest.param(
            {"budget": 5000}, 1320, id="its budget is used up before"
        ),  # 744 hours of January at $0.20 for 40 of them
    ],
)
async def test_very_large_service_does_not_delay_others(
    monkeypatch: Any, limits: dict[str, Any], placed: int
) -> None:
    looked = [0]

    def counted(*asked: Any) -> Any:
        looked[0] += 1
        return engine.decide(*asked)

    monkeypatch.setattr(series, "decide", counted)
    large = a_service(
        "aaa", cores=0.1, memory=0.1, replicas=MOST, priority=1, pools={"matchLabels": {"for": "large"}}
    )
    others = [a_service(f"web-{number:02}", replicas=2) for number in range(OTHERS)]
    pools = a_pool("p1", labels={"for": "large"}, **limits), a_pool("p2", region="p2-1")

    async with running_fleet(a_class(), *pools, large, *others) as fleet:
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        found = {
            service.metadata.name: service.status.placements
            for service in fleet.context.cache(LatticeService).objects()
        }
        counts = {
            name: sum(placement.replicas or 0 for placement in placements)
            for name, placements in found.items()
        }
        assert counts.pop("aaa") == placed
        assert set(counts.values()) == {2}
        assert len(counts) == OTHERS
    assert OTHERS <= looked[0] <= LOOKS
