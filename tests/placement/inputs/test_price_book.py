"""Tests of prices: their sources, the precedence of sources, and the format of price files."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Invalid
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.quantity import GIB
from lattice.kinds.node_class import LatticeNodeClass, NodeClassSpec, ProviderNodeClass
from lattice.placement.inputs.price_book import Price, PriceBook, price_of
from lattice.placement.inputs.price_catalog import PRICES_AS_OF, listed_prices, listed_size

EMPTY = PriceBook({})
SKYPILOT = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"


def a_priced_class(cost: dict[str, str] | None = None, **types: str) -> LatticeNodeClass:
    spec = NodeClassSpec(
        providers={provider: ProviderNodeClass(instance_type=name) for provider, name in types.items()},
        cost_per_hour={provider: Decimal(dollars) for provider, dollars in (cost or {}).items()},
    )
    return LatticeNodeClass(
        api_version="lattice.dev/v1alpha1",
        kind="LatticeNodeClass",
        metadata=Metadata(name="medium"),
        spec=spec,
    )


def micros_in(book: PriceBook, provider: str, name: str, region: str) -> int | None:
    price = book.list_price(provider, name, region)
    return None if price is None else price.micros


@pytest.mark.parametrize(
    ("node_class", "provider", "price"),
    [
        pytest.param(
            a_priced_class({"aws": "0.15"}, aws="m5.xlarge"),
            "aws",
            Price(150_000, "costPerHour of class medium"),
            id="the class's own price wins over the table",
        ),
        pytest.param(
            a_priced_class({"aws": "0"}, aws="m5.xlarge"),
            "aws",
            Price(0, "costPerHour of class medium"),
            id="a declared 0 is free, not absent",
        ),
        pytest.param(
            a_priced_class({"gcp": "0.15"}, aws="m5.xlarge"),
            "aws",
            Price(192_000, "built-in table", PRICES_AS_OF),
            id="a price on another provider does not count",
        ),
        pytest.param(
            a_priced_class(aws="x9.gigantic"), "aws", None, id="an unlisted type has no known price"
        ),
        pytest.param(
            a_priced_class(aws=""), "aws", None, id="a class without a machine type has no known price"
        ),
        pytest.param(
            a_priced_class(aws="m5.xlarge"),
            "gcp",
            None,
            id="a class that is not available there has no known price",
        ),
    ],
)
def test_price_of_class(node_class: LatticeNodeClass, provider: str, price: Price | None) -> None:
    assert price_of(node_class, provider, "us-east-1", PriceBook.builtin()) == price


@pytest.mark.parametrize(
    ("provider", "name", "region", "micros", "size"),
    [
        pytest.param("aws", "m5.xlarge", "us-east-1", 192_000, (4000, 16 * GIB), id="m5.xlarge in Virginia"),
        pytest.param(
            "aws", "r6i.4xlarge", "us-east-1", 1_008_000, (16000, 128 * GIB), id="a price above a dollar"
        ),
        pytest.param(
            "gcp",
            "e2-standard-4",
            "us-central1",
            134_020,
            (4000, 16 * GIB),
            id="gcp prices have five decimals",
        ),
        pytest.param(
            "azure", "standard_d4s_v5", "EastUS", 192_000, (4000, 16 * GIB), id="case does not matter"
        ),
        pytest.param(
            "aws",
            "c6i.large",
            "me-central-1",
            None,
            (2000, 4 * GIB),
            id="a type without a price in one region",
        ),
        pytest.param(
            "aws", "m5.xlarge", "mars-1", None, (4000, 16 * GIB), id="a region that is not in the table"
        ),
        pytest.param(
            "proxmox", "m5.xlarge", "us-east-1", None, None, id="a provider that is not in the table"
        ),
    ],
)
def test_builtin_price_table(
    provider: str, name: str, region: str, micros: int | None, size: tuple[int, int] | None
) -> None:
    assert micros_in(PriceBook.builtin(), provider, name, region) == micros
    assert listed_size(provider, name) == size


def test_builtin_price_table_is_complete() -> None:
    rows = list(listed_prices())
    assert len({row[:3] for row in rows}) == len(rows) == len(PriceBook.builtin().prices)
    for provider, name, _, micros in rows:
        size = listed_size(provider, name)
        assert size is not None
        assert 8_000 < micros * 1000 // size[0] < 100_000, f"{name}: a vCPU costs one to ten cents an hour"


OURS = "provider,region,instance_type,usd_per_hour\n"


@pytest.mark.parametrize(
    ("text", "source", "provider", "micros"),
    [
        pytest.param(
            OURS + "aws,us-east-1,m5.xlarge,0.15\n", "prices.csv", "", 150_000, id="our own columns"
        ),
        pytest.param(
            "usd_per_hour,Instance_Type,REGION,provider\n0.15,m5.xlarge,us-east-1,AWS\n",
            "prices.csv",
            "",
            150_000,
            id="any order of columns, any case",
        ),
        pytest.param(
            "region,instance_type,vcpus,memory_gib,usd_per_hour\nus-east-1,m5.xlarge,4,16,0.15\n",
            "prices.csv",
            "aws",
            150_000,
            id="the provider is passed",
        ),
        pytest.param(
            "region,instance_type,usd_per_hour\nus-east-1,m5.xlarge,.15\n",
            "dir/aws_on_demand.csv",
            "",
            150_000,
            id="the provider is in the file's name",
        ),
        pytest.param(
            OURS + ",us-east-1,m5.xlarge,1.5e-1\n",
            "aws.csv",
            "",
            150_000,
            id="an empty provider cell falls back to the file's name",
        ),
        pytest.param(
            "\ufeff" + OURS.replace("\n", "\r\n") + '\r\n"aws", us-east-1 ,m5.xlarge,"0.15"\r\n',
            "p.csv",
            "",
            150_000,
            id="byte order mark, CRLF, blank lines, quotes, spaces",
        ),
        pytest.param(
            OURS + "aws,us-east-1,m5.xlarge,0.15\naws,us-east-1,M5.xlarge,0.150\n",
            "p.csv",
            "",
            150_000,
            id="the same price twice is no contradiction",
        ),
        pytest.param(
            OURS + "aws,us-east-1,m5.xlarge,0.1234565\n",
            "p.csv",
            "",
            123_457,
            id="half a micro-dollar rounds up",
        ),
        pytest.param(
            OURS + "aws,us-east-1,m5.xlarge,0.12345649999999999999999999999999999999\n",
            "p.csv",
            "",
            123_456,
            id="more digits than a double has, rounded once",
        ),
        pytest.param(
            OURS + "aws,us-west-2,m5.xlarge,0.15\n",
            "p.csv",
            "",
            192_000,
            id="rows that are not in the file stay as they were",
        ),
        pytest.param(OURS, "p.csv", "", 192_000, id="a file without rows changes nothing"),
        pytest.param(
            SKYPILOT
            + "m5.xlarge,,,4,16,,0.16,0.07,us-east-1,us-east-1a\nm5.xlarge,,,4,16,,0.15,0.07,us-east-1,us-east-1b\n",
            "vms.csv",
            "aws",
            150_000,
            id="SkyPilot's columns, the cheapest zone",
        ),
        pytest.param(
            SKYPILOT + "m5.xlarge,,,4,16,,0.15,,us-east-1,us-east-1a\n",
            "catalogs/v8/aws/vms.csv",
            "",
            150_000,
            id="SkyPilot's folders name the provider",
        ),
        pytest.param(
            SKYPILOT + "m5.xlarge,,,4,16,,,0.07,us-east-1,us-east-1a\n",
            "vms.csv",
            "aws",
            192_000,
            id="SkyPilot's spot-only rows say nothing",
        ),
        pytest.param(
            SKYPILOT + ",T4,1,,,,0.35,0.1,us-east-1,us-east-1a\n",
            "vms.csv",
            "aws",
            192_000,
            id="SkyPilot's rows of bare accelerators say nothing",
        ),
    ],
)
def test_csv_overrides_builtin_table(text: str, source: str, provider: str, micros: int) -> None:
    book = PriceBook.builtin().with_csv(text, source, "2026-01-31", provider=provider)
    price = book.list_price("aws", "m5.xlarge", "us-east-1")
    assert price in (Price(micros, source, "2026-01-31"), Price(micros, "built-in table", PRICES_AS_OF))
    assert micros_in(PriceBook.builtin(), "aws", "m5.xlarge", "us-east-1") == 192_000, (
        "the book below must not change"
    )


def test_skypilot_gcp_accelerator_machines_stay_unpriced() -> None:
    text = (
        SKYPILOT
        + "a2-highgpu-1g,,,12,85,,0.739,0.37,us-central1,us-central1-a\nc4a-standard-4,,,4,16,,0.18,0.07,us-central1,us-central1-a\n"
    )
    book = EMPTY.with_csv(text, "vms.csv", provider="gcp")
    assert micros_in(book, "gcp", "a2-highgpu-1g", "us-central1") is None
    assert micros_in(book, "gcp", "c4a-standard-4", "us-central1") == 180_000


def test_last_csv_wins() -> None:
    book = EMPTY.with_csv(OURS + "aws,r,m,1\naws,r,n,1\n", "one.csv").with_csv(
        OURS + "aws,r,m,2\n", "two.csv"
    )
    assert book.list_price("aws", "m", "r") == Price(2_000_000, "two.csv")
    assert book.list_price("aws", "n", "r") == Price(1_000_000, "one.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "",
            "prices.csv line 1: has no column region and no column instance_type and no column usd_per_hour",
            id="an empty file",
        ),
        pytest.param(
            "provider,region,instance_type\n",
            "prices.csv line 1: has no column usd_per_hour",
            id="our form without a price",
        ),
        pytest.param(
            "InstanceType,Price\n",
            "prices.csv line 1: has no column region",
            id="SkyPilot's form without a region",
        ),
        pytest.param(
            "region,region,instance_type,usd_per_hour\n",
            'prices.csv line 1: has column "region" more than once',
            id="a column twice",
        ),
        pytest.param(
            OURS + "aws,r,m,1\naws,r,n,-0.1\n",
            'prices.csv line 3: usd_per_hour must be a number from 0 to 1,000,000,000, got "-0.1"',
            id="a negative price",
        ),
        pytest.param(
            OURS + "aws,r,m,NaN\n",
            'prices.csv line 2: usd_per_hour must be a number from 0 to 1,000,000,000, got "NaN"',
            id="not a number",
        ),
        pytest.param(OURS + "aws,r,m,inf\n", 'got "inf"', id="infinite"),
        pytest.param(OURS + "aws,r,m,1e999\n", 'got "1e999"', id="finite, but beyond all money"),
        pytest.param(OURS + "aws,r,m,1e999999999\n", 'got "1e999999999"', id="an exponent made to hurt"),
        pytest.param(OURS + "aws,r,m,$1\n", 'got "$1"', id="a currency sign"),
        pytest.param(OURS + "aws,r,m,1_0\n", 'got "1_0"', id="digits grouped as in Python"),
        pytest.param(OURS + "aws,r,m,٣\n", 'got "٣"', id="digits of another script"),
        pytest.param(
            OURS + "aws,r,m,\n",
            'line 2: usd_per_hour must be a number from 0 to 1,000,000,000, got ""',
            id="no price",
        ),
        pytest.param(OURS + "aws,r,m\n", 'got ""', id="a line that is too short"),
        pytest.param(
            OURS + "aws,r,m,1,2\n",
            "prices.csv line 2: has 5 cells, but the header has 4",
            id="a line that is too long",
        ),
        pytest.param(OURS + "aws,,m,1\n", "prices.csv line 2: region is empty", id="an empty region"),
        pytest.param(
            SKYPILOT + "m5.large,,,2,8,,0.1,,,zone\n",
            "prices.csv line 2: region is empty",
            id="an empty region in SkyPilot's form",
        ),
        pytest.param(
            SKYPILOT + "m5.large,,,2,8,,cheap,,r,zone\n",
            'prices.csv line 2: price must be a number from 0 to 1,000,000,000, got "cheap"',
            id="a word for a price",
        ),
        pytest.param(
            OURS + "aws,r,,1\n", "prices.csv line 2: instance_type is empty", id="an empty machine type"
        ),
        pytest.param(
            OURS + "aws,r,m,1\n\naws,R,m,2\n",
            "prices.csv line 4: gives another price than prices.csv line 2 for the same machine",
            id="two prices of one machine",
        ),
        pytest.param(
            "region,instance_type,usd_per_hour\nr,m,1\n",
            "prices.csv line 2: does not say which provider the price is of",
            id="no provider anywhere",
        ),
        pytest.param(OURS + 'aws,r,"m,1\n', "prices.csv line 2: is not CSV", id="quotes that do not close"),
    ],
)
def test_invalid_price_csv_is_rejected_with_line(text: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        EMPTY.with_csv(text, "prices.csv", provider="aws" if text.startswith(SKYPILOT) else "")
    assert message in str(error.value)
    assert "\n  fix: " in str(error.value)


def test_scale_applies_to_listed_and_declared_prices() -> None:
    dearer = PriceBook.builtin().scaled(1_200_000)
    assert dearer.list_price("aws", "m5.xlarge", "us-east-1") == Price(
        230_400, "built-in table × 1.2", PRICES_AS_OF
    )
    assert price_of(a_priced_class({"aws": "0.0000125"}), "aws", "anywhere", dearer) == Price(
        16, "costPerHour of class medium × 1.2"
    )
    assert dearer.with_csv(OURS + "aws,r,m,1\n", "p.csv").list_price("aws", "m", "r") == Price(
        1_200_000, "p.csv × 1.2"
    )


@pytest.mark.parametrize(
    "millionths",
    [
        pytest.param(-1, id="prices do not turn negative"),
        pytest.param(1_000_000_001, id="prices scale at most a thousandfold"),
    ],
)
def test_out_of_range_scale_is_rejected(millionths: int) -> None:
    with pytest.raises(Invalid, match="prices can be multiplied by 0 to 1000"):
        EMPTY.scaled(millionths)


@given(micros=st.integers(0, 10**15), millionths=st.integers(0, 10**9))
def test_scaling_rounds_half_up(micros: int, millionths: int) -> None:
    scaled = EMPTY.scaled(millionths).scale_price(Price(micros, "test")).micros
    assert scaled == int(
        (Decimal(micros) * Decimal(millionths) / 10**6).quantize(Decimal(1), rounding=ROUND_HALF_UP)
    )
    assert scaled < 1 << 63


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["aws", "gcp"]),
            st.sampled_from("rst"),
            st.sampled_from("mn"),
            st.integers(0, 10**12),
        ),
        unique_by=lambda row: row[:3],
    )
)
def test_csv_row_order_is_irrelevant(
    rows: list[tuple[str, str, str, int]],
) -> None:
    lines = [
        f"{provider},{region},{name},{Decimal(micros).scaleb(-6):f}"
        for provider, region, name, micros in rows
    ]
    book = EMPTY.with_csv(OURS + "\n".join(lines), "p.csv")
    assert book == EMPTY.with_csv(OURS + "\n".join(reversed(lines)), "p.csv")
    assert [micros_in(book, provider, name, region) for provider, region, name, _ in rows] == [
        micros for *_, micros in rows
    ]
