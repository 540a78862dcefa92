"""Quantities are parsed and formatted exactly; invalid ones are rejected with a message."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Invalid
from lattice.kinds.meta import quantity as q
from lattice.placement.inputs.ledger_math import rate_per_30_days

counts = st.integers(min_value=0, max_value=q.MAX_INT64)


@pytest.mark.parametrize(
    ("parse", "text", "amount"),
    [
        pytest.param(q.parse_cores, "500m", 500, id="milli-cores stay as they are"),
        pytest.param(q.parse_cores, "2", 2000, id="whole cores are a thousand each"),
        pytest.param(q.parse_cores, 4, 4000, id="a plain integer is cores"),
        pytest.param(q.parse_cores, 0.1, 100, id="a float counts by its digits, not by its bits"),
        pytest.param(q.parse_cores, "0.0001", 1, id="less than a milli-core rounds up"),
        pytest.param(q.parse_cores, Decimal("1.5"), 1500, id="decimals of manifests are cores"),
        pytest.param(q.parse_bytes, "16Gi", 16 << 30, id="Gi is binary"),
        pytest.param(q.parse_bytes, "16G", 16 * 10**9, id="G is decimal"),
        pytest.param(q.parse_bytes, "3200Gi", 3200 << 30, id="the seed's data centre memory"),
        pytest.param(q.parse_bytes, "500Ti", 500 << 40, id="the seed's data centre storage"),
        pytest.param(q.parse_bytes, "1.5Ki", 1536, id="fractions of a unit are fine"),
        pytest.param(q.parse_bytes, "12e6", 12_000_000, id="exponents are Kubernetes' as well"),
        pytest.param(q.parse_docker_bytes, "4g", 4 << 30, id="docker's g is binary"),
        pytest.param(q.parse_docker_bytes, "512M", 512 << 20, id="docker's units know no case"),
        pytest.param(q.parse_docker_bytes, "1GiB", 1 << 30, id="docker's long units"),
        pytest.param(q.parse_bits, "10Gbps", 10**10, id="bandwidth is decimal"),
        pytest.param(q.parse_millis, "65ms", 65, id="the seed's latency"),
        pytest.param(q.parse_millis, "1.5h", 5_400_000, id="fractions of an hour"),
        pytest.param(q.parse_millis, "1h30m", 5_400_000, id="several units add up"),
        pytest.param(q.parse_millis, "0", 0, id="zero needs no unit"),
        pytest.param(q.parse_millis, "10us", 1, id="less than a millisecond rounds up"),
        pytest.param(q.parse_seconds, "90s", 90, id="seconds"),
        pytest.param(q.parse_seconds, "1500ms", 2, id="parts of a second round up"),
        pytest.param(q.dollars_to_micros, Decimal("0.192"), 192_000, id="the seed's price is exact"),
        pytest.param(q.dollars_to_micros, Decimal("0.0000005"), 1, id="half a micro-dollar rounds up"),
        pytest.param(q.dollars_to_micros, Decimal("0.00000049"), 0, id="less than half rounds down"),
        pytest.param(q.gib_to_bytes, Decimal("0.5"), 512 << 20, id="half a GiB"),
        pytest.param(q.parse_count, "4", 4, id="extended resources are counted"),
    ],
)
def test_quantity_parses(parse, text, amount):
    assert parse(text) == amount


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        pytest.param(
            q.parse_cores,
            "-1",
            'must be 0 or more, such as 2, "0.5" or "500m", got "-1"',
            id="negative cores",
        ),
        pytest.param(q.parse_cores, "NaN", 'got "NaN"', id="not a number"),
        pytest.param(
            q.parse_cores,
            Decimal("Infinity"),
            "must be a number from 0 to 1,000,000,000, got Infinity",
            id="infinity",
        ),
        pytest.param(q.parse_cores, float("inf"), 'got "inf"', id="a float that is infinite"),
        pytest.param(
            q.parse_bytes,
            "4g",
            'such as "512Mi", "16Gi" or "1.5Ti", got "4g"',
            id="docker's unit where Kubernetes' is due",
        ),
        pytest.param(q.parse_bytes, "100m", 'got "100m"', id="thousandths of a byte"),
        pytest.param(q.parse_bytes, "1e999", 'got "1e999"', id="an exponent out of this world"),
        pytest.param(q.parse_bytes, "16Ei", "is more than the maximum (2^63 - 1)", id="more than an int64"),
        pytest.param(
            q.parse_cores,
            "9" * 20,
            "is more than the maximum (2^63 - 1), got",
            id="more digits than an int64 has",
        ),
        pytest.param(
            q.parse_bytes,
            "64MiB",
            'must be a quantity such as "512Mi", "16Gi" or "1.5Ti", got "64MiB"',
            id="a unit that there is not",
        ),
        pytest.param(
            q.parse_cores,
            "1" + "0" * 19 + "m",
            "is more than the maximum (2^63 - 1)",
            id="more digits, with a unit",
        ),
        pytest.param(
            q.parse_cores, "9" * 20 + "x", "must be a quantity", id="more digits, of a unit that there is not"
        ),
        pytest.param(q.parse_bytes, "١٦Gi", 'got "١٦Gi"', id="digits of other scripts"),
        pytest.param(q.parse_bytes, "", 'got ""', id="nothing at all"),
        pytest.param(q.parse_bytes, "9" * 5000, "...", id="a long value is shown short"),
        pytest.param(
            q.parse_bits, "10G", 'such as "100Mbps" or "10Gbps", got "10G"', id="bandwidth without bps"
        ),
        pytest.param(
            q.parse_millis,
            "5",
            'must be a duration such as 65ms, 90s, 1.5h or 1h30m, got "5"',
            id="a duration without unit",
        ),
        pytest.param(q.parse_millis, "5m ago", 'got "5m ago"', id="words after the duration"),
        pytest.param(
            q.parse_count,
            "1.5",
            'must be a whole number such as 2, got "1.5"',
            id="half of what cannot be halved",
        ),
        pytest.param(q.dollars_to_micros, Decimal("1e999"), "got 1E+999", id="money out of this world"),
        pytest.param(q.dollars_to_micros, Decimal("-0.01"), "got -0.01", id="negative money"),
        pytest.param(q.dollars_to_micros, Decimal("NaN"), "got NaN", id="money that is not a number"),
    ],
)
def test_bad_quantity_is_refused(parse, value, says):
    with pytest.raises(Invalid) as caught:
        parse(value)
    assert says in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(q.format_cores(1500), "1500m", id="parts of cores in milli-cores"),
        pytest.param(q.format_cores(2000), "2", id="whole cores as cores"),
        pytest.param(q.format_bytes(16 << 30), "16Gi", id="the largest unit without a rest"),
        pytest.param(q.format_bytes(0), "0", id="nothing has no unit"),
        pytest.param(q.approximate_bytes(16_500_000_000), "15.4Gi", id="about so much"),
        pytest.param(q.approximate_bytes(1023), "1023", id="few bytes are shown as they are"),
        pytest.param(q.format_millis(5_400_000), "1h30m", id="durations in several units"),
        pytest.param(q.format_millis(0), "0s", id="no time at all"),
        pytest.param(q.format_plain_dollars(576_000 * 720), "414.72", id="the seed's thirty days"),
        pytest.param(q.format_plain_dollars(0), "0", id="free"),
    ],
)
def test_quantity_is_formatted(written, expected):
    assert written == expected


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (576_000, "$0.576"),
        (414_720_000, "$414.72"),
        (500_000, "$0.50"),
        (0, "$0.00"),
        (1, "$0.000001"),
        (-3 * q.MICRO, "-$3.00"),
        (10**15, "$1,000,000,000.00"),
    ],
)
def test_format_dollars(micros, text):
    assert q.format_dollars(micros) == text


def test_format_per_hour_and_per_month():
    assert q.format_per_hour(576_000) == "$0.576/h"
    assert q.format_per_month(rate_per_30_days(576_000)) == "$414.72/30d"


@pytest.mark.parametrize(
    ("micros", "cents"), [(4_999, 0), (5_000, 10_000), (10_000, 10_000), (-14_999, -10_000)]
)
def test_amounts_are_rounded_to_cents(micros, cents):
    assert q.round_to_cents(micros) == cents


@given(counts)
def test_format_and_parse_round_trip(count):
    assert q.parse_cores(q.format_cores(count)) == count
    assert q.parse_bytes(q.format_bytes(count)) == count
    assert q.parse_bits(q.format_bits(count)) == count


@given(st.integers(min_value=0, max_value=10**15))
def test_durations_and_money_are_read_back(count):
    assert q.parse_millis(q.format_millis(count)) == count
    assert q.dollars_to_micros(Decimal(q.format_plain_dollars(count))) == count
    assert q.dollars_to_micros(q.micros_to_dollars(count)) == count


@given(
    whole=st.integers(0, 10**6),
    part=st.from_regex(r"[0-9]{1,9}", fullmatch=True),
    unit=st.sampled_from(["", "Ki", "Mi", "Gi", "Ti", "k", "M", "G"]),
)
def test_bytes_agree_with_exact_fractions(whole, part, unit):
    scale = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}[
        unit
    ]
    exact = (Fraction(whole) + Fraction(int(part), 10 ** len(part))) * scale
    assert q.parse_bytes(f"{whole}.{part}{unit}") == math.ceil(exact)


@given(st.text(max_size=12))
def test_any_text_parses_or_is_malformed(text):
    for parse in (
        q.parse_cores,
        q.parse_bytes,
        q.parse_docker_bytes,
        q.parse_bits,
        q.parse_millis,
        q.parse_count,
    ):
        try:
            assert 0 <= parse(text) <= q.MAX_INT64
        except Invalid as refused:
            assert refused.message  # noqa: PT017 - either outcome is fine


@pytest.mark.parametrize(
    ("threshold", "share"),
    [
        pytest.param("0.8", "0.8", id="a fraction is itself"),
        pytest.param("80", "0.8", id="more than one is a percentage"),
        pytest.param("1", "1", id="one is all of it"),
        pytest.param("100", "1", id="so is a hundred"),
    ],
)
def test_threshold(threshold, share):
    assert q.share_as_fraction(Decimal(threshold)) == Decimal(share)


@pytest.mark.parametrize("wrong", ["0", "-1", "101", "1e9"])
def test_threshold_out_of_range(wrong):
    (cause,) = q.threshold_problems("spec.budget.alertThreshold", Decimal(wrong))
    assert cause.field == "spec.budget.alertThreshold"
    assert "a fraction above 0 and up to 1, or a percentage up to 100" in cause.message


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "replica", "1 replica"),
        (0, "node", "0 nodes"),
        (1, "class", "1 class"),
        (1200, "class", "1,200 classes"),
    ],
)
def test_counted_noun_has_its_plural(count: int, noun: str, text: str) -> None:
    assert q.pluralize(count, noun) == text
