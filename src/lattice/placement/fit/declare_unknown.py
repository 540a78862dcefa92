"""Options for changes by the platform team that state what is unknown: the latency between two places."""

from dataclasses import replace
from typing import Any

from lattice.kinds.infrastructure import StaticInfrastructure
from lattice.placement.model.demand import Requirement
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    RejectedCandidate,
    change_at_path,
    single_change,
    with_fields,
    with_spec,
)

# The target of a change of the latency file, which is no stored object.
LATENCY_FILE = "LatencyFile"


def state_latency(candidate: RejectedCandidate, requirement: Requirement, service: str) -> ChangeOption:
    """Return the option to state the latency between the offer and the nearest dependency by name: the largest
    round trip that the requirement allows.

    A data center declares it in `latencyTo`; between two offers of providers the latency file states it.
    """
    fleet, ms = candidate.fleet, requirement.amount
    origin = candidate.offer.place
    target_row = min(set(fleet.replicas.offer_rows(service)), key=lambda row: fleet.offers[row].name)
    target = fleet.offers[target_row]
    data_center, remote_place = candidate.supply_object, target.place.name
    if not isinstance(data_center, StaticInfrastructure):
        data_center = candidate.world.objects.get(("StaticInfrastructure", "", target.owner))
        remote_place = origin.name
    latency = (origin.name, target.place.name, ms)
    if isinstance(data_center, StaticInfrastructure) and (target.is_static or candidate.offer.is_static):

        def rewrite(resource: Any) -> Any:
            network = resource.spec.network
            stated = {**network.latency_to, remote_place: f"{ms}ms"}
            return with_spec(resource, network=with_fields(network, latency_to=stated))

        name = data_center.metadata.name
        sentence = f"declare latencyTo {remote_place} in {name}: it is unknown, and at most {ms} ms fits"
        path = "spec.network.latencyTo"
        change = change_at_path(data_center, "platform", path, sentence, rewrite)
        return single_change(replace(change, latency=latency))
    sentence = (
        f"state the latency between {origin.name} and {target.place.name} in the latency file: it is unknown, and "
        f"at most {ms} ms fits"
    )
    file = (LATENCY_FILE, "", candidate.world.latency_source or "latency.csv")
    line = f"{origin.name},{target.place.name},{ms}"
    return single_change(ObjectChange("platform", file, line, None, ms, sentence, latency=latency))
