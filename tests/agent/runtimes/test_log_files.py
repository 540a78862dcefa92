"""Log files: the last lines across rotated files, within the size limit."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.agent.runtimes.log_files import Rotation, read_since, rotate, tail

SMALL = Rotation(max_bytes=100, max_older_files=2)


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        pytest.param("a\nb\nc\n", 2, "b\nc\n", id="the last two"),
        pytest.param("a\nb\nc", 2, "b\nc", id="a line that has not ended counts"),
        pytest.param("a\n", 9, "a\n", id="fewer than asked for"),
        pytest.param("", 3, "", id="nothing printed"),
        pytest.param("x" * 200_000 + "\nend\n", 1, "end\n", id="a very long line before it"),
    ],
)
def test_tail(tmp_path: Path, text: str, lines: int, expected: str) -> None:
    (tmp_path / "log").write_text(text)
    assert tail(tmp_path / "log", lines, SMALL) == expected


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"caf\xe9\n")
    assert tail(tmp_path / "log", 1, SMALL) == "caf�\n"


def test_rotation_keeps_newest_within_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number in range(200):
        with log.open("a") as file:
            file.write(f"line {number}\n")
        rotate(log, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert tail(log, 15, SMALL) == "".join(f"line {number}\n" for number in range(185, 200))
    assert all(path.stat().st_size <= 110 for path in tmp_path.iterdir())


def test_oversized_file_is_truncated_on_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 100_000 + "end")
    assert rotate(log, SMALL)
    assert (tmp_path / "log.1").read_text().endswith("end")
    assert (tmp_path / "log.1").stat().st_size == 200


@given(st.lists(st.text(alphabet="ab", max_size=30), max_size=40), st.integers(0, 50))
def test_tail_spans_rotated_files(lines: list[str], count: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log, roomy = Path(folder) / "log", Rotation(max_bytes=50, max_older_files=100)
        for line in lines:
            with log.open("a") as file:
                file.write(line + "\n")
            rotate(log, roomy)
        log.touch()
        text = "".join(line + "\n" for line in lines)
        kept = tail(log, count, roomy)
        assert kept == "".join(text.splitlines(keepends=True)[-count:] if count else [])


def test_log_is_read_from_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_since(path, -1) == ("", 0)
    path.write_text("one\ntw")
    assert read_since(path, -1) == ("", 6)
    assert read_since(path, 0) == ("one\ntw", 6)
    path.write_text("one\ntwo\nthree\n")
    assert read_since(path, 6) == ("o\nthree\n", 14)
    assert read_since(path, 14) == ("", 14)
    path.write_text("new\n")  # emptied in between
    assert read_since(path, 14) == ("new\n", 4)


def test_multibyte_character_is_not_split(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = "caf\u00e9".encode()
    path.write_bytes(whole[:-1])
    assert read_since(path, 0) == ("caf", 3)
    path.write_bytes(whole)
    assert read_since(path, 3) == ("\u00e9", 5)
