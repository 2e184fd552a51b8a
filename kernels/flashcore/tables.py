"""Published measurements as the tables of results/reference/README.md: plain Markdown, from documents alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashcore import agreement, registry, roofline
from flashcore.ladder import ALIASES, BUILDS_ON, IDEAS
from flashcore.shapes import Shape

BACKENDS = {"sdpa-flash": "FA2", "sdpa-cudnn": "cuDNN", "sdpa-efficient": "efficient", "sdpa-math": "math"}
FLEX = {"torch-flex": "FlexAttention"}  # where it was timed: beside kernels that hide keys
MISSION = "mission"
ARCH = "sm_89"
#: Of a kernel that is left out there, since it needs more shared memory than a block can have: only a trap is left.
TRAP_REGISTERS = 4
NONE = "-"


@dataclass
class Evidence:
    """All that is known of one GPU, the latest document of each variant."""

    name: str
    notes: dict[str, str] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    #: Runs of the job stage5, each with its goal: ``{"met": bool, "text": str}``.
    stage5: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    builds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # one for each configuration
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    benches: dict[str, dict[str, Any]] = field(default_factory=dict)
    profiles: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)
    #: Measured again after the runs: what counts for every row then, whatever its run took for the ceilings.
    corrected: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, dict[str, float]] = field(default_factory=dict)
    #: What each run found, for comparison with other machines'.
    findings: dict[str, dict[agreement.Subject, agreement.Finding]] = field(default_factory=dict)

    def add_run(self, run: dict[str, Any], documents: Iterable[dict[str, Any]]) -> None:
        """A later run replaces the documents of a label; of its benchmark only the shapes that it measured again."""
        documents = list(documents)
        if run.get("job") == "stage5":  # a few variants on one shape, on purpose: no rows of the tables
            self.stage5.append((run, next((d["goal"] for d in documents if isinstance(d.get("goal"), dict)), {})))
            return
        self.runs.append(run)
        found = agreement.findings(documents)
        if found:
            self.findings[str(run.get("run_id"))] = found
        seen: set[tuple[str, str]] = set()
        for document in documents:
            key = (document["kind"], str(document.get("label") or document.get("variant") or ""))
            self._add(document, *key, again=key in seen)
            seen.add(key)

    def _add(self, document: dict[str, Any], kind: str, label: str, again: bool) -> None:
        if kind == "environment":
            self.environment = document
        elif kind == "metrics" and "mma_f32_tflops" in document["metrics"]:
            self.ceilings = document["metrics"]
        elif kind == "metrics" and "fewest_both" in document["metrics"]:
            self.nulls[label] = document["metrics"]
        elif kind == "profile":
            self.profiles[label, str((document.get("shape") or {}).get("name"))] = document
        elif label and kind == "build":
            self.builds[label] = [*(self.builds[label] if again else []), document]
        elif label and kind == "correctness":
            self.checks[label] = document
        elif label and kind == "benchmark" and again:
            self.benches[label] = _merged(self.benches[label], document)
        elif label and kind == "benchmark":
            self.benches[label] = _merged(document, _without(self.benches.get(label, {}), document))
            # profiles come after benchmarks in a run, so these are of an older kernel:
            self.profiles = {key: profile for key, profile in self.profiles.items() if key[0] != label}

    def labels(self) -> list[str]:
        """Variants with figures, up the ladder, settings after the defaults."""
        order = list(BUILDS_ON)

        def rank(label: str) -> tuple[int, str]:
            known = next((one for one in (label, registry.split(label)[0]) if one in order), None)
            return (order.index(known) if known else len(order), label)

        return sorted({*self.benches, *self.checks}, key=rank)

    def row(self, label: str, name: str) -> dict[str, Any]:
        """The benchmark row called ``name`` of a variant, {} if there is none."""
        rows = self.benches.get(label, {}).get("benchmarks", [])
        return next((r for r in rows if r.get("name") == name), {})

    def p50(self, label: str, name: str) -> float | None:
        value = (self.row(label, name).get("stats") or {}).get("p50")
        return float(value) if isinstance(value, (int, float)) else None

    def comparison(self, label: str, benchmark: str, against: str) -> dict[str, Any]:
        found = self.benches.get(label, {}).get("comparisons", [])
        return next((c for c in found if c.get("benchmark") == benchmark and c.get("against") == against), {})


def _without(bench: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """The rows of ``bench`` for shapes that ``newer`` did not measure."""

    def shape(row: dict[str, Any]) -> str:
        return str(row.get("benchmark") or row.get("name")).partition("/")[0]

    measured = set(map(shape, newer.get("benchmarks", [])))
    lists = ("benchmarks", "comparisons", "fastest")
    return {key: [row for row in bench.get(key, []) if shape(row) not in measured] for key in lists}


def _merged(bench: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Two benchmarks of one label and run, of different shapes."""
    lists = {key: [*bench.get(key, []), *more.get(key, [])] for key in ("benchmarks", "comparisons", "fastest")}
    return {**more, **bench, **lists}


def render(found: Evidence) -> str:
    """All tables of one GPU."""
    sections = [_head(found), _ceilings(found), _stage5(found), _ladder(found), *_shapes(found)]
    sections += [_correctness(found), _nulls(found), _negative(found)]
    return "\n\n".join(section for section in sections if section)


def render_agreement(published: Iterable[Evidence]) -> str:
    """Each two runs with comparisons in common: do two machines come to the same verdict? Empty without such runs."""
    runs = [(gpu.name, run, found) for gpu in published for run, found in gpu.findings.items()]
    rows, contradictions = [], []
    for (name, run, found), (other_name, other, theirs) in itertools.combinations(sorted(runs, key=lambda r: r[1]), 2):
        both = agreement.compare(found, theirs)
        if not both.common:
            continue
        rows.append([
            f"{_text(name)} `{_text(run)}`", f"{_text(other_name)} `{_text(other)}`", str(len(both.common)),
            str(len(both.agreeing)), str(len(both.by_one_only)), str(len(both.contradicting)),
            f"{100 * (both.median_difference or 0):.1f} %",
        ])  # fmt: skip
        for subject in both.contradicting:
            a, b = both.common[subject]
            contradictions.append(f"- {_text(subject)}: {a} on {_text(name)}, {b} on {_text(other_name)}.")
    if not rows:
        return ""
    header = ["run", "run on another machine", "comparisons in common", "same verdict", "decided by one only",
              "contradict", "ratios differ by (median)"]  # fmt: skip
    about = (
        "Of the same variant and configuration with the same backend, shape and mode. A verdict is faster, slower or\n"
        "undecided, by the interval; `python -m flashcore.agreement RUN RUN` lists them."
    )
    sections = ["### The same verdict on another machine", about, _table(header, rows), "\n".join(contradictions)]
    return "\n\n".join(filter(None, sections))


# ------------------------------------------------------------------------------------------------ the tables
def _head(found: Evidence) -> str:
    gpu = found.environment.get("gpu") or {}
    bench = next(iter(found.benches.values()), {})
    about = bench.get("environment") or {}
    methods = sorted({int(one["method_version"]) for one in found.benches.values() if one.get("method_version")})
    named = gpu.get("name") or bench.get("device") or found.name
    facts = [
        f"driver {about.get('driver') or gpu.get('driver')}" if about.get("driver") or gpu.get("driver") else "",
        f"torch {bench['torch']}" if bench.get("torch") else "",
        f"CUDA {about['cuda']}" if about.get("cuda") else "",
        f"method {' and '.join(map(str, methods))}" if methods else "",
    ]
    runs = ", ".join(f"`{_text(run.get('run_id'))}` ({_text(run.get('status'))})" for run in found.runs)
    kind = found.name.partition("-")[2]  # of a folder such as h200-ladder
    title = f"{named}, {kind}" if kind else named
    return f"### {_text(title)}\n\n{_text(', '.join(f for f in facts if f))}. Runs: {runs}."


def _stage5(found: Evidence) -> str:
    lines = [
        f"- [`{_text(run['run_id'])}`]({_text(found.name)}/{run['run_id']}/artifacts/reports/summary.md): "
        f"target {'met' if goal.get('met') else 'not met'}. {_text(goal.get('text') or '', 400)}"
        for run, goal in found.stage5
    ]
    return "\n".join(["#### The job stage5", "", *lines]) if lines else ""


def _ceilings(found: Evidence) -> str:
    m = found.corrected or found.ceilings
    if not m:
        return ""
    full = "the full rate" if m.get("mma_f32_over_f16_cycles", 0) < 1.5 else "half the rate of FP16 sums"
    tensor = f"{_n(m, 'mma_f32_tflops')} TFLOP/s ({_n(m, 'mma_f32_tflops_sustained')} sustained)"
    launch = f"{_n(m, 'empty_graph_us')} us in a graph, {_n(m, 'empty_eager_us')} us eager"
    rows = [
        ["`mma.m16n8k16`, FP32 sums", f"{tensor}, {_n(m, 'mma_f32_cycles')} clocks each: {full}"],
        ["exp2", f"{_n(m, 'exp2_gops')} G/s, {_n(m, 'exp2_per_clock_sm')} per clock and SM"],
        ["copy, read + write", f"DRAM {_n(m, 'dram_copy_gbps')} GB/s, L2 {_n(m, 'l2_copy_gbps')} GB/s"],
        ["empty kernel", f"{launch}, {_n(m, 'empty_queue_us')} us queued"],
    ]
    again = ", after the runs" if found.corrected else ""
    return f"Measured ceilings{again}:\n\n" + _table(["ceiling", "measured"], rows)


def _ladder(found: Evidence) -> str:
    if not found.benches:
        return ""
    base = found.p50("baseline", MISSION)
    rows = []
    for label in (lab for lab in found.labels() if found.p50(lab, MISSION)):
        times = [found.p50(label, name) for name in (MISSION, f"{MISSION}/cold", f"{MISSION}/eager")]
        profile = _profiled(found, label, MISSION)
        alias = ALIASES.get(label)
        rows.append([
            f"`{alias}`, `{_text(label)}`" if alias else f"`{_text(label)}`", _summary(label), *map(_us, times),
            f"{base / times[0]:.1f}x" if base and times[0] else NONE,
            _fastest(found, label, MISSION), _fastest(found, label, f"{MISSION}/eager"),
            _roofline(found, label, MISSION), *_resources(found, label), _pct(profile.get("tensor_active_pct")),
        ])  # fmt: skip
    header = ["variant", "what changed", "hot us", "cold us", "eager us", "over baseline",
              "of fastest SDPA, hot", "of fastest SDPA, eager", "% of roofline",
              "registers", "stack B", "spills B", "tensor %"]  # fmt: skip
    return "#### Ladder: B=1 H=8 S=512 D=64\n\n" + _table(header, rows)


def _shapes(found: Evidence) -> Iterable[str]:
    """A table for each shape: every variant against each backend, hot."""
    names: dict[str, dict[str, Any]] = {}
    for bench in found.benches.values():
        for row in bench.get("benchmarks", []):
            if "/" not in str(row.get("name")):
                names.setdefault(row["name"], row.get("shape") or {})
    for name, shape in sorted(names.items(), key=lambda item: _work(item[1])):
        timed = [label for label in found.labels() if found.p50(label, name)]
        flex = any(found.comparison(label, name, f"{name}/{b}") for label in timed for b in FLEX)
        backends = BACKENDS | FLEX if flex else BACKENDS
        rows = [
            [
                f"`{_text(label)}`", *(_us(found.p50(label, n)) for n in (name, f"{name}/cold", f"{name}/eager")),
                *(_ratio(found.comparison(label, name, f"{name}/{b}")) for b in backends),
                _roofline(found, label, name),
            ]
            for label in timed
        ]  # fmt: skip
        theirs = [_theirs(found, timed, f"{name}/{b}") for b in backends]
        rows.append(["PyTorch, hot us", NONE, NONE, NONE, *theirs, NONE])
        header = ["variant", "hot us", "cold us", "eager us", *(f"of {b}" for b in backends.values()), "% of roofline"]
        sizes = ",".join(str(shape.get(d, "?")) for d in "BHSD")
        title = _text(name) if "," in name else sizes  # a shape without a name of its own is called by all that it has
        yield f"#### {title}\n\n" + _table(header, rows)


def _correctness(found: Evidence) -> str:
    rows = []
    for label in (lab for lab in found.labels() if lab in found.checks):
        document = found.checks[label]
        summary = document.get("summary") or {}
        watched = [f"{_text(p.get('tool'))} {_text(p.get('status'))}" for p in document.get("sanitizer") or []]
        rows.append([
            f"`{_text(label)}`", f"{summary.get('passed', '?')}/{summary.get('total', '?')}",
            _small(summary.get("max_err")), _small(summary.get("max_rel_rms")), _small(summary.get("of_sdpa")),
            ", ".join(watched) or NONE,
        ])  # fmt: skip
    header = ["variant", "cases", "max error", "relative RMS", "max error over FA2's", "compute-sanitizer"]
    return "#### Correctness\n\n" + _table(header, rows) if rows else ""


def _nulls(found: Evidence) -> str:
    """Each variant that was compared with itself, again and again: does the method find the 1 that is there?"""
    rows = []
    for label, metrics in sorted(found.nulls.items()):
        for name in (name for name in metrics if name.endswith(".both")):
            of = name[: -len("both")]
            both, repeats, worst, widest = (metrics[of + key] for key in ("both", "repeats", "worst", "widest"))
            where = _text(of.strip(".").replace(".", ", "))
            rows += [[f"`{_text(label)}`", where, f"{both:.0f}/{repeats:.0f}", f"{worst:.4f}", f"{widest:.4f}"]]
    header = ["variant", "shape, mode", "within 1 %, with an interval that has 1", "worst ratio", "widest interval"]
    return "#### A kernel against itself\n\n" + _table(header, rows) if rows else ""


def _negative(found: Evidence) -> str:
    """Steps up the ladder that are slower than what they build on, and what warps waited for there."""
    lines = []
    for label in found.labels():
        name = registry.split(label)[0]
        below = BUILDS_ON.get(label) or (name if ":" in label and name in found.benches else BUILDS_ON.get(name))
        for shape in _hot_names(found, label):
            ours, theirs = found.p50(label, shape), found.p50(below, shape) if below else None
            if ours and theirs and ours > 1.01 * theirs:
                lines.append(f"- `{_text(label)}` at {_text(shape)}: {ours / theirs:.2f} of `{below}`'s time."
                             f"{_why(found, label, shape)}")  # fmt: skip
    lines += [f"- `{_text(label)}`: {_text(reason, 1000)}" for label, reason in sorted(found.notes.items())]
    return "#### Negative results\n\n" + "\n".join(lines) if lines else ""


def _why(found: Evidence, label: str, shape: str) -> str:
    nearest = next((at for lab, at in sorted(found.profiles) if lab == label), "")
    seen_at = shape if (label, shape) in found.profiles else nearest
    document = found.profiles.get((label, seen_at), {})
    kernel = next(iter(document.get("kernels") or []), {})
    stalls = ", ".join(f"{_text(s['reason'])} {s['warps']:.2f}" for s in (kernel.get("top_stalls") or [])[:3])
    metrics = kernel.get("metrics") or {}
    if not stalls:
        return ""
    at = "" if seen_at == shape else f" (profiled at {_text(seen_at)})"
    busy = f"tensor cores {_pct(metrics.get('tensor_active_pct'))} %, occupancy {_pct(metrics.get('occupancy_pct'))} %"
    return f" Warps wait{at} for {stalls} per issue; {busy}."


# ------------------------------------------------------------------------------------------------ cells
def _hot_names(found: Evidence, label: str) -> list[str]:
    rows = found.benches.get(label, {}).get("benchmarks", [])
    return [str(r["name"]) for r in rows if "/" not in str(r.get("name"))]


def _work(shape: dict[str, Any]) -> tuple[int, int]:
    b, h, s = (int(shape.get(d) or 0) for d in "BHS")
    return (b * h * s * int(shape.get("S_kv") or s), b)


def _summary(label: str) -> str:
    name, settings = registry.split(label)
    variant = registry.VARIANTS.get(name)
    return _text(IDEAS.get(label) or ", ".join(settings) if settings else variant.summary if variant else "")


def _profiled(found: Evidence, label: str, shape: str) -> dict[str, Any]:
    kernels = found.profiles.get((label, shape), {}).get("kernels") or [{}]
    return dict(kernels[0].get("metrics") or {})


def _resources(found: Evidence, label: str) -> list[str]:
    """Registers, stack and spilled bytes on sm_89 of what runs at the mission shape, the worst of its kernels. Of a
    kernel that is left out on sm_89: those on another architecture, which is named."""
    builds = found.builds.get(label, [])
    used = found.row(label, MISSION).get("configuration")  # there may be others, for other shapes
    builds = [b for b in builds if b.get("configuration") == used] or builds
    every = [k for build in builds for k in build.get("kernels", [])]
    kernels = [k for k in every if k.get("arch") == ARCH]
    where = ""
    if kernels and all(k["registers"] <= TRAP_REGISTERS for k in kernels):
        kernels = [k for k in every if k.get("arch") != ARCH]
        where = " (" + ", ".join(sorted({str(k.get("arch")) for k in kernels})) + ")"
    if not kernels:
        return [NONE, NONE, NONE]
    spills = [(k.get("spill_store_bytes") or 0) + (k.get("spill_load_bytes") or 0) for k in kernels]
    most = {key: max(k[key] for k in kernels) for key in ("registers", "stack_bytes")}
    return [f"{most['registers']}{where}", str(most["stack_bytes"]), str(max(spills))]


def _fastest(found: Evidence, label: str, benchmark: str) -> str:
    rivals = found.benches.get(label, {}).get("fastest", [])
    best = next((f for f in rivals if f.get("benchmark") == benchmark), {})
    return _ratio(best)


def _theirs(found: Evidence, labels: Sequence[str], name: str) -> str:
    """A backend's own time beside the last variant it was timed with."""
    times = [t for t in (found.p50(label, name) for label in labels) if t]
    return _us(times[-1]) if times else NONE


def _roofline(found: Evidence, label: str, name: str) -> str:
    row = found.row(label, name)
    roof = row.get("roofline") or {}
    if roof and found.corrected:
        roof = roofline.distance(Shape(**row["shape"]), "hot", found.corrected, row["stats"]["p50"])
    return f"{roof['pct']:.0f} ({_text(roof['bound'])})" if roof.get("pct") is not None else NONE


def _ratio(comparison: dict[str, Any]) -> str:
    if not comparison:
        return NONE
    return f"{comparison['ratio']:.2f} [{comparison['ci_low']:.2f}, {comparison['ci_high']:.2f}]"


def _us(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _pct(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, (int, float)) else NONE


def _small(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, (int, float)) else NONE


def _n(metrics: dict[str, float], name: str) -> str:
    value = metrics.get(name)
    return "?" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _text(value: Any, most: int = 200) -> str:
    """``value`` as text that cannot break out of a table."""
    plain = "".join(c for c in str(value if value is not None else "") if c.isprintable())
    return plain.replace("|", "/").replace("<", "&lt;").replace("`", "'")[:most]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
