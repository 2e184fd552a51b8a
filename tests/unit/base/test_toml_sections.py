"""One table more or less, and not a character of anything else."""

from __future__ import annotations

import tomllib

import pytest

from orchestrator.base.toml import add_table, remove_table

TEXT = """# mine
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
    new = add_table(TEXT, ("schedules", "weekly"), {"job": 'a"b\\c', "cron": "@weekly", "settings": {"A": "ü 1"}})
    assert new.startswith(TEXT)
    assert tomllib.loads(new)["schedules"]["weekly"]["settings"] == {"A": "ü 1"}
    assert remove_table(new, ("schedules", "weekly")) == TEXT


def test_an_empty_file_and_one_without_a_last_newline() -> None:
    assert add_table("", ("schedules", "n"), {"a": 1}) == "[schedules.n]\na = 1\n"
    assert tomllib.loads(add_table("a = 1", ("schedules", "n"), {"a": 1.5, "b": True}))["schedules"]["n"]["b"] is True


def test_a_table_goes_with_its_comment_and_leaves_its_neighbours() -> None:
    text = TEXT.replace('note = """\n[not a header]\n"""\n', "")
    new = remove_table(text, ("schedules", "nightly"))
    assert new == '# mine\n[project]\nname = "x"  # keep\n\n# the machine\n[targets.l4]\nkind = "ssh"\nhost = "h"\n'


def test_what_cannot_be_cut_out_safely_is_left_to_a_person() -> None:
    with pytest.raises(ValueError, match=r".+"):
        remove_table(TEXT, ("schedules", "nightly"))  # a line in its string looks like a header
    with pytest.raises(ValueError, match=r".+"):
        add_table('schedules = { a = { job = "x" } }\n', ("schedules", "b"), {"job": "y"})
    with pytest.raises(KeyError):
        remove_table(TEXT, ("schedules", "other"))
