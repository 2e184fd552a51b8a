"""Profile and build documents: metrics, stalls, and the bottlenecks that their authors' tools name in them.

Any repository's tool may write ``"findings": [{rule, bottleneck, lever, impact, facts: [{name, value, threshold}]}]``
into a kernel of a profile or build document and into an entry of a benchmark document, and ``"targets": {metric:
least}`` into a profile document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.base.sanitize import clean
from orchestrator.base.untrusted import number, objects, part
from orchestrator.results.documents import Document, label
from orchestrator.results.look import Shown
from orchestrator.results.timings import shape_of, shape_text
from orchestrator.views.report.blocks import Finding
from orchestrator.views.report.model import Profiled

#: Of one kernel, and of one finding.
MAX_FINDINGS, MAX_FACTS = 20, 8
#: Findings of one profiled kernel that are shown.
SHOWN = 3


def profiled(shown: Shown) -> Iterator[Profiled]:
    """Every profiled kernel of a run; and each variant without a profile whose build has findings."""
    run, seen = shown.record.run_id, set()
    for document in shown.documents.of("profile"):
        seen.add(label(document))
        for kernel in objects(document.content.get("kernels")):
            yield _kernel(shown, document, kernel)
    for document in shown.documents.of("build"):
        name = label(document)
        if name and name not in seen:
            seen.add(name)
            if found := _of_build(shown, name, ""):
                yield Profiled(run, clean(name, 60), "", "", {}, {}, _largest(found))


def _kernel(shown: Shown, document: Document, kernel: dict[str, Any]) -> Profiled:
    variant, name = label(document), clean(kernel.get("name") or "?", 80)
    capability = str(kernel.get("compute_capability") or "")
    found = [*_of_build(shown, variant, capability), *_findings(kernel), *_of_timing(shown, document)]
    return Profiled(
        shown.record.run_id,
        clean(variant, 60) or clean(name, 60),
        name,
        _shape(document),
        _numbers(kernel.get("metrics")),
        {clean(reason, 40): warps for reason, warps in _numbers(kernel.get("stalls")).items() if warps > 0},
        _largest(found),
        _numbers(document.content.get("targets")),
    )


def _of_build(shown: Shown, variant: str, capability: str) -> list[Finding]:
    """Of the variant's kernels, those of this GPU's architecture if there are any; each rule where it weighs most."""
    built = [d.content for d in shown.documents.of("build") if label(d) == variant]
    kernels = [kernel for content in built for kernel in objects(content.get("kernels"))]
    kernels = [k for k in kernels if k.get("arch") == f"sm_{capability.replace('.', '')}"] or kernels
    found: dict[str, Finding] = {}
    for finding in (one for kernel in kernels for one in _findings(kernel)):
        if finding.rule not in found or finding.impact > found[finding.rule].impact:
            found[finding.rule] = finding
    return list(found.values())


def _of_timing(shown: Shown, profile: Document) -> list[Finding]:
    """Of the first timing (the mode that comes first) of what was profiled, on the same shape."""
    variant, shape = label(profile), profile.content.get("shape")
    for document in shown.documents.of("benchmark"):
        for entry in objects(document.content.get("benchmarks")) if label(document) == variant else ():
            named = entry.get("name") == part(shape, "name")
            if "findings" in entry and (shape_of(entry.get("shape")) == shape_of(shape) if shape_of(shape) else named):
                return _findings(entry)
    return []


def _largest(found: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: -finding.impact)[:SHOWN])


def _findings(content: dict[str, Any]) -> list[Finding]:
    return [
        Finding(
            clean(one.get("rule") or "", 40),
            clean(one.get("bottleneck") or "", 200),
            clean(one.get("lever") or "", 300),
            number(one.get("impact")) or 0.0,
            tuple(
                (clean(f.get("name") or "", 80), clean(f.get("value") or "", 120), clean(f.get("threshold") or "", 80))
                for f in objects(one.get("facts"))[:MAX_FACTS]
            ),
        )
        for one in objects(content.get("findings"))[:MAX_FINDINGS]
    ]


def _numbers(value: object) -> dict[str, float]:
    return {str(k): v for k, raw in value.items() if (v := number(raw)) is not None} if isinstance(value, dict) else {}


def _shape(document: Document) -> str:
    shape, name = shape_of(document.content.get("shape")), part(document.content, "shape", "name")
    sizes = shape_text(shape)
    if isinstance(name, str) and name and name != sizes:
        return clean(f"{name} ({sizes})" if sizes else name, 60)
    return sizes
