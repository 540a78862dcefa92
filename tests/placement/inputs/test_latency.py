"""Tests of round-trip times: the precedence of their sources, and a matrix that equals pairwise queries."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Invalid
from lattice.placement.inputs.latency import UNKNOWN_RTT_MS, Latencies, Place, Rtt
from lattice.placement.inputs.region_coordinates import site_of

EAST = Place("us-east", "aws", "us-east-1", "us-east-1a")
EAST_TOO = Place("batch", "aws", "us-east-1", "us-east-1a")
EAST_B = Place("cloud/us-east-1", "aws", "us-east-1")
IRELAND = Place("eu-west", "aws", "eu-west-1")
AZURE = Place("azure/eastus", "azure", "eastus")
MOON = Place("moon", "aws", "moon-1")
DC = Place("dc-east", "vsphere", "us-east", "zone-a", "us-east-dc1")
DC_TWO = Place("dc-east-2", "proxmox", "us-east", "zone-b", "us-east-dc2")
DC_HALL = Place("dc-east-hall-2", "proxmox", "us-east", "zone-b", "us-east-dc1")
DC_IN_AWS_REGION = Place("colo", "vsphere", "us-east-1", "", "ashburn-colo")
PLACES = (EAST, EAST_TOO, EAST_B, IRELAND, AZURE, MOON, DC, DC_TWO, DC_HALL, DC_IN_AWS_REGION)


@pytest.mark.parametrize(
    ("a", "b", "rtt"),
    [
        pytest.param(MOON, MOON, Rtt(1, "same place"), id="a place is near itself, wherever it is"),
        pytest.param(EAST, EAST_TOO, Rtt(1, "same zone"), id="two pools in one zone"),
        pytest.param(
            EAST, EAST_B, Rtt(2, "same region"), id="a pool and a cloud region that name the same region"
        ),
        pytest.param(
            DC, DC_TWO, Rtt(2, "same region"), id="data centers of one logical region, with any provider"
        ),
        pytest.param(DC, DC_HALL, Rtt(1, "same location"), id="two halls of one location"),
        pytest.param(EAST, IRELAND, Rtt(90, "estimated over 5,462 km"), id="far regions are estimated"),
        pytest.param(EAST, AZURE, Rtt(4, "estimated over 67 km"), id="clouds side by side are estimated too"),
        pytest.param(
            DC_IN_AWS_REGION,
            EAST,
            Rtt(2, "estimated over 0 km"),
            id="a data center whose region is called like a cloud's",
        ),
        pytest.param(DC, EAST, None, id="a logical region is not on the map"),
        pytest.param(MOON, EAST, None, id="an unknown region is not on the map"),
        pytest.param(
            Place("a", "linode", "us-east"),
            Place("b", "ibm", "us-east"),
            None,
            id="the same name at two clouds is not the same region",
        ),
        pytest.param(
            Place("a", "proxmox", ""), Place("b", "proxmox", ""), None, id="no region is not a shared region"
        ),
    ],
)
def test_rtt_without_declarations(a: Place, b: Place, rtt: Rtt | None) -> None:
    nothing = Latencies.of(PLACES, {})
    assert nothing.between(a, b) == rtt
    assert nothing.between(b, a) == rtt


@pytest.mark.parametrize(
    ("declared", "csv", "there", "back"),
    [
        pytest.param(
            {"dc-east": {"aws-us-east-1": 3}},
            "",
            Rtt(3, "declared by dc-east"),
            Rtt(3, "declared by dc-east"),
            id="one declaration holds both ways",
        ),
        pytest.param(
            {"dc-east": {"us-east": 3}, "us-east": {"us-east-dc1": 4}},
            "",
            Rtt(3, "declared by dc-east"),
            Rtt(4, "declared by us-east"),
            id="each way has its own if both are declared",
        ),
        pytest.param(
            {"dc-east": {"aws-us-east-1": 3, "us-east": 5}},
            "",
            Rtt(5, "declared by dc-east"),
            Rtt(5, "declared by dc-east"),
            id="an offer's own name is more particular than its region",
        ),
        pytest.param(
            {"dc-east": {"us-east-1": 3}}, "", None, None, id="a plain region is no key of a declaration"
        ),
        pytest.param(
            {"dc-east": {"aws-us-east-1": 3}},
            "dc-east,us-east,9",
            Rtt(3, "declared by dc-east"),
            Rtt(3, "declared by dc-east"),
            id="a declaration beats the file",
        ),
        pytest.param(
            {},
            "us-east-dc1,aws-us-east-1,7",
            Rtt(7, "rtt.csv"),
            Rtt(7, "rtt.csv"),
            id="the file by location and cloud region",
        ),
        pytest.param(
            {},
            "us-east-1,dc-east,7",
            Rtt(7, "rtt.csv"),
            Rtt(7, "rtt.csv"),
            id="the file by plain region, the other way round",
        ),
        pytest.param(
            {},
            "dc-east,us-east-1,7\nus-east,us-east-dc1,8",
            Rtt(7, "rtt.csv"),
            Rtt(8, "rtt.csv"),
            id="the file may state both ways",
        ),
        pytest.param(
            {},
            "us-east-dc1,us-east-1,7\ndc-east,us-east,8",
            Rtt(8, "rtt.csv"),
            Rtt(8, "rtt.csv"),
            id="the most particular line of the file",
        ),
        pytest.param(
            {},
            "dc-east,us-east,6.01",
            Rtt(7, "rtt.csv"),
            Rtt(7, "rtt.csv"),
            id="fractions of a millisecond round up",
        ),
        pytest.param({"dc-east": {"": 1}}, "", None, None, id="an empty key matches no place"),
    ],
)
def test_rtt_source_precedence(
    declared: dict[str, dict[str, int]], csv: str, there: Rtt | None, back: Rtt | None
) -> None:
    known = Latencies.of(PLACES, declared, f"from,to,ms\n{csv}\n", "rtt.csv")
    assert known.between(DC, EAST) == there
    assert known.between(EAST, DC) == back


def test_stated_rtt_overrides_derived_rtt() -> None:
    known = Latencies.of(
        PLACES,
        {"dc-east": {"dc-east-2": 9}},
        "from,to,ms\nus-east-1,us-east-1,5\nus-east-1,eu-west-1,70\n",
        "rtt.csv",
    )
    assert known.between(DC_TWO, DC) == Rtt(9, "declared by dc-east")
    assert known.between(EAST, EAST_TOO) == Rtt(5, "rtt.csv")
    assert known.between(IRELAND, EAST) == Rtt(70, "rtt.csv")


def test_unresolved_declarations_are_listed() -> None:
    known = Latencies.of(PLACES, {"dc-east": {"us-west-dc1": 65, "us-east-dc2": 2, "aws-us-east-1": 2}})
    assert known.unresolved == (("dc-east", "us-west-dc1"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("from,to\na,b", "rtt.csv line 1: has no column ms", id="no column for the time"),
        pytest.param(
            "from,to,ms\na,b,-1",
            'rtt.csv line 2: ms must be a number from 0 to 86,400,000, got "-1"',
            id="before it was sent",
        ),
        pytest.param("from,to,ms\na,b,nan", 'got "nan"', id="not a number"),
        pytest.param("from,to,ms\na,b,65ms", 'got "65ms"', id="a unit in the cell"),
        pytest.param("from,to,ms\na,b,1e9", 'got "1e9"', id="longer than a day"),
        pytest.param("from,to,ms\n,b,1", "rtt.csv line 2: from is empty", id="from nowhere"),
        pytest.param(
            "from,to,ms\na,b,1\nb,a,2\na,b,3",
            "rtt.csv line 4: gives 3 ms from a to b, a line above 1",
            id="two times for one way",
        ),
    ],
)
def test_invalid_latency_csv_is_rejected_with_line(text: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        Latencies.of(PLACES, {}, text, "rtt.csv")
    assert message in str(error.value)


names = st.sampled_from(["a", "b", "us-east-1", "aws-us-east-1", "dc1"])
places = st.builds(
    Place,
    name=st.sampled_from(["a", "b", "c", "d", "us-east-1", "aws-us-east-1"]),
    provider=st.sampled_from(["aws", "gcp", "vsphere", "proxmox", ""]),
    region=st.sampled_from(["us-east-1", "us-east1", "eu-west-1", "us-east", ""]),
    zone=st.sampled_from(["x", "y", ""]),
    location=st.sampled_from(["dc1", "dc2", "", ""]),
)
tables = st.dictionaries(names, st.dictionaries(names, st.integers(0, 300), max_size=4), max_size=4)


@given(worlds=st.lists(places, max_size=7), declared=tables, measured=tables)
def test_matrix_equals_pairwise_queries(
    worlds: list[Place], declared: dict[str, dict[str, int]], measured: dict[str, dict[str, int]]
) -> None:
    lines = [f"{by},{to},{ms}" for by, row in measured.items() for to, ms in row.items()]
    known = Latencies.of(worlds, declared, "\n".join(["from,to,ms", *lines]), "rtt.csv")
    slow = [[rtt.ms if (rtt := known.between(a, b)) else UNKNOWN_RTT_MS for b in worlds] for a in worlds]
    assert known.matrix(worlds).tolist() == slow
    assert [known.row(a, worlds).tolist() for a in worlds] == slow


@given(a=places, b=places, declared=tables)
def test_rtt_is_symmetric_unless_both_ways_declared(
    a: Place, b: Place, declared: dict[str, dict[str, int]]
) -> None:
    one_sided = {by: row for by, row in declared.items() if by == a.name}
    known = Latencies.of((a, b), one_sided)
    assert known.between(a, b) == known.between(b, a)


@given(
    st.lists(
        st.sampled_from(
            [
                ("aws", "us-east-1"),
                ("gcp", "asia-south1"),
                ("azure", "brazilsouth"),
                ("aws", "af-south-1"),
                ("gcp", "europe-north1"),
            ]
        ),
        min_size=3,
        max_size=3,
        unique=True,
    )
)
def test_estimates_satisfy_triangle_inequality(stops: list[tuple[str, str]]) -> None:
    a, b, c = (Place(region, provider, region) for provider, region in stops)
    ms = Latencies.of((), {}).matrix([a, b, c])
    assert ms[0, 2] <= ms[0, 1] + ms[1, 2]


def test_matrix_of_no_places_is_empty() -> None:
    nothing = Latencies.of((), {"a": {"b": 1}}, "from,to,ms\na,b,1\n")
    assert nothing.matrix([]).shape == (0, 0)
    assert nothing.row(EAST, []).shape == (0,)
    assert nothing.matrix([EAST]).dtype == np.int64


@pytest.mark.parametrize(
    ("provider", "region", "city"),
    [
        pytest.param("aws", "eu-central-1", "Frankfurt", id="aws"),
        pytest.param("gcp", "us-central1", "Council Bluffs", id="gcp"),
        pytest.param("Azure", "WestEurope", "Amsterdam", id="azure, in any case"),
        pytest.param("aws", "westeurope", None, id="not at another cloud"),
        pytest.param("vsphere", "westeurope", "Amsterdam", id="a data center that uses a cloud's name"),
        pytest.param("vsphere", "basement", None, id="a name of one's own"),
    ],
)
def test_site_of(provider: str, region: str, city: str | None) -> None:
    site = site_of(provider, region)
    assert (site.city if site else None) == city


def test_matrix_of_1000_places_is_fast() -> None:
    regions = [
        ("aws", "us-east-1"),
        ("aws", "eu-west-1"),
        ("gcp", "us-east1"),
        ("azure", "westus2"),
        ("aws", "ap-south-1"),
    ]
    clouds = [Place(f"pool-{i}", *regions[i % 5], f"z{i % 3}") for i in range(700)]
    owned = [Place(f"dc-{i}", "vsphere", f"metro-{i % 40}", "", f"hall-{i}") for i in range(300)]
    declared = {f"dc-{i}": {"aws-us-east-1": 9, f"hall-{(i + 1) % 300}": 3, "pool-7": 5} for i in range(300)}
    csv = "from,to,ms\n" + "\n".join(f"{p}-{r},metro-{i},{i + 5}" for p, r in regions for i in range(40))
    known = Latencies.of([*clouds, *owned], declared, csv)
    start = time.perf_counter()
    matrix = known.matrix([*clouds, *owned])
    assert time.perf_counter() - start < 2, "about 0.05 s on one core; the rest is for busy machines"
    assert matrix.shape == (1000, 1000)
