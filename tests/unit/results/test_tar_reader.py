"""Headers of a tar as no tar program writes them."""

from __future__ import annotations

import io

import pytest

from orchestrator.results.archive_format import BLOCK, BadArchive, TarReader
from tests.support.hostile_documents import tar_header


def extended(text: bytes) -> bytes:
    return tar_header(len(text), b"x") + text + bytes(-len(text) % BLOCK)


class Zeros(io.RawIOBase):
    """``first``, then zeros for ever, and a count of what was read."""

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.first, self.taken = first, 0

    def read(self, size: int = -1, /) -> bytes:
        found = self.first[self.taken : self.taken + size].ljust(size, b"\0")
        self.taken += size
        return found


def members(content: bytes) -> list[tuple[str, int]]:
    return list(TarReader(io.BytesIO(content)))


def test_what_a_tar_program_writes_is_read() -> None:
    assert members(tar_header(3) + b"abc".ljust(BLOCK, b"\0") + bytes(BLOCK)) == [("manifest.json", 3)]
    assert members(extended(b"17 path=u/\xc3\xbc.txt\n") + tar_header() + tar_header() + bytes(BLOCK)) == [
        ("u/\u00fc.txt", 0), ("manifest.json", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "field", [b"-1", b"+5", b"0o7", b"1_0", b" 1 2", b"", b"\x80" + bytes(10) + b"\x01", b"7" * 12, b"0\x001"]
)
def test_a_size_is_digits_and_nothing_else(field: bytes) -> None:
    stream = Zeros(tar_header(size_text=field))
    with pytest.raises(BadArchive, match="a header is damaged"):
        next(iter(TarReader(stream)))
    assert stream.taken == BLOCK, "nothing was read by what it said"


@pytest.mark.parametrize("field", [b"-1", b"", b"0x1f", b"+17777"])
def test_so_is_a_checksum(field: bytes) -> None:
    with pytest.raises(BadArchive, match="a header is damaged"):
        members(tar_header(checksum=field) + bytes(BLOCK))


@pytest.mark.parametrize(
    "text",
    [b"11 size=-1\n", b"+9 size=1\n", b"12 size=1e3\n", b"10 path=a", b"9 size=1\n9 size=2\n", b"9 path=a\n9 path=b\n"],
)
def test_an_extended_header_says_each_thing_once(text: bytes) -> None:
    with pytest.raises(BadArchive, match="an extended header is damaged"):
        members(extended(text) + tar_header() + bytes(BLOCK))


@pytest.mark.parametrize("text", [b"13 comment=x\n", b"9 path=a\n", b""])
def test_before_a_file_there_is_one_extended_tar_header(text: bytes) -> None:
    with pytest.raises(BadArchive, match="two extended tar headers in a row"):
        members(extended(text) * 2 + tar_header() + bytes(BLOCK))
