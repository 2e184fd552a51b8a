"""``check``: compare with float64, and have NVIDIA's sanitizer look on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashcore import build, cases, documents, sanitize, shapes
from flashcore.command.asked import kernel_of, plain_kernel
from flashcore.tuned import Tuned


def run(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    seeds = [int(s) for s in options.seeds.split(",")] if options.seeds else None
    names = cases.choose(options.case, chosen, len(seeds) if seeds else cases.SEEDS)
    out = documents.folder(options.out)
    without_torch = None if options.launches else plain_kernel(options)
    if without_torch is not None:
        from flashcore import plain

        return _finish(plain.check(without_torch, chosen, seeds, _report, names), out, chosen, names)
    alone = None if options.launches or set(names) & set(cases.SUMMARY) else chosen.values()
    kernel = kernel_of(options, chosen=alone, judged=not options.launches)
    if options.launches:
        print(f"{sanitize.launches(kernel)} launches")
        return 0
    from flashcore import check, separate

    document = check.run(kernel, chosen, seeds, _report, names, _report_tiling)
    separate.end()
    if options.sanitize:
        document["sanitizer"] = _sanitized(kernel, out)
    return _finish(document, out, chosen, names)


def _report(case: dict[str, Any]) -> None:
    error = "    -    " if case["max_err"] is None else f"{case['max_err']:.2e}"
    verdict = "pass" if case["passed"] else "FAIL"
    print(f"  {verdict}  {case['name']:<12} max err {error}  {_used(case)}  {case['message']}", flush=True)


def _report_tiling(entry: dict[str, Any]) -> None:
    verdict = {"passed": "pass", "failed": "FAIL"}.get(entry["status"], entry["status"])
    name = f"{entry['dtype']} {entry['D']} {entry['name']}"
    print(f"  {verdict}  {name:<28} {_used(entry)}  {entry['message']}", flush=True)


def _used(entry: dict[str, Any]) -> str:
    return "" if entry["used"] is None else f"{100 * entry['used']:3.0f} % of the tolerance"


def _finish(document: dict[str, Any], out: Path, chosen: Mapping[str, shapes.Shape], names: Sequence[str]) -> int:
    whole = chosen == shapes.SHAPES and names == cases.choose(cases.ALL, chosen, len(document["seeds"]))
    document["asked"] = cases.ALL if whole else ";".join(names)
    path = documents.write_json(out / f"correctness-{build.slug(document['label'])}.json", document)
    summary = document["summary"]
    print(f"{summary['passed']}/{summary['total']} passed, seeds {','.join(map(str, document['seeds']))}\n{path}")
    tilings = summary.get("tilings", {})
    if tilings:
        print(f"{tilings['passed']} of {tilings['total']} tilings passed, {tilings['unavailable']} not for this GPU")
    found = [part["status"] for part in document.get("sanitizer", [])]
    return 0 if summary["failed"] == 0 and not tilings.get("failed") and "failed" not in found else 1


def _sanitized(kernel: Tuned, out: Path) -> list[dict[str, Any]]:
    if kernel.variant.device != "cuda":
        refused = {"status": "unavailable", "errors": None, "message": "compute-sanitizer checks GPU kernels only"}
        parts = [{"tool": tool, **refused} for tool in sanitize.TOOLS]
    else:
        parts = sanitize.run([kernel.label], out / f"sanitizer-{build.slug(kernel.label)}.log")
    for part in parts:
        print(f"  {part['status']}  {part['tool']}  {part['message'] or ''}", flush=True)
    return [{"label": kernel.label, **part} for part in parts]
