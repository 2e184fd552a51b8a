from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.results.records import DocumentRecord, GateRecord, RunRecord, SourceRecord
from orchestrator.results.store.rows import row_of
from orchestrator.results.store.store import FileStore
from orchestrator.views.figures import kind, sign
from orchestrator.views.table import mark
from orchestrator.views.tables.run import print_run_summary, print_runs, reason
from tests.support import sample_run
from tests.support.measured_runs import measured, simple


def printed(record: RunRecord, folder: Path, width: int = 80, encoding: str = "utf-8", color: bool = False) -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=out, width=width, highlight=False, force_terminal=color, color_system="256" if color else None
    )
    print_run_summary(record, folder, console)
    out.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sample_run.write_documents(tmp_path)
    return tmp_path


def test_everything_a_newcomer_looks_for_is_there(folder: Path) -> None:
    text = printed(sample_run.record(), folder, width=100)
    for wanted in (
        "phase0 on local", "✗ failed in 26 s", sample_run.RUN_ID, "commit 012345678 + changes",
        "! warned", "○ unavailable", "ncu is not installed", "install Nsight Compute", "gates 1/1", "gates 0/1",
        "no GPU", "CUDA 13.0", "PyTorch 2.13.0", "14 passed, 1 warning, 0 errors", "no NVIDIA GPU found",
        "attention_baseline", "17/17 cases passed, largest error 3.6e-04", "seed 3", "edges",
        "p50", "p90", "p99", "SDPA", "1.52x faster",
        "✓ pass", "correctness.summary.passed == 17", "is 17", "✗ fail", "hint: profile it: fcctl run ncu",
        "- not applicable", "only when host.gpu.present", "artifacts/core", "too large", str(folder),
        "steps/bench/log.txt",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_a_run_ends_with_its_figures_against_the_run_before(store: FileStore) -> None:
    first, second = (measured(store, [simple(us, seed=7)], at=60 * i) for i, us in enumerate((14.0, 10.0)))
    text = printed(store.get(second), store.folder(second))
    _, _, end = text.partition(f"Faster or slower?  against {first}")
    assert re.search(r"✓ faster +mission .* -28\.6 % ", end)
    assert f"why: fcctl results compare {first[-6:]} {second[-6:]}" in end
    assert max(map(len, end.splitlines()[1:-1])) <= 80
    assert "10.00 µs, 28.6 % faster than the previous run, the best so far, 2.00x faster than PyTorch." in " ".join(
        end.split()
    )
    alone = " ".join(printed(store.get(first), store.folder(first)).split())
    assert re.search(
        r"Faster or slower\? 1\d\.\d+ µs, no earlier result of this job to compare with, 1.* faster than Py", alone
    )


@pytest.mark.parametrize(("width", "most"), [(80, 80), (400, 132)])
def test_eighty_columns_are_enough_and_a_pipe_gets_no_padding_and_no_endless_lines(
    folder: Path, width: int, most: int
) -> None:
    lines = printed(sample_run.record(), folder, width=width).splitlines()
    assert max(len(line) for line in lines if str(folder) not in line) <= most
    assert not [line for line in lines if line != line.rstrip()]
    assert any("1.52x faster" in line for line in lines)
    assert any("3.6e-04" in line for line in lines)


def test_colour_is_never_all_there_is(folder: Path) -> None:
    plain, coloured = (printed(sample_run.record(), folder, color=c) for c in (False, True))
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def test_an_encoding_without_the_signs_gets_others(folder: Path) -> None:
    text = printed(sample_run.record(), folder, encoding="ascii")
    assert "x failed" in text
    assert "+ passed" in text
    assert "times in us" in text


def test_the_cases_that_failed_say_why(folder: Path) -> None:
    sample_run.write_documents(folder, {"test": sample_run.correctness(failing="s64/2")})
    text = printed(sample_run.record(), folder)
    assert "✗ 16/17 cases passed" in text
    assert "s64/2: max error is above 4.0e-04" in text


def test_each_case_s_error_stands_above_its_own_limit(folder: Path) -> None:
    document = sample_run.correctness()
    for case in document["cases"]:
        case["tolerance"]["max_err"] = 1.1 * case["max_err"]  # of its own inputs: another seed's is no limit of it
    sample_run.write_documents(folder, {"test": document})
    lines = printed(sample_run.record(), folder, width=80).splitlines()
    (number,) = (i for i, line in enumerate(lines) if line.split()[:2] == ["s64", "1,8,64,64"])
    errors, limits = lines[number].split()[3::2], lines[number + 1].split()[1:]
    assert (errors, limits) == (["1.2e-04", "2.4e-04", "3.6e-04"], ["1.3e-04", "2.6e-04", "4.0e-04"])
    assert all(float(error) <= float(limit) for error, limit in zip(errors, limits, strict=True))
    assert [lines[number].index(error) for error in errors] == [lines[number + 1].index(limit) for limit in limits]


def test_a_skipped_case_neither_passed_nor_failed(folder: Path) -> None:
    cases = [
        {"name": "adds", "status": "passed", "passed": True},
        {"name": "huge", "status": "skipped", "passed": False, "message": "needs 24 GB"},
    ]
    summary = {"total": 2, "passed": 1, "failed": 0, "skipped": 1}
    document = {"kind": "correctness", "schema_version": 1, "cases": cases, "summary": summary}
    sample_run.write_documents(folder, {"test": document})
    text = printed(sample_run.record(), folder)
    assert "○ 1/2 cases passed, 1 skipped" in text
    assert "- skipped" in text
    assert "huge: needs 24 GB" in text
    assert "max err" not in text, "a column without a figure"


def test_of_many_cases_without_errors_only_those_that_did_not_pass_are_named(folder: Path) -> None:
    names = [f"test_matmul[randn-dtype0-1e-10-0-kernel_{i:03}-128-128-128]" for i in range(60)]
    cases: list[dict[str, object]] = [{"name": name, "passed": True} for name in names]
    cases[20] = {"name": names[20], "status": "skipped", "passed": False, "message": "needs 24 GB"}
    cases[50] = {"name": names[50], "passed": False, "message": "TypeError: 21"}
    summary = {"total": 60, "passed": 58, "failed": 1, "skipped": 1}
    document = {"kind": "correctness", "schema_version": 1, "cases": cases, "summary": summary}
    sample_run.write_documents(folder, {"test": document})
    text = printed(sample_run.record(), folder)
    lines = [line.strip() for line in text.splitlines() if "test_matmul" in line]
    assert lines == [f"{names[50]}: TypeError: 21", f"{names[20]}: needs 24 GB"]


def test_of_more_cases_than_rows_those_that_failed_come_first(folder: Path) -> None:
    cases = [{"name": f"case {i:03}", "passed": i < 50, "max_err": 0.5} for i in range(100)]
    document = {"kind": "correctness", "schema_version": 1, "cases": cases, "summary": {"total": 100, "passed": 50}}
    sample_run.write_documents(folder, {"test": document})
    text = printed(sample_run.record(), folder)
    assert "case 049" not in text
    assert text.count("✗ failed") >= 40
    assert "... and 60 more" in text, "rows"
    assert "... and 10 more" in text, "the failed cases, with their messages"


def test_no_case_at_all_is_no_success(folder: Path) -> None:
    sample_run.write_documents(folder, {"test": {"kind": "correctness", "summary": {"total": 0, "passed": 0}}})
    assert "○ 0/0 cases passed" in printed(sample_run.record(), folder)


def test_the_end_of_a_failed_steps_log_is_shown(tmp_path: Path) -> None:
    log = "exit code 2\n" + "\n".join(f"line {i}" for i in range(50))
    for status, oldest in (("failed", 35), ("warned", 49)):
        text = printed(with_step(sample_run.record(), message=log, status=status), tmp_path)
        assert "exit code 2" in text
        assert [i for i in range(50) if f"line {i}\n" in text] == list(range(oldest, 50))


def test_the_error_behind_which_others_still_compiled_is_shown(folder: Path) -> None:
    error = "a.cu:2:10: fatal error: cublas_v2.h: No such file or directory"
    compiled = "ptxas info    : Used 55 registers\n" * 40
    make = "make: *** [Makefile:2: a] Error 2\nmake: Target 'all' not remade because of errors.\n"
    (folder / "build.txt").write_text(f"{error}\n{compiled}{make}made all but: a.cu\n")
    shown = printed(with_step(sample_run.record(status="failed"), status="failed", log="build.txt"), folder)
    lines = [line for line in shown.splitlines() if line.startswith("    |")]
    assert error in lines[0]
    assert "made all but: a.cu" in lines[-1]
    assert "***" not in shown


def test_a_failed_gate_is_told_once_more_at_the_end(folder: Path) -> None:
    (folder / "steps/bench/log.txt").write_text("\x1b[31mtimed\x1b[0m\n\nthe end\n")
    end = printed(sample_run.record(), folder)
    end = end[end.index("Failed  bench") :]
    assert 'gate: benchmark.benchmarks[name="mission"].stats.p50 < 900  is 1000' in end
    assert "hint: profile it: fcctl run ncu" in end
    assert "\n    |  timed\n    |  the end\n" in end
    assert "  all:  fcctl logs " in end
    assert f"  log:  {folder}/steps/bench/log.txt\n" in end, "in one piece, to be copied"


@pytest.fixture
def surrounded(tmp_path: Path) -> Path:
    """A run's folder with a link to outside and a FIFO in it, and files outside that must not be read."""
    run = tmp_path / "run"
    (run / "steps").mkdir(parents=True)
    for name in ("secret.txt", "log.txt"):
        (tmp_path / name).write_text("stolen")
    for name in ("secret.json", "x.json"):
        (tmp_path / name).write_text('{"kind": "metrics", "metrics": {"stolen": 1}}')
    (run / "steps" / "link").symlink_to(tmp_path)
    os.mkfifo(run / "fifo")
    return run


def with_step(record: RunRecord, **changes: Any) -> RunRecord:
    """``record`` with its first step alone, changed."""
    return record.model_copy(update={"steps": [record.steps[0].model_copy(update={"documents": [], **changes})]})


@pytest.mark.parametrize("log", ["../secret.txt", "/etc/passwd", "steps/link/log.txt", "fifo", "missing.txt"])
def test_a_log_that_is_no_plain_file_of_the_run_is_not_read(surrounded: Path, log: str) -> None:
    failed = with_step(sample_run.record(), log=log, status="failed", message="exit code 2\nfrom the host")
    text = printed(failed, surrounded)
    assert "stolen" not in text
    assert "root:" not in text
    assert "|  from the host" in text


@pytest.mark.parametrize("path", ["../secret.json", "/etc/passwd", "steps/link/x.json", "missing.json", "fifo"])
def test_documents_outside_or_gone_are_named_not_read(surrounded: Path, path: str) -> None:
    named = with_step(sample_run.record(), documents=[DocumentRecord(kind="metrics", path=path)])
    text = printed(named, surrounded)
    assert "not shown: preflight" in text
    assert "stolen" not in text


@pytest.mark.parametrize("status", ["timed_out", "cancelled", "unavailable"])
def test_every_bad_end_has_its_section(tmp_path: Path, status: str) -> None:
    ended = with_step(sample_run.record(status="failed"), status=status, message="why\nmore", hint="do this")
    text = printed(ended, tmp_path)
    end = text[text.index(f"{status.replace('_', ' ').capitalize()}  preflight") :]
    assert "why" in end
    assert "hint: do this" in end


def test_no_steps_no_documents(tmp_path: Path) -> None:
    record = sample_run.record(steps=[], omitted=[], status="lost", message="the host is gone", hint="run it again")
    text = printed(record, tmp_path)
    assert "✗ lost" in text
    assert "the host is gone" in text
    assert "hint: run it again" in text


EVIL = "\x1b]0;owned\x07\x1b[2J[red]evil[/red]\u202e\n" + "x" * 5000


def poisoned(value: Any) -> Any:
    if isinstance(value, str):
        return EVIL
    if isinstance(value, dict):
        return {k: poisoned(v) for k, v in value.items()}
    return [poisoned(v) for v in value] if isinstance(value, list) else value


def test_what_a_host_wrote_cannot_drive_the_terminal(tmp_path: Path) -> None:
    documents = {
        step: poisoned(content) | {"kind": content["kind"]}
        for step, content in {
            "preflight": sample_run.ENVIRONMENT, "build": sample_run.BUILD,
            "test": sample_run.correctness(failing="s64/1"), "bench": sample_run.benchmark(),
        }.items()
    }  # fmt: skip
    sample_run.write_documents(tmp_path, documents)
    record = sample_run.record(message=EVIL, hint=EVIL, job=EVIL, target=EVIL)
    gate = GateRecord(expr=EVIL, value=EVIL, verdict="fail", hint=EVIL)
    steps = [s.model_copy(update={"gates": [gate], "message": EVIL, "hint": EVIL}) for s in record.steps]
    text = printed(record.model_copy(update={"steps": steps}), tmp_path)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[red]evil[/red]" in text, "markup is shown, not obeyed"


ODD: list[Any] = [
    None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400, "text", [], {}, [[]], [None, 1, "x"], {"name": {}},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("kind", ["environment", "build", "correctness", "benchmark", "profile", "metrics", "tuning"])
def test_any_shape_of_document_is_shown_without_an_error(tmp_path: Path, kind: str, odd: Any) -> None:
    keys = (
        "checks", "summary", "gpu", "cpu", "cuda", "kernels", "archs", "tool", "duration_s", "cases", "benchmarks",
        "comparisons", "metrics", "variant", "search", "metric", "trials", "final", "default", "effort", "curve",
    )  # fmt: skip
    entries = ("name", "stats", "unit", "shape", "tolerance", "max_err", "passed", "status", "registers", "metrics")
    documents = [DocumentRecord(kind=kind, path=f"steps/preflight/out/{kind}.json")]
    record = with_step(sample_run.record(), documents=documents)
    for content in (
        dict.fromkeys(keys, odd),
        {key: [dict.fromkeys(entries, odd)] for key in keys},
        {key: {"name": odd, "p50": odd} for key in keys},
        {"benchmarks": [{"name": "mission", "stats": {"p50": odd, "n": odd}}], "cases": [{"name": "a/1", "seed": odd}]},
    ):
        sample_run.write_documents(tmp_path, {"preflight": {**content, "kind": kind}})
        assert "preflight" in printed(record, tmp_path)


def incomplete() -> RunRecord:
    """A run of a step with a gate that was left open, and of one whose undecided gate is optional."""
    build, _, _, test, _ = sample_run.record().steps
    gate = GateRecord(expr="benchmark.speedup > 2", verdict="unavailable", hint="no 'speedup'; print it")
    left_open = test.model_copy(update={"status": "unavailable", "gates": [gate], "documents": []})
    excused = build.model_copy(update={"gates": [gate.model_copy(update={"optional": True})], "documents": []})
    message = "step 'test': gate without a value: benchmark.speedup > 2: no 'speedup'; print it"
    return sample_run.record(status="incomplete", exit_code=104, message=message, steps=[excused, left_open])


def test_a_gate_that_was_left_open_is_told_and_one_that_is_optional_is_not(tmp_path: Path) -> None:
    text = printed(incomplete(), tmp_path, width=120)
    assert "phase0 on local  ◐ incomplete in 26 s" in text
    assert "step 'test': gate without a value: benchmark.speedup > 2: no 'speedup'; print it" in text
    assert "○ unavailable  benchmark.speedup > 2  optional" in text
    assert "Unavailable  test\n  gate: benchmark.speedup > 2  has no value\n  hint: no 'speedup'; print it" in text
    assert "Unavailable  preflight" not in text
    assert reason(incomplete())[1] == "gate: benchmark.speedup > 2 has no value"
    assert "% incomplete" in printed(incomplete(), tmp_path, encoding="ascii")


def test_a_host_that_says_incomplete_of_any_steps_is_shown(tmp_path: Path) -> None:
    steps = [step.model_copy(update={"status": "passed"}) for step in incomplete().steps]
    assert "◐ incomplete" in printed(incomplete().model_copy(update={"steps": steps}), tmp_path)
    assert "◐ incomplete" in printed(incomplete().model_copy(update={"steps": []}), tmp_path)


PASSED = sample_run.record(status="passed", exit_code=0)


def listed(*records: RunRecord, width: int = 120, **how: Any) -> str:
    out = io.StringIO()
    print_runs(list(map(row_of, records)), Console(**{"file": out, "width": width, "color_system": None, **how}), 0.0)
    return out.getvalue()


def test_the_list_of_runs_has_a_sign_and_a_colour_for_it() -> None:
    text = listed(incomplete(), PASSED, force_terminal=True, color_system="standard", legacy_windows=False)
    assert "\x1b[35m◐ incomplete" in text
    assert "\x1b[32m✓ passed" in text


def test_the_list_of_runs_marks_a_source_with_uncommitted_changes() -> None:
    sources = [SourceRecord(tree_sha256="0" * 64, git_commit="6ad6c5bfeb8f" + "0" * 28, dirty=d) for d in (True, False)]
    text = listed(*(PASSED.model_copy(update={"source": source}) for source in sources), width=160)
    assert text.count("6ad6c5bfe") == 2
    assert text.count("6ad6c5bfe + changes") == 1


def test_a_run_id_is_whole_in_the_list_of_a_narrow_terminal() -> None:
    run_id = f"20261121t081530z-{'x' * 39}-3fa9c1"
    text = listed(PASSED.model_copy(update={"run_id": run_id}), width=80)
    first = "".join(line.split()[0] for line in text.splitlines()[1:])
    assert run_id in text.replace("\n", " ").split() or run_id in first


def test_a_status_has_one_sign_on_terminals_and_pages_and_a_kind_by_its_first_word() -> None:
    """``incomplete`` was a cross on a page, as if it had failed."""
    signs = {"passed": "✓", "incomplete": "◐", "failed": "✗", "unavailable": "○"}
    assert signs == {status: sign(status) for status in signs} == {status: mark(status).plain[0] for status in signs}
    kinds = {"passed": "good", "passed 3/4": "good", "incomplete": "open", "failed": "bad", "failed: why": "bad",
             "not met": "bad", "wrong 1/2": "bad", "unavailable": "plain", "unknown words": "plain"}  # fmt: skip
    assert kinds == {status: kind(status) for status in kinds}


def test_a_build_without_code_for_the_machine_s_gpu_says_so(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps({**sample_run.BUILD, "no_code_for": "sm_90"}))
    record = with_step(sample_run.record(), documents=[DocumentRecord(kind="build", path="b.json")])
    assert "no machine code for sm_90: it runs there only if it has PTX" in printed(record, tmp_path, width=100)


def test_the_unit_of_a_metric_is_not_cut_off(tmp_path: Path) -> None:
    named = "Custom GEMM Kernel V00 cuBLAS GEMM Kernel Performance"
    units = {f"{named} Effective Bandwidth GB/s": 19.1, f"{named} Effective GFLOP/s": 13050.0}
    (tmp_path / "m.json").write_text(json.dumps({"kind": "metrics", "metrics": units}))
    record = with_step(sample_run.record(), documents=[DocumentRecord(kind="metrics", path="m.json")])
    text = printed(record, tmp_path, width=100)
    assert all(name in text for name in units)


def test_each_hint_of_a_step_that_could_not_run_is_said_once(tmp_path: Path) -> None:
    hint = "this machine has no ncu; install it: sudo apt install ncu"
    gates = [GateRecord(expr=expr, verdict="unavailable", hint=hint) for expr in ("tensor > 50", "dram > 50")]
    told = {"message": "this machine has no ncu", "hint": "install it: sudo apt install ncu"}
    ended = sample_run.record(status="incomplete", exit_code=104)
    text = printed(with_step(ended, status="unavailable", gates=gates, **told), tmp_path, width=120)
    section = text[text.index("Unavailable  preflight") :]
    assert section.count("sudo apt install ncu") == 1
    lines = [f"gate: {gate.expr}  has no value" for gate in gates]
    assert section.index(lines[0]) < section.index(lines[1]) < section.index("hint: ")
