"""TOML with the lines of its keys, and with one table more or less and not a character of anything else."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.toml import add_table, key_lines, remove_table

DOCUMENT = '''\
# a comment = not a key
title = "x # not a comment"   # [not.a.table]

[project]
name = """
fake = 1
[fake]
"""
quoted = 'it''s' # fake = 2
"dotted key".inner . deep = 1

[targets.l4]
zones = [
  "a", # one ] here
  "b",
  [1, 2],
]
inline = { x = 1, y.z = "}", "q r" = [ {w = 1} ] }
when = 1979-05-27 07:32:00

[[runs]]
id = 1
[[runs.steps]]
id = 2
[[runs.steps]]
id = 3
[[runs]]
id = 4
[runs.sub]
id = 5
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("project",), 4),
        (("project", "name"), 5),
        (("project", "quoted"), 9),
        (("project", "dotted key", "inner", "deep"), 10),
        (("targets",), 12),
        (("targets", "l4"), 12),
        (("targets", "l4", "zones"), 13),
        (("targets", "l4", "zones", 2, 1), 13),
        (("targets", "l4", "inline", "x"), 18),
        (("targets", "l4", "inline", "y", "z"), 18),
        (("targets", "l4", "inline", "q r", 0, "w"), 18),
        (("targets", "l4", "when"), 19),
        (("runs", 0, "id"), 22),
        (("runs", 0, "steps", 0, "id"), 24),
        (("runs", 0, "steps", 1, "id"), 26),
        (("runs", 1, "id"), 28),
        (("runs", 1, "sub", "id"), 30),
    ],
)
def test_line_of(path: tuple[str | int, ...], line: int) -> None:
    assert key_lines(DOCUMENT)[path] == line


def test_what_looks_like_a_key_inside_text_is_none() -> None:
    assert not [path for path in key_lines(DOCUMENT) if any(str(part).startswith("fake") for part in path)]


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path} - {()} | {p for key, child in items for p in paths_of(child, (*path, key))}


def test_every_path_of_the_document_has_a_line() -> None:
    assert set(key_lines(DOCUMENT)) == paths_of(tomllib.loads(DOCUMENT))


def quoted(text: str) -> str:
    escaped = "".join(f"\\u{ord(c):04X}" if ord(c) < 32 or c in '"\\\x7f' else c for c in text)
    return f'"{escaped}"'


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MULTILINE = st.lists(st.sampled_from(["a", '"', "'", "\n", "# k = 1\n", "[t]\n", "\\\\"]), max_size=6).map(
    lambda parts: '"""\n' + "".join(parts).replace('"""', "") + ' """'
)
SCALAR = st.one_of(
    st.integers(-9, 99).map(str), st.booleans().map(lambda b: str(b).lower()), TEXT.map(quoted), MULTILINE
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: "[ # ]\n" + " ,\n".join(v) + "\n]"),
        st.lists(inner, max_size=3).map(lambda v: "{ " + ", ".join(f'"k{i}" = {x}' for i, x in enumerate(v)) + " }"),
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(TEXT, VALUE, st.integers(0, 2)), max_size=5))
def test_lines_hold_for_any_valid_document(pairs: list[tuple[str, str, int]]) -> None:
    lines: list[str] = []
    expected: dict[str, int] = {}
    for index, (name, value, blanks) in enumerate(pairs):
        lines.extend("" for _ in range(blanks))
        key = f"{index}{name}"
        expected[key] = len(lines) + 1
        lines.extend(f"{quoted(key)} = {value} # end".split("\n"))
    document = "\n".join(lines)
    try:
        data = tomllib.loads(document)
    except tomllib.TOMLDecodeError:  # a generated string closed early, or an inline table ran over lines
        return
    found = key_lines(document)
    assert {path[0]: line for path, line in found.items() if len(path) == 1} == expected
    assert set(found) == paths_of(data)


SECTIONS = """# mine
[project]
name = "x"  # keep

# nightly work
[schedules.nightly]
job = "bench"
cron = '0 2 * * *'
note = \"\"\"
[not a header]
\"\"\"

# the machine
[targets.l4]
kind = "ssh"
host = "h"
"""


def test_what_is_added_is_at_the_end_and_nothing_else_moves() -> None:
    new = add_table(SECTIONS, ("schedules", "weekly"), {"job": 'a"b\\c', "cron": "@weekly", "settings": {"A": "ü 1"}})
    assert new.startswith(SECTIONS)
    assert tomllib.loads(new)["schedules"]["weekly"]["settings"] == {"A": "ü 1"}
    assert remove_table(new, ("schedules", "weekly")) == SECTIONS


def test_an_empty_file_and_one_without_a_last_newline() -> None:
    assert add_table("", ("schedules", "n"), {"a": 1}) == "[schedules.n]\na = 1\n"
    assert tomllib.loads(add_table("a = 1", ("schedules", "n"), {"a": 1.5, "b": True}))["schedules"]["n"]["b"] is True


def test_a_table_goes_with_its_comment_and_leaves_its_neighbours() -> None:
    text = SECTIONS.replace('note = """\n[not a header]\n"""\n', "")
    new = remove_table(text, ("schedules", "nightly"))
    assert new == '# mine\n[project]\nname = "x"  # keep\n\n# the machine\n[targets.l4]\nkind = "ssh"\nhost = "h"\n'


def test_what_cannot_be_cut_out_safely_is_left_to_a_person() -> None:
    with pytest.raises(ValueError, match=r".+"):
        remove_table(SECTIONS, ("schedules", "nightly"))  # a line in its string looks like a header
    with pytest.raises(ValueError, match=r".+"):
        add_table('schedules = { a = { job = "x" } }\n', ("schedules", "b"), {"job": "y"})
    with pytest.raises(KeyError):
        remove_table(SECTIONS, ("schedules", "other"))
