"""What JSON takes in memory is known before it is parsed."""

from __future__ import annotations

import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.json_text import Budget, TooLarge, loads, resident_bytes

COUNT = 20_000
COSTLY = {
    "objects": b"[" + b"{}," * COUNT + b"0]",
    "lists": b"[" + b"[]," * COUNT + b"0]",
    "objects of one": b"[" + b'{"a":0},' * COUNT + b"0]",
    "objects of six": b"[" + b'{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0},' * COUNT + b"0]",
    "lists of one": b"[" + b"[0]," * COUNT + b"0]",
    "members": b"{" + b",".join(b'"%x":0' % i for i in range(COUNT)) + b"}",
    "short texts": b"[" + b",".join(b'"%x"' % i for i in range(COUNT)) + b"]",
    "numbers": b"[" + b",".join(b"%d.5" % (i % 10) for i in range(COUNT)) + b"]",
    "whole numbers": b"[" + b",".join(b"%d" % (300 + i) for i in range(COUNT)) + b"]",
    "a deep one": b"[" + b",".join([b"[" * 150 + b"]" * 150] * (COUNT // 150)) + b"]",
    "text with one wide letter": b'["' + b"a" * COUNT * 10 + "\U0001f600".encode() + b'"]',
    "the same, escaped": b'["' + b"a" * COUNT * 10 + b'\\ud83d\\ude00"]',
    "text with a Chinese letter": b'["' + b"a" * COUNT * 10 + b'\\u4e00"]',
    "plain text": b'["' + b"a" * COUNT * 10 + b'"]',
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_estimate_is_not_less_than_what_python_takes(name: str) -> None:
    data = COSTLY[name]
    tracemalloc.start()
    try:
        value = loads(data)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert value == json.loads(data)
    assert taken <= resident_bytes(data) <= 7 * taken + 10_000


def test_documents_share_what_there_is() -> None:
    data = b'["' + b"x" * 1000 + b'"]'
    price = resident_bytes(data)
    budget = Budget(2 * price + len(data))
    assert budget.loads(data) == budget.loads(data) == ["x" * 1000]
    with pytest.raises(TooLarge, match="reading it needs 0 MiB of memory, but only 0 MiB are allowed"):
        budget.loads(data)
    assert budget.loads(b"[1]") == [1], "what is smaller is read all the same"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"1" * 10_000, b"nope", b"[1] 2", b'"\\ud800"'])
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not JSON$"):
        loads(data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_what_nests_too_deeply(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^nested too deeply$"):
        loads(data)
    with pytest.raises(ValueError, match=r"^nested too deeply$"):
        loads(data.decode())


def test_numbers_that_json_does_not_have() -> None:
    assert loads(b"[Infinity, -Infinity, 1e999]") == [math.inf, -math.inf, math.inf]
    assert math.isnan(loads(b"NaN"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


@given(json_values, st.booleans())
def test_all_else_is_read_as_the_standard_library_reads_it(value: object, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert loads(data) == value
