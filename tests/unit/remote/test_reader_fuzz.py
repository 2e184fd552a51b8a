"""Hostile files: a reader answers with a document that is strict JSON, or with ReaderError, and nothing else."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcctl_remote import readers
from fcctl_remote.wire import READERS

FIXTURES = Path(__file__).parents[2] / "fixtures" / "readers"
SEEDS = {
    "ptxas": "ptxas/spills_and_stack.log",
    "ncu": "ncu/h100_raw.csv",
    "junit": "junit/gtest.xml",
    "google-benchmark": "google_benchmark/aggregates_only.json",
    "nvbench": "nvbench/cold_and_batch.json",
    "pytest-benchmark": "pytest_benchmark/stats_only.json",
    "flashcore": "flashcore/latency.json",
    "metrics": "metrics/nested.json",
    "times": "times/printed.txt",
    "rates": "rates/printed.txt",
}
NO_PROGRAMS = {"PATH": "/nonexistent"}
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def survives(reader: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        try:
            document = readers.read(reader, str(path), NO_PROGRAMS)
        except readers.ReaderError as error:
            assert error.message  # noqa: PT017 - either outcome is right
        else:
            json.dumps(document, allow_nan=False).encode("utf-8")


def test_every_reader_has_a_seed() -> None:
    assert set(SEEDS) == set(READERS)


@pytest.mark.parametrize("reader", READERS)
@SETTINGS
@given(data=st.binary(max_size=300))
def test_noise(reader: str, data: bytes) -> None:
    survives(reader, data)


@pytest.mark.parametrize("reader", READERS)
@SETTINGS
@given(seed=st.integers(0, 2**32), edits=st.integers(1, 12))
def test_damaged_real_files(reader: str, seed: int, edits: int) -> None:
    rng = random.Random(seed)
    data = bytearray((FIXTURES / SEEDS[reader]).read_bytes()[:20_000])
    for _ in range(edits):
        at = rng.randrange(len(data))
        choice = rng.randrange(5)
        if choice == 0:
            data[at : at + rng.randrange(40)] = b""
        elif choice == 1:
            data[at:at] = rng.randbytes(rng.randrange(1, 8))
        elif choice == 2:
            data[at] = rng.randrange(256)
        elif choice == 3:
            piece = rng.randrange(len(data))
            data[at:at] = data[piece : piece + rng.randrange(200)]
        else:
            data[at : at + 6] = rng.choice(
                [b'"x"', b"null", b"-1e308", b"[]", b"{}", b"\x00", b"1e999", b"999999999999"]
            )
        if not data:
            break
    survives(reader, bytes(data))


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("reader", ["google-benchmark", "nvbench", "pytest-benchmark", "metrics"])
@SETTINGS
@given(data=st.data())
def test_json_of_the_wrong_shape(reader: str, data: st.DataObject) -> None:
    """The real file, with values anywhere in it replaced."""
    root = json.loads((FIXTURES / SEEDS[reader]).read_text())
    for _ in range(data.draw(st.integers(1, 4))):
        node = root
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(node[key], (dict, list)) and data.draw(st.integers(0, 5)):
                node = node[key]
                continue
            node[key] = data.draw(JSON_VALUES)
            break
    survives(reader, json.dumps(root).encode())
