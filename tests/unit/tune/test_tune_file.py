"""tune/*.yaml as a person writes it: what is read of it, and what is said of a mistake, with its line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fcctl_tune.search import spec as specs
from orchestrator.base.errors import JobError, NotFoundError, UsageError
from orchestrator.runs.job.job import Job, Step
from orchestrator.runs.job.plan import check_variants
from orchestrator.tune import search_file as tune_file
from orchestrator.tune.files import TuneFiles
from orchestrator.tune.search_file import InvalidSearch, Search, SearchFile, SearchOptions, job_of, narrowed

DOCS = Path(__file__).resolve().parents[3] / "docs" / "tune.md"
GOOD = """\
tune: saxpy
title: blocks
env: {N: 8.10, KIND: one}
variants: {KIND: [one, other]}
parameters:
  BLOCK: [64, 128]
  UNROLL: {values: [1, 2], default: 2}
constraints: [BLOCK * UNROLL <= 128]
build: cc saxpy.c
check: ./saxpy --check
bench: ./saxpy
metric: {reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}
cases: [a, b]
held_out: [c]
adopt: tuned.json
"""


def parse(text: str, space: str | None = None) -> Search:
    given = SearchFile.read(space, "space.yaml") if space is not None else None
    return tune_file.parse(SearchFile.read(text, "tune/saxpy.yaml"), "saxpy", given)


def problem(text: str, space: str | None = None) -> str:
    with pytest.raises(InvalidSearch) as caught:
        parse(text, space)
    return caught.value.problems[0].in_full()


def test_what_goes_to_the_machine_and_what_stays() -> None:
    search = parse(GOOD)
    assert dict(search.env) == {"N": "8.10", "KIND": "one"}  # as written
    assert search.adopt == tune_file.Adopt("tuned.json")
    sent = json.loads(search.to_json({"KIND": "other"}))
    assert not {"env", "adopt", "variants"} & set(sent)
    assert sent["title"] == "other"
    assert specs.Spec.from_dict(sent).held_out == ("c",)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tune: saxpy", "tune: other", "tune/saxpy.yaml:1: the name in the file is 'other' (write 'tune: saxpy'"),
        ("BLOCK: [64, 128]", "BLOCK: [64, 64]", "tune/saxpy.yaml:6: parameters.BLOCK"),
        ("default: 2", "default: 3", "tune/saxpy.yaml:7: parameters.UNROLL.default"),
        ("bench: ./saxpy", "bensh: ./saxpy", "tune/saxpy.yaml:11: bensh: unknown key; did you mean bench?"),
        ("reader: metrics", "regex: x", "regex: unknown key; known: value, reader, file, unit, direction"),
        ("variants:", "variant:", "did you mean 'variants'?"),
        ("reader: metrics", "reader: metric", "tune/saxpy.yaml:12: metric.reader"),
        ("KIND: [one, other]", "KIMD: [one, other]", "'KIMD' is not a variable in env"),
        ("KIND: [one, other]", "KIND: [One]", "names of a-z, 0-9 and hyphens"),
        ("adopt: tuned.json", "adopt: ../tuned.json", "tune/saxpy.yaml:15: adopt:"),
        ("adopt: tuned.json", "adopt: {file: t.h, wrote: x}", "adopt: unknown key 'wrote' (did you mean 'write'?"),
        ("adopt: tuned.json", "adopt: {write: x}", "adopt: must be a file, or"),
        ("held_out: [c]", "held_out: [a]", "tune/saxpy.yaml:14: held_out"),
        ("cases: [a, b]", "cases: [a,", "tune/saxpy.yaml:"),
        ("env: {N: 8.10, KIND: one}", "env: [N]", "tune/saxpy.yaml:"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in problem(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("space", "size"),
    [
        ("parameters: {BLOCK: [64, 128, 256], UNROLL: [2]}\nconstraints: []\n", 3),
        ("parameters: {BLOCK: [64, 128], UNROLL: [1, 2]}\nconstraints: [BLOCK == 64]\n", 2),
        ("parameters: {A: [1, 2]}\nconfigurations: [{A: 2}]\ndefault: {A: 2}\n", 1),
        ("space: ./list\n", None),
    ],
)
def test_another_space_replaces_that_of_the_search(space: str, size: int | None) -> None:
    found = parse(GOOD, space).spec.space
    assert (found.size if found else None) == size


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("parameters: {BLOCK: [64]}\n", "space.yaml:1: the file replaces the whole space, and the search has"),
        ("constraints: [BLOCK == 64]\n", "space.yaml:1: parameters: must have 1 to 64 names"),
        ("parameters: {A: [1]}\nconstraints: [B]\n", "space.yaml:2: constraints[0]"),
        ("parameters: {A: [1]}\ncases: [x]\n", "space.yaml:2: unknown key 'cases' in a file for --space"),
    ],
)
def test_a_mistake_in_another_space_is_in_its_file(space: str, said: str) -> None:
    assert said in problem(GOOD, space)


def test_names_of_files_and_of_variants(tmp_path: Path) -> None:
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune/saxpy.yaml").write_text(GOOD)
    (tmp_path / "tune/broken.yaml").write_text("tune: broken\n")
    files = TuneFiles(tmp_path)
    assert files.names() == ["broken", "one", "other", "saxpy"]
    assert files.get("saxpy").env["KIND"] == "one"
    assert files.get("other").env["KIND"] == "other"
    assert files.get("other").name == "saxpy"
    with pytest.raises(InvalidSearch, match=r"tune/broken\.yaml"):
        files.get("broken")
    with pytest.raises(NotFoundError) as caught:
        files.get("saxpi")
    assert "did you mean 'saxpy'" in str(caught.value.hint)
    with pytest.raises(NotFoundError):
        files.get("../saxpy")
    (tmp_path / "tune/second.yaml").write_text(GOOD.replace("tune: saxpy", "tune: second"))
    with pytest.raises(InvalidSearch, match="is a variant of"):
        files.get("other")


def test_a_jobs_own_environment_is_stronger_than_its_searchs() -> None:
    step = Step(id="search", run="x", tune="saxpy", env={"N": "1"})
    job = Job(job="j", env={"KIND": "mine"}, steps=[step, Step(id="after", run="y")])
    made = tune_file.with_searches(job, {"saxpy": parse(GOOD)})
    assert made.steps[0].env == {"N": "1"}
    assert made.steps[1].env == {}
    assert tune_file.with_searches(job.model_copy(update={"env": {}}), {"saxpy": parse(GOOD)}).steps[0].env == {
        "N": "1", "KIND": "one",
    }  # fmt: skip


def asked_for(settings: dict[str, str], **env: str) -> None:
    search = parse(GOOD)
    job = tune_file.with_searches(Job(job="j", env=env, steps=[Step(id="s", run="x", tune="saxpy")]), {"saxpy": search})
    check_variants(job, job.steps, settings, {"saxpy": search})


def test_a_variant_that_the_file_does_not_name_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(UsageError) as near:
        asked_for({"KIND": "othr"})
    assert near.value.message == "--set KIND=othr: unknown variant of the search 'saxpy'"
    assert near.value.cause == "tune/saxpy.yaml has the variants one, other"
    assert near.value.hint == "did you mean --set KIND=other?"
    with pytest.raises(UsageError) as far:
        asked_for({"KIND": "quite:X=1"})
    assert far.value.hint == "use a variant of the file: --set KIND=one"
    with pytest.raises(JobError) as written:
        asked_for({}, KIND="othr")
    assert written.value.hint == "correct jobs/j.yaml, or: --set KIND=other"


@pytest.mark.parametrize(
    ("settings", "env"),
    [({}, {}), ({"KIND": "other"}, {}), ({"KIND": "other:X=1"}, {"KIND": "othr"}), ({"N": "9"}, {"KIND": "one"})],
)
def test_a_variant_may_be_any_that_the_file_names_also_with_what_is_the_kernels_own(
    settings: dict[str, str], env: dict[str, str]
) -> None:
    asked_for(settings, **env)


def test_what_a_file_has_anyway_is_no_mistake_though_it_is_none_of_its_variants() -> None:
    search = parse(GOOD.replace("KIND: one}", "KIND: auto}"))
    assert search.has_variant("auto")
    assert not search.has_variant("automatic")
    assert parse(GOOD.replace("variants: {KIND: [one, other]}\n", "")).has_variant("whatever")


def test_what_the_command_line_asks_for() -> None:
    search = narrowed(parse(GOOD), SearchOptions(trials=4, cases=["c", "d"]))
    assert (search.spec.trials, search.spec.elites) == (4, 4)
    assert (search.spec.cases, search.spec.held_out) == (("c", "d"), ())
    with pytest.raises(InvalidSearch, match="the command line: elites"):
        narrowed(parse(GOOD), SearchOptions(trials=4, elites=5))
    job = job_of(search, SearchOptions(strategy="random", control="random", seed=7))
    assert job.job == "tune"
    assert job.steps[0].run.endswith("--strategy random --compare random --seed 7")
    assert job.env == {"N": "8.10", "KIND": "one"}


def test_every_key_is_documented_and_no_other() -> None:
    section = DOCS.read_text().split("## The file", 1)[1].split("### ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    assert keys == {*specs._KEYS, "variants", "adopt"} - {"configurations", "default"}
    (example,) = re.findall(r"```yaml\n(tune: .*?)```", section, re.DOTALL)
    assert parse(example).spec.known_space.size == 11
