"""TOML that nests deeper than anybody's configuration: a message with the line, and never Python's own limit."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base import toml
from orchestrator.base.errors import ConfigError
from orchestrator.results.store.names import read_tags
from orchestrator.workspace.config import read_layer

DEEP = {
    "arrays": f"a = 1\nb = {'[' * 5000}{']' * 5000}\n",
    "arrays that never end": "a = 1\nb = " + "[" * 100_000,
    "inline tables": "a = 1\nb = " + "{c = " * 5000 + "1" + "}" * 5000 + "\n",
    "a dotted key": "a = 1\n" + "b." * 5000 + "c = 1\n",
    "a table's name": "a = 1\n[" + "b." * 5000 + "c]\n",
    "a list of tables": "a = 1\n[[" + "b . " * 5000 + "c]]\n",
    "all together": "a = 1\n[" + "b." * 20 + "c]" + " " * 9 + "# ]\n" + "\n" + "d." * 10 + "e = [{f.g = [1]}]\n",
    "quoted names": 'a = "]"\n' + '"b"."[".' * 5000 + "c = 1\n",
}


@pytest.mark.parametrize("name", DEEP)
def test_what_nests_too_deeply_is_told_with_its_line(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_layer(DEEP[name], "fcctl.toml")
    line = 4 if name == "all together" else 2
    assert raised.value.message == f"fcctl.toml:{line}: nested deeper than 32 levels"
    assert raised.value.hint
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tags(DEEP[name], "tags.toml")


def test_what_is_too_large_is_not_read() -> None:
    with pytest.raises(toml.TomlError, match="larger than 1024 KiB"):
        toml.loads("#" * (1024 * 1024 + 1))


def test_the_line_of_other_mistakes() -> None:
    with pytest.raises(toml.TomlError, match=r'^Invalid value: text needs quotes, as in "text"$') as raised:
        toml.loads("a = 1\nb = gpu-box\n")
    assert raised.value.line == 2
    with pytest.raises(toml.TomlError) as raised:
        toml.loads('a = 1\nb = """\n')
    assert raised.value.line == 2


def test_our_own_configuration_is_read() -> None:
    text = (Path(__file__).parents[3] / "fcctl.toml").read_text()
    assert toml.loads(text) == tomllib.loads(text) != {}


values = st.recursive(
    st.sampled_from(["1", "1.5", '"[[{{.="', "'a.b'", '"""\n[[[\n"""', "1979-05-27T07:32:00Z", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}, # [[\n]" if v else "[]")
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda v: "{" + ", ".join(f'k{i}."x.y" = {e}' for i, e in enumerate(v)) + "}"
        )
    ),
    max_leaves=12,
)


@given(values, st.integers(0, 12), st.integers(0, 12))
def test_whatever_nests_less_is_read_as_it_was(value: str, table: int, dots: int) -> None:
    text = f"a.b = 1.5 # [[[[\n[{'t.' * table}t]\n{'d.' * dots}d = {value}\ne = 1\n"
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # a line feed in an inline table
        return
    if levels(expected) <= toml.MAX_DEPTH:
        assert toml.loads(text) == expected


@given(values, st.integers(0, 40), st.integers(0, 40))
def test_nothing_that_nests_deeper_is_read(value: str, table: int, dots: int) -> None:
    try:
        found = toml.loads(f"[{'t.' * table}t]\n{'d.' * dots}d = {value}\n")
    except toml.TomlError:
        return
    assert levels(found) <= toml.MAX_DEPTH + 1


def levels(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(levels, inner), default=0) if isinstance(value, dict | list) else 0
