"""``python -m flashcore.stage5 WHAT``: the files of the job stage5, by the names their user knows.

baselines           $FCCTL_ARTIFACTS/bench/baseline_a.json and baseline_b.json: the scalar kernel beside PyTorch's math
                    and flash backends, of the step's own benchmark document
best N              prints the labels of the N fastest kernels: candidates, what the search found, and its default
profiles            $FCCTL_ARTIFACTS/ncu/: the step's reports, and summary.json with their metrics

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
from flashcore.errors import FlashcoreError, Unavailable
from flashcore.shapes import Shape

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
    verbs.add_parser("profiles", help="reports and metrics of the step's profiles")
    options = parser.parse_args(argv)
    try:
        if options.verb == "best":
            print("\n".join(best(Path(os.environ["FCCTL_RUN_DIR"]), os.environ.get("VARIANT", ""))[: options.count]))
            return 0
        out, artifacts = Path(os.environ["FCCTL_OUT"]), Path(os.environ["FCCTL_ARTIFACTS"])
        for path in baselines(out, artifacts) if options.verb == "baselines" else profiles(out, artifacts):
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
    from flashcore import bench

    document = _read(out / "benchmark-baseline.json")
    shapes = {row["name"]: Shape(**row["shape"]) for row in document["benchmarks"] if "/" not in row["name"]}
    written = []
    for name, rival in BASELINES.items():
        rows = [row for row in document["benchmarks"] if row["variant"] in ("baseline", rival)]
        if not any(row["variant"] == rival for row in rows):
            raise Unavailable(
                f"{rival} was not measured", hint="PyTorch on this machine does not offer it for this shape"
            )
        written.append(
            _write(artifacts / "bench" / f"{name}.json", bench.export({**document, "benchmarks": rows}, shapes))
        )
    return written


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


def profiles(out: Path, artifacts: Path) -> list[Path]:
    """The reports of ``out``, and what their documents say in one file."""
    folder = artifacts / "ncu"
    folder.mkdir(parents=True, exist_ok=True)
    written = [Path(shutil.copy2(report, folder / report.name)) for report in sorted(out.glob("*.ncu-rep"))]
    kernels = []
    for path in sorted(out.glob("profile-*.json")):
        document = _read(path)
        about = {key: document.get(key) for key in ("label", "variant", "configuration", "shape")}
        kernels += [
            {**about, "report": path.name.replace("profile-", "").replace(".json", ".ncu-rep"), **kernel}
            for kernel in document["kernels"]
        ]
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
