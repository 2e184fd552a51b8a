from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.sanitize import LineCleaner, clean, clean_text

ATTACKS = [
    ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07text", "text"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"), ("\x1bP+q544e\x1b\\after", "after"), ("\x1b[6n\x1b[c", ""),
    ("\x9b31mC1\x9d0;t\x9cx", "C1x"), ("\x1bcreset", "reset"), ("\x1b(0lines", "lines"), ("\x1b\x1b[2Jtwice", "twice"),
    ("back\x08\x08space\x7f\x00", "backspace"), ("\u202eevil\u2066\u200bzero", "evilzero"), ("\ud800half", "half"),
    ("plain [bold]not markup[/]", "plain [bold]not markup[/]"), ("結果 é µs ✓", "結果 é µs ✓"),
]  # fmt: skip


@pytest.mark.parametrize(("hostile", "safe"), ATTACKS)
def test_escapes_go_whole_and_text_stays(hostile: str, safe: str) -> None:
    assert clean(hostile) == safe
    assert clean_text(hostile) == safe


def test_one_line_and_no_longer_than_asked() -> None:
    assert clean("a\nb\r\nc\td") == "a b c d"
    assert clean("x" * 500, 10) == "x" * 9 + "…"
    assert clean("x" * 10, 10) == "x" * 10
    assert clean(12.5) == "12.5"
    assert clean(None) == "None"


def test_lines_stay_lines() -> None:
    assert clean_text("a\r\nb\rc\n\td") == "a\nb\nc\n\td"


def test_a_string_escape_that_never_ends_costs_its_line_only() -> None:
    assert clean_text("\x1b]0;never\nsecond line") == "\nsecond line"


def is_safe(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"} for c in text)


soup = st.text(
    alphabet=st.sampled_from("\x1b[]P\\;0m\x07\x9b\x9c\x9d\r\n\t aé\u202e\u2028\ud800") | st.characters(), max_size=80
)


@given(soup)
def test_nothing_that_drives_a_terminal_survives(text: str) -> None:
    assert is_safe(clean_text(text))
    assert is_safe(clean(text, 20))
    assert "\n" not in clean(text, 20)
    assert len(clean(text, 20)) <= 20
    clean_text(text).encode()


@given(soup)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean_text(clean_text(text)) == clean_text(text)


@given(
    st.binary(max_size=60) | soup.map(lambda t: t.encode("utf-8", "replace")), st.lists(st.integers(1, 7), min_size=1)
)
def test_a_stream_is_clean_wherever_it_is_cut(data: bytes, cuts: list[int]) -> None:
    cleaner = LineCleaner()
    out, at, turn = b"", 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        out += cleaner.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert is_safe(out.decode())


def test_a_cut_inside_a_character_or_an_escape_leaves_no_litter() -> None:
    data = "é\x1b[1;31mred\x1b]0;title\x07é\r\nend\n".encode()
    for cut in range(1, len(data)):
        cleaner = LineCleaner()
        assert (cleaner.feed(data[:cut]) + cleaner.feed(data[cut:])).decode() == "éredé\nend\n"


@pytest.mark.parametrize("begin", [b"\x1b[", b"\x1b]", b"\x1b", b"\x1b[1"])
@pytest.mark.parametrize("more", [b"1;", b"  ", b"x"])
def test_an_escape_that_never_ends_is_held_in_part_and_costs_little(begin: bytes, more: bytes) -> None:
    cleaner = LineCleaner()
    cleaner.feed(begin)
    began = time.process_time()
    for _ in range(400):
        cleaner.feed(more * 5_000)
        assert len(cleaner._held) < 5_000
    assert time.process_time() - began < 4, "4 MB take 0.1 s, and grew with their square"
