from __future__ import annotations

import json
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.base.yaml_lines import YamlError, read


def test_values_and_lines() -> None:
    document = read("a: 1\nb:\n  - x\n  - {c: true, d: [1.5, ~]}\n")
    assert document.data == {"a": 1, "b": ["x", {"c": True, "d": [1.5, None]}]}
    assert document.line(("b", 1, "d", 1)) == 4
    assert document.line(("b", 0)) == 3
    assert document.line(("b", 9, "nothing")) == 2


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "1:30", "010x", "2026-11-21", "0x1F", ".inf", ".nan"])
def test_words_other_parsers_turn_into_something_else_stay_text(word: str) -> None:
    assert read(f"a: {word}\n").data == {"a": word}


def test_text_is_kept_as_written() -> None:
    document = read("a: 8.10\nb: 0010\nc: '1'\n")
    assert document.raw[("a",)] == "8.10"
    assert document.raw[("b",)] == "0010"
    assert document.data["c"] == "1"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: !!python/object/apply:os.system [id]\n", 2, "tags"),
        ("a: 1\nb: !!str 5\n", 2, "tags"),
        ("!thing\na: 1\n", 1, "tags"),
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first used on line 1"),
        ("a: {x: 1, x: 2}\n", 1, "duplicate key 'x'"),
        ("a: &x {k: 1}\nb:\n  <<: *x\n", 3, "merge keys"),
        ("a: *nothing\n", 1, "alias"),
        ("a: &x [1, *x]\n", 1, "contains itself"),
        ("a: &x\n  b: *x\n", 2, "contains itself"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: [1, 2\nb: 3\n", 2, ""),
        ("a:\n\t- 1\n", 2, "tab"),
        ("? [a, b]\n: 1\n", 1, "key"),
        ("a: \x07\n", 1, "not allowed"),
        ("[" * 100 + "]" * 100, 1, "nested deeper"),
        ("a: 1\n  b: 2\n", 2, "check the indentation"),
        ("a:\n  - b: 1\n   c: 2\n", 3, "compare the indentation"),
        ("a: 1\nrun: echo x: y\n", 2, "put quotes around"),
        ("collect: [{reader: times, file: @log}]\n", 1, "text cannot begin with '@': put quotes"),
        ('a:\n  - "x\\0y"\n', 2, "a null character is not allowed"),
        ("a:\n  - `x`\n", 2, "text cannot begin with '`'"),
        ("a: %x\n", 1, ""),
        ("gates: [max(build.kernels[*].registers) <= 40]\n", 1, "quotes around it"),
        ("steps:\n  - id: a\n    gates: [x.y == 1, benchmark.benchmarks[0].stats.p50 < 50]\n", 3, "quotes around it"),
    ],
)
def test_what_is_refused_and_where(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        read(text)
    assert caught.value.line == line
    assert words in caught.value.message


def test_alias_repeats_its_anchor() -> None:
    document = read("a: &x {k: [1, &y 2]}\nb: *x\nc: *y\n")
    assert document.data == {"a": {"k": [1, 2]}, "b": {"k": [1, 2]}, "c": 2}
    assert document.line(("b",)) == 2


def test_a_bomb_of_aliases_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    start = time.process_time()
    with pytest.raises(YamlError, match="after aliases are expanded"):
        read("\n".join(lines))
    assert time.process_time() - start < 5


def test_a_huge_file_is_refused() -> None:
    with pytest.raises(YamlError, match="larger than"):
        read("a: 1\n" * 300_000)


#: YAML 1.1, which PyYAML writes, takes 1E0 for text and leaves it bare; YAML 1.2 reads a number.
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20).filter(
    lambda text: not text[:1].isdigit() and text[:1] not in ("+", "-", ".")
)
KEYS = st.text("abcdefgh_-", min_size=1, max_size=6)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine it is
@given(st.dictionaries(KEYS, PLAIN, max_size=5))
def test_reads_what_pyyaml_writes(value: dict[str, object]) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    assert read(yaml.dump(value, Dumper=NoAliases)).data == value


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    refused: YamlError | None = None
    try:
        data = read(text).data
    except YamlError as error:
        refused = error
    else:
        assert json.dumps(data)
    assert refused is None or (refused.message and 1 <= refused.line <= len(text.splitlines()) + 1)
