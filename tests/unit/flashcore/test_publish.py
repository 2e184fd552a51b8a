"""A run becomes evidence: what is kept, what is not, and the tables made of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flashcore import publish

ROOT = Path(__file__).resolve().parents[3]
RUN = "20261121t101500z-evidence-box-abc123"
SECRETS = ("/home/alice", "alice", "gpubox", "GPU-1234")
SHAPE = {"B": 1, "H": 8, "S": 512, "D": 64}


def row(name: str, p50: float, bound: str = "tensor") -> dict[str, Any]:
    roofline = {"pct": 50.0, "bound": bound}
    return {"name": name, "shape": SHAPE, "stats": {"p50": p50}, "samples": [p50] * 100, "roofline": roofline}


def benchmark(label: str, hot: float) -> dict[str, Any]:
    clocks = [{"sm_mhz": 1900 + i, "power_w": 60.0, "throttled": ["sw_power_cap"] * (i == 3)} for i in range(25)]
    ratio = {"ratio": hot / 10, "ci_low": hot / 10 - 0.01, "ci_high": hot / 10 + 0.01}
    return {
        "kind": "benchmark", "label": label, "variant": label, "device": "NVIDIA H200", "torch": "2.11",
        "method_version": 2,
        "environment": {"driver": "580.1", "cuda": "13.0"},
        "benchmarks": [
            row("mission", hot), row("mission/cold", hot + 3, "memory"), row("mission/eager", hot + 10, "launch"),
            row("mission/sdpa-flash", 10.0),
        ],
        "comparisons": [{"benchmark": "mission", "against": "mission/sdpa-flash", **ratio, "clocks": clocks}],
        "fastest": [{"benchmark": "mission", "against": "mission/sdpa-flash", **ratio}],
    }  # fmt: skip


def build(label: str, registers: int) -> dict[str, Any]:
    kernel = {
        "name": "flashcore",
        "registers": registers,
        "stack_bytes": 0,
        "spill_store_bytes": 4,
        "spill_load_bytes": 8,
    }
    return {
        "kind": "build", "label": label, "command": "nvcc -I/home/alice/k", "artifacts": ["/home/alice/kernel.so"],
        "kernels": [{**kernel, "arch": "sm_89"}, {**kernel, "arch": "sm_90", "registers": 250}],
    }  # fmt: skip


PROFILE = {
    "kind": "profile", "label": "fused", "shape": {"name": "mission"},
    "kernels": [{
        "name": "flashcore_fused", "process": "python", "raw": {"x": 1.0},
        "metrics": {"tensor_active_pct": 41.6, "occupancy_pct": 24.0},
        "top_stalls": [{"reason": "barrier", "warps": 2.25}, {"reason": "wait", "warps": 1.0}],
    }],
}  # fmt: skip
CORRECTNESS = {
    "kind": "correctness", "label": "fused",
    "summary": {"total": 20, "passed": 20, "max_err": 0.00031, "max_rel_rms": 4e-4, "of_sdpa": 1.02},
    "sanitizer": [{"tool": "memcheck", "status": "passed"}, {"tool": "racecheck", "status": "unavailable"}],
}  # fmt: skip
PEAKS = {
    "mma_f32_tflops": 640.0, "mma_f32_tflops_sustained": 600.0, "mma_f32_cycles": 8.2, "mma_f32_over_f16_cycles": 1.0,
    "exp2_gops": 4100.0, "exp2_per_clock_sm": 16.0, "dram_copy_gbps": 4200.0, "l2_copy_gbps": 5600.0,
    "empty_graph_us": 0.9, "empty_eager_us": 5.0, "empty_queue_us": 2.1,
}  # fmt: skip
ENVIRONMENT = {
    "kind": "environment", "checks": [], "boot_id": "b00t", "gpu": {"name": "NVIDIA H200", "uuid": "GPU-1234"},
    "torch": {"python": "/home/alice/venv/bin/python", "version": "2.11"}, "env": {"HOME": "/home/alice"},
}  # fmt: skip
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'flashcore_fused' for 'sm_89'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 124 registers
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'flashcore_fused' for 'sm_90'
ptxas info    : Used 250 registers
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / RUN
    documents = {
        "preflight/environment": ENVIRONMENT,
        "build/build-fused": build("fused", 124),
        "build/build-baseline": build("baseline", 40),
        "check/correctness-fused": CORRECTNESS,
        "peaks/peaks": {"kind": "metrics", "metrics": PEAKS},
        "bench/benchmark-baseline": benchmark("baseline", 170.0),
        "bench/benchmark-wmma": benchmark("wmma", 6.0),
        "bench/benchmark-fused": benchmark("fused", 8.0),
        "bench/bench_export": {"results": {}},
        "profile/profile-fused-mission": PROFILE,
    }
    for name, content in documents.items():
        step, stem = name.split("/")
        path = folder / "steps" / step / "out" / f"{stem}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (folder / "steps/build/out/build-fused.log").write_text(LOG)
    (folder / "steps/profile/out/fused-mission.ncu-rep").write_bytes(b"\0" * 1000)
    readings = [json.dumps({"time": i, "hostname": "gpubox", "power_w": 60}) for i in range(5000)]
    (folder / "telemetry.jsonl").write_text("\n".join(readings) + '\n{"cut o')
    (folder / "run.json").write_text(json.dumps({
        "schema_version": 1, "run_id": RUN, "job": "evidence", "status": "passed", "target": "alice@gpubox",
        "host": {"hostname": "gpubox", "gpu": ENVIRONMENT["gpu"], "torch": ENVIRONMENT["torch"]},
        "steps": [{"id": "build", "status": "passed", "message": "wrote /home/alice/x", "log": "steps/build/log.txt"}],
    }))  # fmt: skip
    return folder


@dataclass(frozen=True)
class Place:
    """Where a run is published, and the page that has the tables."""

    to: Path
    docs: Path

    def publish(self, *runs: Path) -> Path:
        """The folder that keeps the last run."""
        assert publish.main([*map(str, runs), "--to", str(self.to), "--docs", str(self.docs)]) == 0
        return self.to / runs[-1].name if runs else self.to

    def text(self, *runs: Path) -> str:
        self.publish(*runs)
        return self.docs.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "kernels.md").write_text(f"# Kernels\n\n{publish.BEGIN}\nold\n{publish.END}\n\nafter\n")
    return Place(tmp_path / "reference/h200", tmp_path / "kernels.md")


def renamed(run: Path, name: str, **changes: Any) -> Path:
    """The same run as another one, in which `fused` takes 5 us."""
    later = run.rename(run.with_name(name))
    record = json.loads((later / "run.json").read_text())
    (later / "run.json").write_text(json.dumps({**record, "run_id": name, **changes}))
    (later / "steps/bench/out/benchmark-fused.json").write_text(json.dumps(benchmark("fused", 5.0)))
    return later


def test_documents_come_along_and_nothing_bulky_or_private(run: Path, place: Place) -> None:
    kept = place.publish(run)
    assert {p.name for p in kept.iterdir()} == {
        "run.json", "telemetry.jsonl", "preflight-environment.json", "build-build-fused.json",
        "build-build-baseline.json", "check-correctness-fused.json", "peaks-peaks.json",
        "bench-benchmark-baseline.json", "bench-benchmark-wmma.json",
        "bench-benchmark-fused.json", "profile-profile-fused-mission.json", "ptxas-build-fused.log",
    }  # fmt: skip
    everything = "".join(p.read_text() for p in kept.iterdir())
    assert [s for s in SECRETS if s in everything] == []
    assert "250" not in (kept / "ptxas-build-fused.log").read_text()
    assert "Used 124 registers" in (kept / "ptxas-build-fused.log").read_text()
    assert "raw" not in json.loads((kept / "profile-profile-fused-mission.json").read_text())["kernels"][0]
    assert 500 <= len((kept / "telemetry.jsonl").read_text().splitlines()) <= 600


def test_samples_stay_and_clocks_become_ranges(run: Path, place: Place) -> None:
    kept = json.loads((place.publish(run) / "bench-benchmark-fused.json").read_text())
    assert kept["benchmarks"][0]["samples"] == [8.0] * 100
    clocks = kept["comparisons"][0]["clocks"]
    assert clocks == {
        "readings": 25, "sm_mhz": [1900, 1924], "power_w": [60.0, 60.0], "throttled": ["sw_power_cap"]
    }  # fmt: skip


def cells(text: str, heading: str, first: str) -> list[str]:
    section = text.split(f"#### {heading}", 1)[1].split("\n#", 1)[0]
    line = next(line for line in section.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_say_what_was_measured(run: Path, place: Place) -> None:
    text = place.text(run)
    assert text.startswith("# Kernels\n")
    assert text.endswith("\n\nafter\n")
    assert "\nold\n" not in text
    assert "### NVIDIA H200" in text
    assert f"`{RUN}` (passed)" in text
    assert "640 TFLOP/s (600 sustained), 8.2 clocks each: the full rate" in text
    ladder = cells(text, "Ladder", "`fused`")
    assert ladder[2:] == [
        "8.00", "11.00", "18.00", "21.2x", "0.80 [0.79, 0.81]", "-", "50 (tensor)", "124", "0", "12", "42"
    ]  # fmt: skip
    assert ladder[1].startswith("mma.sync with probabilities in registers")
    assert cells(text, "1,8,512,64", "`wmma`")[1:5] == ["6.00", "9.00", "16.00", "0.60 [0.59, 0.61]"]
    assert cells(text, "1,8,512,64", "PyTorch, hot us")[4:6] == ["10.00", "-"]
    assert cells(text, "Correctness", "`fused`") == [
        "`fused`", "20/20", "0.00031", "0.0004", "1", "memcheck passed, racecheck unavailable"
    ]  # fmt: skip


def test_shapes_that_differ_in_keys_alone_are_told_apart_and_each_method_is_named(run: Path, place: Place) -> None:
    bench = benchmark("fused", 8.0)
    shape = {"B": 1, "H": 32, "S": 1, "D": 128, "S_kv": 4096, "H_kv": 8}
    rows = [{**row("1,32:8,1:4096,128", 7.0), "shape": shape}, {**row("1,32:8,1:1024,128", 5.0), "shape": shape}]
    flex = {
        "benchmark": "1,32:8,1:1024,128", "against": "1,32:8,1:1024,128/torch-flex",
        "ratio": 0.9, "ci_low": 0.88, "ci_high": 0.91,
    }  # fmt: skip
    document = {
        **bench, "benchmarks": [*bench["benchmarks"], *rows], "comparisons": [*bench["comparisons"], flex],
        "method_version": 4,
    }  # fmt: skip
    (run / "steps/bench/out/benchmark-fused.json").write_text(json.dumps(document))
    text = place.text(run)
    assert [cells(text, f"1,32:8,1:{keys},128", "`fused`")[1] for keys in (4096, 1024)] == ["7.00", "5.00"]
    assert [len(cells(text, f"1,32:8,1:{keys},128", "`fused`")) for keys in (4096, 1024)] == [9, 10]
    assert cells(text, "1,32:8,1:1024,128", "`fused`")[8] == "0.90 [0.88, 0.91]"
    assert "method 2 and 4. Runs:" in text


def test_a_kernel_that_is_left_out_for_an_l4_has_the_registers_of_where_it_runs(run: Path, place: Place) -> None:
    """A trap takes 4 registers: that is nothing about the kernel."""
    (run / "steps/build/out/build-fused.json").write_text(json.dumps(build("fused", 4)))
    row = next(line for line in place.text(run).splitlines() if line.startswith("| `fused`"))
    assert "| 250 (sm_90) | 0 | 12 |" in row


def test_a_step_up_that_is_slower_is_told_with_its_reason(run: Path, place: Place) -> None:
    place.to.mkdir(parents=True)
    (place.to / "notes.json").write_text(json.dumps({"fused": "the merge | costs more than it saves"}))
    negative = place.text(run).split("#### Negative results")[1]
    assert "`fused` at mission: 1.33 of `wmma`'s time. Warps wait for barrier 2.25, wait 1.00 per issue" in negative
    assert "tensor cores 42 %, occupancy 24 %" in negative
    assert "`fused`: the merge / costs more than it saves" in negative
    assert "`wmma` at" not in negative


def test_publishing_again_changes_nothing_and_a_later_run_counts(run: Path, place: Place) -> None:
    assert place.text(run) == place.text(run)
    text = place.text(renamed(run, "20261122t101500z-bench-box-def456"))
    assert cells(text, "Ladder", "`fused`")[2] == "5.00"
    assert len(cells(text, "Ladder", "`wmma`")) == 13


def test_shapes_that_a_later_run_did_not_measure_keep_their_rows(run: Path, place: Place) -> None:
    bench = benchmark("fused", 8.0)
    long = {**row("4,16,2048,128", 374.0), "shape": {"B": 4, "H": 16, "S": 2048, "D": 128}}
    ratio = {"benchmark": "4,16,2048,128", "against": "4,16,2048,128/sdpa-flash",
             "ratio": 0.94, "ci_low": 0.93, "ci_high": 0.95}  # fmt: skip
    document = {**bench, "benchmarks": [*bench["benchmarks"], long], "comparisons": [*bench["comparisons"], ratio]}
    (run / "steps/bench/out/benchmark-fused.json").write_text(json.dumps(document))
    before = cells(place.text(run), "4,16,2048,128", "`fused`")
    assert before[4] == "0.94 [0.93, 0.95]"
    text = place.text(renamed(run, "20261122t101500z-bench-box-def456"))
    assert cells(text, "4,16,2048,128", "`fused`") == before
    assert cells(text, "Ladder", "`fused`")[2] == "5.00"


def test_a_stage5_run_is_a_line_with_its_artifacts_and_changes_no_table(run: Path, place: Place) -> None:
    before = place.text(run)
    later = renamed(run, "20261122t101500z-stage5-box-def456", job="stage5")
    goal = {"kind": "metrics", "metrics": {}, "goal": {"met": False, "text": "fused is 13.7x, the target is 15x"}}
    (later / "steps/bench/out/target.json").write_text(json.dumps(goal))
    for name, text in {
        "reports/summary.md": "# stage5\n\nlog: /root/.fcctl/runs/x/log.txt\n",
        "bench/candidate_best.json": json.dumps({"variant": "fused", "hostname": "secret"}),
        "tune/journal.log": "no",
    }.items():
        (later / "artifacts" / name).parent.mkdir(parents=True, exist_ok=True)
        (later / "artifacts" / name).write_text(text)
    text = place.text(later)
    line = f"- [`{later.name}`](h200/{later.name}/artifacts/reports/summary.md): target not met. fused is 13.7x"
    assert line in text
    assert text.replace(text[text.index("#### The job stage5") : text.index("#### Ladder")], "") == before
    kept = place.to / later.name / "artifacts"
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*.*")) == [
        "bench/candidate_best.json", "reports/summary.md"
    ]  # fmt: skip
    assert json.loads((kept / "bench/candidate_best.json").read_text()) == {"variant": "fused"}
    assert "log: .../log.txt" in (kept / "reports/summary.md").read_text()


def test_ceilings_that_were_measured_again_correct_what_was_published(run: Path, place: Place) -> None:
    place.publish(run)
    more = {"mma_f32_tflops": 128.0, "mma_f16_cycles": 8.0, "max_clock_mhz": 1980.0, "sms": 132, "l2_bytes": 5e7}
    (place.to / "peaks.json").write_text(json.dumps({"kind": "metrics", "metrics": {**PEAKS, **more}}))
    text = place.text()
    assert "Measured ceilings, after the runs:" in text
    assert "128 TFLOP/s" in text
    assert cells(text, "Ladder", "`fused`")[8] == "52 (tensor)"  # 4.19 of 8 us
    assert cells(text, "1,8,512,64", "`wmma`")[-1] == "70 (tensor)"


def test_what_is_no_run_or_has_no_place_is_refused(run: Path, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--to", str(place.to), "--docs", str(place.docs)]
    assert publish.main([str(run.parent), *where]) == 2
    assert "is not a run's folder" in capsys.readouterr().err
    place.docs.write_text("# Kernels\n")
    assert publish.main([str(run), *where]) == 2
    assert "has no lines that mark the place of the tables" in capsys.readouterr().err


def test_a_text_from_a_host_cannot_break_out_of_its_cell(run: Path, place: Place) -> None:
    path = run / "steps/bench/out/benchmark-fused.json"
    path.write_text(json.dumps({**benchmark("fused", 8.0), "label": "x | <script>`\n# y"}))
    text = place.text(run)
    assert "<script>" not in text
    assert "\n# y" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvcc -I/home/alice/kernels x.cu", "nvcc -I.../kernels x.cu"),
        ("in /home/alice/kernels/fused.cu:120", "in .../fused.cu:120"),
        ("~/venv/bin/python said", ".../python said"),
        (
            "ratio <= 1 / 7 of mission/cold, see https://x.org/a/b",
            "ratio <= 1 / 7 of mission/cold, see https://x.org/a/b",
        ),
    ],
)
def test_paths_keep_their_last_part(text: str, expected: str) -> None:
    assert publish.scrubbed(text) == expected


def test_the_page_has_the_place_and_docs_quote_it() -> None:
    text = (ROOT / publish.DOCS).read_text()
    assert text.count(publish.BEGIN) == text.count(publish.END) == 1
    kernels = (ROOT / "docs/kernels.md").read_text()
    quoted = 0
    for part in re.split(r"^### (?=NVIDIA)", kernels, flags=re.MULTILINE)[1:]:
        gpu = part.splitlines()[0]
        reference = text.split(f"### {gpu}\n", 1)[1].split("\n### ")[0]
        for line in re.findall(r"^\| `.*", part, re.MULTILINE):
            variant, *figures = [cell.strip() for cell in line.strip("|").split("|")]
            shape = figures.pop(0) if "," in figures[0] else "Ladder"
            assert figures == [c for c in cells(reference, shape, variant) if c in figures][: len(figures)], line
            quoted += 1
    assert quoted > 10
