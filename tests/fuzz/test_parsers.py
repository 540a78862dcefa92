"""Every parser accepts its input or raises a LatticeError."""

import pytest
from fuzz.parsers import PARSERS, Parser, refuses_or_takes
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = 500


def made_up(parser: Parser) -> st.SearchStrategy[bytes]:
    """Noise, words of the language, and examples with a stretch cut out, doubled or replaced."""
    piece = st.one_of(
        st.binary(max_size=12),
        st.sampled_from([*parser.words, *parser.examples]),
        st.text(max_size=8).map(str.encode),
    )
    noise = st.lists(piece, max_size=8).map(b"".join)

    def bent(example: bytes, at: int, length: int, into: bytes) -> bytes:
        start = at % (len(example) + 1)
        return example[:start] + into + example[start + length % 20 :]

    twisted = st.builds(
        bent, st.sampled_from(parser.examples), st.integers(0, 10_000), st.integers(0, 19), noise
    )
    return st.one_of(noise, twisted)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_rejected_input_raises_a_lattice_error(name: str) -> None:
    parser = PARSERS[name]

    @settings(max_examples=EXAMPLES)
    @given(made_up(parser))
    def whatever(data: bytes) -> None:
        refuses_or_takes(parser, data)

    whatever()


@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"signing request"}))
def test_examples_are_accepted(name: str) -> None:
    for example in PARSERS[name].examples:
        assert refuses_or_takes(PARSERS[name], example), example
