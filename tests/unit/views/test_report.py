"""The report of real documents: what it says, and that hostile ones get nowhere."""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flashcore import advice
from orchestrator.base.clock import iso
from orchestrator.base.errors import FcctlError
from orchestrator.base.installation import to_install
from orchestrator.leases.session_rules import SessionRecord
from orchestrator.results.documents import Document, Documents, load
from orchestrator.results.look import Shown
from orchestrator.results.records import CostLine, CostRecord, DocumentRecord, GateRecord, StepRecord
from orchestrator.views import html as html_views
from orchestrator.views.blocks import Bars, Folded
from orchestrator.views.report import machine_charts, outputs, sections, session, words
from orchestrator.views.report.build import build, profile_cells
from orchestrator.views.report.charts import charts
from orchestrator.views.report.model import Goal, Report
from tests.support import reference_run, sample_run
from tests.support.stores import NOVEMBER

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e@ink@ | `*_[a](javascript:1)"


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build([reference_run.shown(reference_run.install(tmp_path_factory.mktemp("h200")))])


@pytest.fixture(scope="module")
def html(h200: Report) -> str:
    return outputs.render(h200, charts(h200))


def sample(folder: Path, documents: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Shown:
    sample_run.write_documents(folder, documents)
    record = sample_run.record(**changes)
    return Shown(record, folder, load(record, folder))


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


# ------------------------------------------------------------------------------------------------ what it says
def test_the_top_line_is_the_mission_the_fastest_first(h200: Report) -> None:
    table = h200.headline
    assert table is not None
    assert (table.case, table.mode, table.unit) == ("mission", "hot", "us")
    assert [r.label for r in table.ours] == ["flagship", "fused", "stage5", "stage2", "wmma", "baseline"]
    best = table.ours[0]
    assert best.p50 == pytest.approx(4.5054)
    first = next(words.verdict(h200))
    rivals = ("2.02x faster than the fastest SDPA", "13.7x faster than SDPA math", "2.26x faster than SDPA flash")
    assert first.endswith(f"hot: {', '.join(rivals)}."), "the strongest rival first"
    assert words.bounds(best.against["flash"]) == "[2.26, 2.27]"
    assert best.status == "correct 20/20"
    assert best.correctness is not None
    assert best.correctness.max_err == pytest.approx(0.00100037, rel=1e-4)


def test_each_other_shape_says_its_fastest_kernel_before_it_is_unfolded(h200: Report) -> None:
    (others,) = [section for section in sections.sections(h200) if section.id == "other"]
    first, *rest = [block for block in others.blocks if isinstance(block, Folded)]
    time = "flagship 5.27 µs, 1.94x faster than the fastest SDPA [1.93, 1.95], 37.7x faster than baseline"
    assert first.summary == f"mission (1,8,512,64), cold: {time}"
    assert len(rest) == 19


def test_each_reference_is_there_once_as_timed_beside_the_fastest(h200: Report) -> None:
    table = h200.headline
    assert table is not None
    references = [r for r in table.rows if r.is_reference]
    assert [r.label for r in references] == ["SDPA cuDNN", "SDPA flash", "SDPA efficient", "SDPA math"]
    document = json.loads((reference_run.H200 / "bench-benchmark-flagship.json").read_text())
    beside = {b["variant"]: b["stats"]["p50"] for b in document["benchmarks"] if b["mode"] == "hot"
              and b["name"].startswith("mission/")}  # fmt: skip
    assert {r.label: r.p50 for r in references} == {
        "SDPA cuDNN": beside["sdpa-cudnn"], "SDPA flash": beside["sdpa-flash"],
        "SDPA efficient": beside["sdpa-efficient"], "SDPA math": beside["sdpa-math"],
    }  # fmt: skip


def test_there_is_a_grade_on_an_l4_only(h200: Report, tmp_path: Path) -> None:
    assert all(row.grade is None for table in h200.tables for row in table.rows)
    assert "grade" not in outputs.markdown(h200)
    folder = reference_run.install(tmp_path)
    for path in (folder / "steps/bench/out").glob("*.json"):
        document = json.loads(path.read_text())
        document["device"] = "NVIDIA L4"
        reference_run.advise(document)
        path.write_text(json.dumps(document))
    on_l4 = build([reference_run.shown(folder)])
    assert on_l4.headline is not None
    assert [r.grade.letter for r in on_l4.headline.ours if r.grade] == ["A+", "A+", "A+", "A+", "A+", "C"]
    assert "Grade A+. Next:" in " ".join(words.verdict(on_l4))


def test_the_levers_are_the_fastest_kernels_first_with_their_numbers(h200: Report) -> None:
    found = words.levers(h200)
    assert [one.label for one in found] == ["flagship", "fused", "stage5", "stage2", "wmma", "baseline"]
    shape, first = found[0].findings[0]
    assert (shape, first.rule) == ("4,16,2048,64", "dependencies")
    assert first.facts[0][1] == "2.18 of 3.79 warps per issue: 58 %"
    assert found[-1].findings[0][1].rule == "scalar_fallback"
    assert all(len({f.rule for _, f in one.findings}) == len(one.findings) <= 3 for one in found)


def test_a_gate_that_did_not_pass_says_so(tmp_path: Path) -> None:
    made = build([sample(tmp_path)])
    assert [(step.id, gate.verdict) for _, step, gate in words.gates(made)] == [
        ("build", "not_applicable"), ("test", "pass"), ("bench", "fail"),
    ]  # fmt: skip
    text = outputs.markdown(made)
    assert "1 of 2 gates passed" in text
    assert "1 of 2 gates did not pass" in text
    assert "<summary>1 of 2 gates passed" in text, "what does not apply is not counted"
    assert "profile it: fcctl run ncu" in text
    assert "ended with status failed" in text


def test_a_run_with_a_gate_left_open_says_so(tmp_path: Path) -> None:
    message = "step 'bench': gate without a value: max(x) < 1: no 'x'; print it"
    optional = GateRecord(expr="max(x) < 1", verdict="unavailable", optional=True)
    steps = [sample_run.record().steps[0].model_copy(update={"gates": [optional]})]
    made = build([sample(tmp_path, status="incomplete", exit_code=104, message=message, steps=steps)])
    assert [(t["expr"], t["verdict"]) for t in outputs.document(made)["targets"]] == [
        ("max(x) < 1 (optional)", "unavailable")
    ]
    assert "ended with status incomplete: step 'bench': gate without a value" in outputs.markdown(made)
    assert '<span class="word open" data-sign="◐">incomplete</span>' in outputs.render(made, charts(made))


def test_a_profile_beside_its_target(h200: Report) -> None:
    cells = {(p.label, p.shape): profile_cells(p)[1:] for p in h200.profiles}
    assert cells["flagship", "4,16,2048,64"][1] == "56.1 %, met"
    assert cells["wmma", "4,16,2048,64"][1] == "24.7 %, not met"
    assert "448" not in " ".join(cells["wmma", "4,16,2048,64"]), "a profiler's duration is no benchmark"


def test_a_target_that_was_not_met_comes_with_bottlenecks_and_levers(h200: Report) -> None:
    label = next(one.label for one in words.levers(h200) if one.findings)
    for met in (True, False):
        said = list(words.verdict(replace(h200, goals=(Goal(met, "x is 12x Baseline A (SDPA math)", label),))))
        assert f"Target {'met' if met else 'not met'}: x is 12x Baseline A (SDPA math)." in said
        assert any(line.startswith("Top bottlenecks: ") for line in said) is not met
        assert any(line.startswith("Next levers: ") for line in said) is not met


def test_the_target_is_read_from_a_document_of_the_job(tmp_path: Path) -> None:
    goal = {"met": False, "text": f"{HOSTILE} is slow", "label": 7}
    document = {"kind": "metrics", "schema_version": 1, "metrics": {"x": 1.0}, "goal": goal}
    refs = [DocumentRecord(kind="metrics", path="steps/bench/out/metrics.json")]
    steps = [sample_run.record().steps[-1].model_copy(update={"documents": refs})]
    made = build([sample(tmp_path, {"bench": document}, steps=steps)])
    (found,) = made.goals
    assert "\x1b" not in found.text
    assert not found.met


@pytest.mark.parametrize(("registers", "said"), [(96, "96, met (at most 96)"), (166, "166, not met (at most 96)")])
def test_registers_are_held_against_an_upper_limit(h200: Report, registers: float, said: str) -> None:
    kernel = h200.profiles[0]
    kernel = replace(kernel, metrics={**kernel.metrics, "registers": registers}, targets=advice.targets("fused"))
    assert said in profile_cells(kernel)
    assert advice.targets("flagship") == advice.TARGETS


def test_machines_are_never_mixed_in_one_table(tmp_path: Path) -> None:
    runs = [reference_run.shown(reference_run.install(tmp_path)), sample(tmp_path / "cpu")]
    made = build(runs)
    assert made.gpus == ("NVIDIA H200", "no GPU")
    assert {t.machine for t in made.tables} == set(made.gpus)
    assert all({r.machine for r in t.rows} == {t.machine} for t in made.tables)
    names = [chart.name for chart in charts(made)]
    assert len(names) == len(set(names))
    assert {"latency-1", "roofline-1"} <= set(names)
    assert "on NVIDIA H200" in outputs.render(made, [])


def test_of_very_many_timings_the_fastest_are_drawn(tmp_path: Path) -> None:
    many = [{"name": "mission", "variant": f"v{i:02}", "unit": "us", "stats": {"p50": 100.0 - i}} for i in range(60)]
    made = build([sample(tmp_path, {"bench": {"kind": "benchmark", "benchmarks": many}})])
    (results,) = [one for one in sections.sections(made) if one.id == "results"]
    (bars,) = [block for block in results.blocks if isinstance(block, Bars)]
    assert [bar.label for bar in bars.bars] == [f"v{i}" for i in range(59, 35, -1)]
    assert "36 slower kernels" in bars.caption


def test_a_document_of_any_benchmark_tool_is_a_table_too(tmp_path: Path) -> None:
    plain = {"kind": "benchmark", "benchmarks": [
        {"name": "BM_copy/1024", "unit": "ns", "stats": {"p50": 10.5, "n": 3}},
        {"name": "BM_mean_only", "unit": "ns", "stats": {"mean": 4.0}},
        {"name": "BM_broken", "unit": "ns", "stats": {}, "error": "out of memory"},
    ]}  # fmt: skip
    made = build([sample(tmp_path, {"bench": plain})])
    text = outputs.markdown(made)
    assert "| BM\\_mean\\_only | 4.00 (mean) |" in text
    assert "| BM\\_copy/1024 | 10.50 |" in text
    assert "failed: out of memory" in text
    assert charts(made) == [], "no samples to draw"


@pytest.mark.parametrize(
    ("names", "said"),
    [(["copy"], "copy takes 20.00 µs."), (["triad", "copy"], "triad, the shortest of 2 timings, takes 10.00 µs.")],
)
def test_benchmarks_of_no_common_case_are_not_told_as_one(tmp_path: Path, names: list[str], said: str) -> None:
    times = {"triad": 10.0, "copy": 20.0}
    entries = [{"name": name, "unit": "us", "stats": {"n": 5, "p50": times[name]}} for name in names]
    report = build([sample(tmp_path, {"bench": {"kind": "benchmark", "benchmarks": entries}})])
    assert said in list(words.verdict(report))


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        ((0.97, 0.94, 1.01), "no measured difference to the fastest SDPA"),
        ((0.97, 0.94, 0.99), "1.03x faster than the fastest SDPA"),
        ((0.97, None, None), "1.03x faster than the fastest SDPA"),
    ],
)
def test_an_interval_that_holds_1_is_no_difference(tmp_path: Path, ratio: tuple[float | None, ...], said: str) -> None:
    entries = [{"name": f"mission{name}", "variant": variant, "unit": "us", "stats": {"p50": p50}}
               for name, variant, p50 in (("", "fused", 9.7), ("/sdpa", "sdpa", 10.0))]  # fmt: skip
    pair = {"benchmark": "mission", "against": "mission/sdpa"}
    compared = {**pair, **dict(zip(("ratio", "ci_low", "ci_high"), ratio, strict=True))}
    bench = {"kind": "benchmark", "benchmarks": entries, "comparisons": [compared]}
    made = build([sample(tmp_path, {"bench": bench})])
    assert f"fused takes 9.70 µs on mission: {said}." in list(words.verdict(made))
    assert f"9.70 µs, {said}" in outputs.markdown(made).replace("\\[", "[")


@pytest.mark.parametrize(
    ("summaries", "said"),
    [
        ([{"total": 5, "passed": 3}, {"total": 4, "passed": 4, "max_err": 0.5}], "wrong 7/9"),
        ([{"total": 4, "passed": 4}, {"total": 2, "passed": 1, "skipped": 1}], "passed 5/6, 1 skipped"),
        ([{"total": 3, "passed": 0, "skipped": 3}], "not checked, 3 skipped"),
        ([{}], "not checked"),
    ],
)
def test_a_later_report_of_tests_hides_no_failure_and_no_test_is_no_success(
    tmp_path: Path, summaries: list[dict[str, Any]], said: str
) -> None:
    bench = {"kind": "benchmark", "benchmarks": [{"name": "copy", "unit": "us", "stats": {"n": 5, "p50": 10.0}}]}
    contents: list[dict[str, Any]] = [bench, *({"kind": "correctness", "summary": summary} for summary in summaries)]
    documents = Documents(tuple(Document("test", one["kind"], "a.json", one) for one in contents))
    shown = Shown(sample_run.record(), tmp_path, documents)
    assert f"Its results: {said}." in list(words.verdict(build([shown])))


def test_a_run_with_nothing_to_show_is_still_a_page(tmp_path: Path) -> None:
    made = build([sample(tmp_path, {"preflight": sample_run.ENVIRONMENT}, steps=[])])
    text = outputs.render(made, charts(made))
    assert "No benchmark results in this run" in text
    assert outputs.document(made)["tables"] == []


def test_what_an_emulated_machine_cost_was_never_spent(tmp_path: Path) -> None:
    cost = CostRecord(usd=0.5, usd_per_hour=0.71, billed_s=60, emulated=True)
    made = build([sample(tmp_path, {"preflight": sample_run.ENVIRONMENT}, steps=[], cost=cost)])
    assert "would have been $0.50 at $0.71 an hour; emulated, nothing was spent".replace(
        "$", "\\$"
    ) in outputs.markdown(made)
    assert "\n\n\n" not in outputs.markdown(made)
    assert outputs.document(made)["runs"][0]["emulated"] is True


def test_a_run_is_a_time_line_from_its_queue_to_the_stop_with_dollars(tmp_path: Path) -> None:
    began = iso(NOVEMBER + 100), iso(NOVEMBER + 130)
    steps = [
        StepRecord(id="build", status="passed", activity="build", started=began[0], duration_s=30, log="l"),
        StepRecord(
            id="bench", status="failed", activity="bench", started=began[1], duration_s=9, message="no \x07GPU\nits log"
        ),
        StepRecord(id="profile", status="skipped"),
    ]
    parts = {"boot": 40.0, "sync": 10.0, "build": 30.0, "bench": 9.0, "idle": 2.0, "collect": 5.0, "stop": 20.0}
    lines = [CostLine(activity=name, seconds=seconds, usd=seconds * 0.01) for name, seconds in parts.items()]
    cost = CostRecord(usd=1.16, usd_per_hour=36.0, billed_s=116, breakdown=lines)
    made = build([sample(tmp_path, created=iso(NOVEMBER + 30), steps=steps, cost=cost)])
    (section,) = [one for one in sections.sections(made) if one.id == "steps"]
    (bars,) = section.blocks
    assert isinstance(bars, Bars)
    assert [(bar.label, bar.start, bar.value) for bar in bars.bars] == [
        ("queue", 0, 20), ("boot", 20, 60), ("sync", 60, 70), ("build", 70, 100), ("bench", 100, 109),
        ("profile", 109, 109), ("collect", 109, 114), ("stop", 114, 134), ("between steps", 134, 134),
    ]  # fmt: skip
    assert bars.caption == "Timeline, 2 min 14 s; $1.16"
    assert [bar.text for bar in bars.bars[3:6]] == ["30 s, $0.30", "9.0 s, $0.0900, failed, no GPU", "skipped"]
    assert bars.bars[3].href.endswith("/log/build")
    assert bars.bars[4].role == "bad"


def test_json_says_the_same(h200: Report) -> None:
    found = outputs.document(h200)
    json.dumps(found, allow_nan=False)
    (best, *_) = found["tables"][0]["rows"]
    assert best["label"] == "flagship"
    assert best["speedup"]["math"]["value"] == pytest.approx(13.71, abs=0.01)
    assert best["speedup"]["math"]["low"] < best["speedup"]["math"]["value"] < best["speedup"]["math"]["high"]
    assert found["levers"][0]["findings"][0]["facts"][0]["threshold"] == ">= 25 %"


# ------------------------------------------------------------------------------------------------ the page
def test_without_its_libraries_it_says_what_to_install(h200: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jinja2", "markupsafe"):
        monkeypatch.setitem(sys.modules, name, None)
    html_views.environment.cache_clear()
    with pytest.raises(FcctlError, match="this Python cannot write HTML") as caught:
        outputs.render(h200, [])
    assert caught.value.hint == to_install("web")


def test_the_page_needs_nothing_from_elsewhere_and_holds_no_script(html: str) -> None:
    elements = Elements(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {t for t, _ in elements.tags}
    for tag, attrs in elements.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "srcset"), (tag, name)
            assert name != "href" or (value or "").startswith("#"), (tag, value)
    assert "url(" not in html
    assert "@import" not in html
    (policy,) = [m["content"] for m in elements.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert len(html) < 400_000


def test_every_picture_has_words_and_numbers(html: str, h200: Report) -> None:
    made = charts(h200)
    maps = ["shapes-1", "shapes-2", "shapes-3"]
    assert [c.name for c in made] == ["latency", *maps, "roofline", "stalls", "telemetry"]
    elements = Elements(html)
    pictures = [d for d in elements.named("div") if d.get("role") == "img"]
    assert len(pictures) == len(made)
    assert all(len(p["aria-label"] or "") > 60 for p in pictures)
    for chart in made:
        assert chart.rows
        assert all(len(row) == len(chart.header) for row in chart.rows)
        assert chart.rows[0][0] in html
    headings = [int(t[1]) for t, _ in elements.tags if re.fullmatch(r"h[1-6]", t)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(headings)), "no level of headings is skipped"
    tables, captions = elements.named("table"), elements.named("caption")
    assert len(tables) == len(captions)
    assert all(th.get("scope") for th in elements.named("th"))


def test_one_picture_serves_both_schemes(html: str) -> None:
    assert "prefers-color-scheme:dark" in html
    inside = html[html.index("<svg") : html.rindex("</svg>")]
    assert "var(--series1)" in inside
    assert not re.search(r'(?:fill|stroke)="#', inside), "a colour that does not follow the scheme"


def test_files_of_charts_have_a_schemes_own_colours(h200: Report) -> None:
    (latency, *_) = charts(h200)
    light, dark = (
        machine_charts.svg_file(latency.spec).decode(),
        machine_charts.svg_file(latency.spec, dark=True).decode(),
    )
    assert machine_charts.LIGHT["series1"] in light
    assert machine_charts.DARK["series1"] in dark
    assert "var(" not in light + dark
    assert "@" not in light + dark
    assert machine_charts.png_file(latency.spec, scale=1).startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", [machine_charts.LIGHT, machine_charts.DARK], ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme: dict[str, str]) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(role: str) -> float:
        a, b = sorted((luminance(scheme[role]), luminance(scheme["paper"])))
        return (b + 0.05) / (a + 0.05)

    assert contrast("ink") >= 7
    assert contrast("soft") >= 4.5
    assert contrast("alarm") >= 4.5
    assert all(contrast(role) >= 3 for role in machine_charts.SERIES)


# ------------------------------------------------------------------------------------------------ hostile hosts
def hostile(folder: Path) -> Shown:
    bench = sample_run.benchmark()
    for entry in bench["benchmarks"]:
        entry["name"] = entry["name"].replace("mission", HOSTILE)
        entry["variant"] = entry["variant"].replace("cpu", HOSTILE)
        entry["samples"] = [entry["stats"]["p50"] * (1 + i / 100) for i in range(20)] + ["x", None, 1e400]
    bench["label"] = HOSTILE
    bench["device"] = HOSTILE
    environment = {**sample_run.ENVIRONMENT, "gpu": {"name": HOSTILE, "driver": [1]}, "cuda": None}
    correctness = {"kind": "correctness", "summary": {"passed": "x", "total": -1}, "cases": [1, {"rel_rms": "x"}]}
    build_ = {**sample_run.BUILD, "variant": HOSTILE}
    documents = {"preflight": environment, "build": build_, "test": correctness, "bench": bench}
    return sample(folder, documents, title=HOSTILE, message=HOSTILE)


def test_text_of_a_host_is_never_markup(tmp_path: Path) -> None:
    made = build([hostile(tmp_path)])
    text = outputs.render(made, charts(made))
    elements = Elements(text)
    assert not {"script", "img"} & {t for t, _ in elements.tags}
    assert elements.named("a") == [{"class": "skip", "href": "#results"}]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "alert(1)" in text, "it is shown, as text"
    assert "@ink@" in text, "what looks like a colour of ours is not one"


def test_text_of_a_host_is_no_markdown(tmp_path: Path) -> None:
    text = outputs.markdown(build([hostile(tmp_path)]))
    assert "<script" not in text.replace("\\<", "")
    assert "](javascript" not in text.replace("\\]", "")
    for line in text.splitlines():
        if line.startswith("|") and "---" not in line:
            assert len(re.findall(r"(?<!\\)\|", line)) in range(4, 11), line


@pytest.mark.parametrize("damage", [
    {"benchmarks": [{"name": 1, "stats": {"p50": 1e308, "min": -1, "p99": "x"}, "roofline": 3, "shape": {"B": -1}}]},
    {"benchmarks": [{"name": "mission", "variant": "a", "stats": {"p50": 5.0, "min": 0.0}, "samples": [0.0] * 20,
                     "shape": {"B": 1, "H": 1, "S": 0, "D": 0}}]},
    {"benchmarks": [{"name": "mission", "variant": "a", "stats": {"p50": 5.0}, "samples": [5.0] * 20,
                     "shape": {"B": 1, "H": 1, "S": 64, "D": 64}}],
     "environment": {"peaks": {"mma_f32_tflops": 1e-300, "dram_copy_gbps": 1e300}}},
    {"benchmarks": [{"name": "mission", "variant": name, "stats": {"p50": 5.0}, "roofline": {"tflops": tflops},
                     "shape": {"B": 1, "H": 1, "S": 64, "D": 64}} for name, tflops in (("a", 1e308), ("b", 1e-300))],
     "environment": {"peaks": {"mma_f32_tflops": 500.0, "dram_copy_gbps": 3000.0}}},
    *({"benchmarks": [{"name": "mission", "variant": name, "stats": {"p50": 5.0}, "roofline": {"tflops": 20.0},
                       "shape": {"B": 1, "H": 1, "S": size, "D": 64}} for name, size in (("a", 64), ("b", s))],
       "environment": {"peaks": {"mma_f32_tflops": 500.0, "dram_copy_gbps": 3000.0, "l2_copy_gbps": l2}}}
      for s, l2 in ((-64, 9e3), (2**1030, 9e3), (64, 1e-308))),
    {"benchmarks": "x", "environment": [], "comparisons": {}},
], ids=["sizes", "zeroes", "peaks", "rates", "negative", "huge", "slow", "types"])  # fmt: skip
def test_nonsense_in_a_document_is_no_error(tmp_path: Path, damage: dict[str, Any]) -> None:
    made = build([sample(tmp_path, {"bench": {"kind": "benchmark", **damage}})])
    html = outputs.render(made, charts(made))
    assert html.rstrip().endswith("</html>")
    assert all(int(height) < 1000 for height in re.findall(r'<svg [^>]*height="(\d+)', html))
    assert outputs.markdown(made).startswith("# ")
    assert json.loads(json.dumps(outputs.document(made), allow_nan=False))


@pytest.mark.parametrize("phases", [True, False])
def test_a_session_s_report_names_progress_only_where_there_are_phases(*, phases: bool) -> None:
    record = SessionRecord(session_id="s", target="l4", how="stopped", reason="", created=0, ended=1, budget_usd=3)
    commands = [one.command for one in session._next(record, [], [], [], [], phases)]
    assert commands == ["fcctl progress"] * phases + ["fcctl session start --on l4 --budget 3"]


def test_telemetry_stands_below_the_steps_on_one_axis_of_time(h200: Report) -> None:
    (chart,) = [one for one in charts(h200) if one.name == "telemetry"]
    steps, *panels = chart.spec["vconcat"]
    assert [bar["step"] for bar in steps["data"]["values"]] == [step.id for step in h200.runs[0].record.steps]
    domains = [panel["layer"][0]["encoding"]["x"]["scale"]["domain"] for panel in panels]
    assert domains == [steps["encoding"]["x"]["scale"]["domain"]] * 4
