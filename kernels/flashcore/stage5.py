"""``python -m flashcore.stage5 WHAT``: the files of the job stage5, by the names their user knows.

baselines           $FCCTL_ARTIFACTS/bench/baseline_a.json and baseline_b.json: the scalar kernel beside PyTorch's math
                    and flash backends, of the step's own benchmark document
best N              prints the labels of the N fastest kernels: candidates, what the search found, and its default
candidate LABEL F   $FCCTL_ARTIFACTS/bench/F.json: the step's benchmark of a kernel, with correctness_pass, max_abs_err
                    and mean_abs_err
profiles            $FCCTL_ARTIFACTS/ncu/: the step's reports, named as the bench files, and summary.json with metrics
target              is the best candidate 15 times as fast as Baseline A?

Each bench file answers ``jq '.results.mission.flashcore.p50, .results.mission.pytorch.p50, .config, .speedup'``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashcore import documents, registry
from flashcore.command.asked import settings_of
from flashcore.errors import FlashcoreError, Unavailable

#: Times as fast as Baseline A the best candidate should be: the user's figure.
TARGET = 15.0
#: What the user calls PyTorch's two ways.
BASELINES = {"baseline_a": "sdpa-math", "baseline_b": "sdpa-flash"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flashcore.stage5", description="Write the files of the job stage5."
    )
    verbs = parser.add_subparsers(required=True, dest="verb", metavar="WHAT")
    verbs.add_parser("baselines", help="the scalar kernel and SDPA's math and flash backends")
    fastest = verbs.add_parser("best", help="the labels of the fastest kernels of the run so far")
    fastest.add_argument("count", type=int, metavar="N")
    made = verbs.add_parser("candidate", help="a kernel's times and errors, from the step's documents")
    made.add_argument("label", metavar="VARIANT")
    made.add_argument("name", metavar="FILE", help="without its ending")
    verbs.add_parser("profiles", help="reports and metrics of the step's profiles")
    verbs.add_parser("target", help="the best kernel against Baseline A: met or not")
    options = parser.parse_args(argv)
    try:
        if options.verb == "best":
            print("\n".join(best(Path(os.environ["FCCTL_RUN_DIR"]), os.environ.get("VARIANT", ""))[: options.count]))
            return 0
        out, artifacts = Path(os.environ["FCCTL_OUT"]), Path(os.environ["FCCTL_ARTIFACTS"])
        if options.verb == "baselines":
            written = baselines(out, artifacts)
        elif options.verb == "profiles":
            written = profiles(out, artifacts, named(os.environ))
        elif options.verb == "candidate":
            checks = [out, Path(os.environ["FCCTL_RUN_DIR"]) / "steps" / "check" / "out"]
            written = [candidate(canonical(options.label), options.name, out, artifacts, checks)]
        else:
            written = [target(out, artifacts)]
        for path in written:
            print(path)
    except KeyError as e:
        print(
            f"error: {e.args[0]} is not set\nhint: steps of a job use this command: fcctl run stage5", file=sys.stderr
        )
        return 2
    except FlashcoreError as e:
        print("error: " + str(e), file=sys.stderr)
        return e.exit_code
    return 0


def baselines(out: Path, artifacts: Path) -> list[Path]:
    """One export for each of PyTorch's backends, from the benchmark document of the scalar kernel in ``out``.

    Raises:
        Unavailable: there is none, or a backend was not timed.
    """
    document = _read(out / "benchmark-baseline.json")
    shapes = [row["name"] for row in document["benchmarks"] if "/" not in row["name"]]
    written = []
    for name, rival in BASELINES.items():
        rows = [row for row in document["benchmarks"] if row["variant"] in ("baseline", rival)]
        if not any(row["variant"] == rival for row in rows):
            raise Unavailable(
                f"{rival} was not measured", hint="PyTorch on this machine does not offer it for this shape"
            )
        written.append(
            _write(artifacts / "bench" / f"{name}.json", documents.export({**document, "benchmarks": rows}, shapes))
        )
    return written


def canonical(label: str) -> str:
    """The label as documents have it: without settings that are the default."""
    name, settings = registry.split(label)
    chosen = settings_of(settings)
    return registry.VARIANTS[name].label(registry.VARIANTS[name].configure(chosen), chosen)


def candidate(label: str, name: str, out: Path, artifacts: Path, checks: Sequence[Path]) -> Path:
    """``bench/NAME.json``: the export of the kernel's benchmark in ``out``, and whether it is correct, by ``checks``.

    Raises:
        Unavailable: it was not timed or not checked.
    """
    check = next((found for folder in checks if (found := _of(folder, "correctness", label))), None)
    if check is None:
        raise Unavailable(f"{label} was not checked", hint="an earlier step of the job checks it")
    summary = check["summary"]
    errors = {
        "correctness_pass": summary["failed"] == 0 and summary["passed"] == summary["total"] > 0,
        "max_abs_err": summary["max_err"],
        "mean_abs_err": summary["mean_err"],
    }
    return _write(artifacts / "bench" / f"{name}.json", {**_read(out / "bench_export.json"), "label": label, **errors})


def _of(folder: Path, kind: str, label: str) -> Any:
    """The document of ``label`` in ``folder``; None: there is none."""
    documents_ = (_read(path) for path in sorted(folder.glob(f"{kind}-*.json")))
    return next((found for found in documents_ if found.get("label") == label), None)


def target(out: Path, artifacts: Path) -> Path:
    """A ``metrics`` document: how many times as fast as Baseline A the best correct candidate is.

    Raises:
        Unavailable: no candidate is correct, or Baseline A was not timed.
    """
    times = {}
    for path in sorted((artifacts / "bench").glob("candidate_*.json")):
        found = _read(path)
        if found["correctness_pass"]:
            times[found["label"]] = _headline(found)["flashcore"]["p50"]
    if not times:
        raise Unavailable("no candidate is correct", hint="the logs of the steps check and best name the cases")
    fastest = min(times, key=lambda label: times[label])
    ratio = _headline(_read(artifacts / "bench" / "baseline_a.json"))["pytorch"]["p50"] / times[fastest]
    met = ratio >= TARGET
    text = f"{fastest} is {ratio:.2f}x Baseline A (SDPA math), the target is {TARGET:g}x"
    print(f"Target {'met' if met else 'not met'}: {text}")
    goal = {"met": met, "text": text, "label": fastest}
    content = documents.document("metrics", metrics={"best_over_baseline_a": ratio}, goal=goal)
    return documents.write_json(out / "target.json", content)


def _headline(export: Mapping[str, Any]) -> Any:
    results = export["results"]
    return results.get("mission") or next(iter(results.values()))


def best(run: Path, variant: str) -> list[str]:
    """Labels of the run's kernels on the first case of its search, the fastest first, hot medians compared.

    Raises:
        Unavailable: the run has no benchmark and no search.
    """
    tuning = _read(run / "steps" / "search" / "out" / "tuning.json")
    case = str((tuning["metric"]["cases"] or ["mission"])[0])
    times = _searched(tuning, variant, case)
    for path in sorted((run / "steps" / "bench" / "out").glob("benchmark-*.json")):
        document = _read(path)
        for row in document["benchmarks"]:
            if row["name"] == case and row["variant"] == document["label"]:
                times[row["variant"]] = float(row["stats"]["p50"])
    times.pop("baseline", None)  # it is there to be beaten
    return sorted(times, key=lambda label: times[label])


def _searched(tuning: Mapping[str, Any], variant: str, case: str) -> dict[str, float]:
    """Microseconds of the elites that stood the second measurement, and of the default, by label."""
    found = registry.VARIANTS[registry.split(variant)[0]]
    params = {trial["number"]: trial["params"] for trial in tuning["trials"]}
    times: dict[str, float] = {}
    for elite in tuning.get("final", []):
        figures = elite.get("per_case", {}).get(case)
        if figures and elite.get("verdict") != "failed":
            times[found.label(found.configure(params[elite["trial"]]))] = float(figures["us"])
    default = tuning.get("final_run", {}).get("default", {}).get(case)
    if default:
        times[found.label(found.configure())] = float(default["us"])
    return times


def named(env: Mapping[str, str]) -> dict[str, str]:
    """What the files of the kernels are called, by label; any other is the best."""
    labels = {"baseline": "baseline", "candidate_stage2": "stage2"}
    labels.update({f"candidate_ws_{p.lower()}": env[p] for p in ("P1", "P2") if env.get(p)})
    return {canonical(label): name for name, label in labels.items()}


def profiles(out: Path, artifacts: Path, names: Mapping[str, str]) -> list[Path]:
    """The reports of ``out`` as ``names`` call them, and what their documents say in one file."""
    folder = artifacts / "ncu"
    folder.mkdir(parents=True, exist_ok=True)
    written, kernels = [], []
    for path in sorted(out.glob("profile-*.json")):
        document = _read(path)
        about = {key: document.get(key) for key in ("label", "variant", "configuration", "shape")}
        report = names.get(document["label"], "candidate_best") + ".ncu-rep"
        source = path.with_name(path.name.removeprefix("profile-")).with_suffix(".ncu-rep")
        if source.exists():
            written.append(Path(shutil.copy2(source, folder / report)))
        kernels += [{**about, "report": report, **kernel} for kernel in document["kernels"]]
    summary = {"status": "profiled" if kernels else "unavailable", "kernels": kernels}
    return [*written, _write(folder / "summary.json", summary)]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise Unavailable(
            f"{path.name} does not exist", cause=str(e), hint="an earlier step of the job writes this file; see its log"
        ) from e


def _write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return documents.write_json(path, value)


if __name__ == "__main__":
    sys.exit(main())
