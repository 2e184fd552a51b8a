"""``list``: variants, their parameters and the named shapes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from flashcore import ladder, registry, shapes, space


def run(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(_listed(), indent=1))
        return 0
    for variant in registry.VARIANTS.values():
        print(f"{variant.name:<12} {variant.device:<5} {variant.summary}")
        for p in variant.parameters:
            values = " ".join(f"[{v}]" if v == p.default else str(v) for v in p.values)
            print(f"{'':<12} {p.name}: {values}   {p.meaning}")
        for constraint in variant.constraints:
            print(f"{'':<12} {constraint.text}")
    for rung in ladder.RUNGS:
        print(f"{rung.name:<12} rung  {rung.label}: {rung.idea}")
    print("shapes       " + "; ".join(f"{name} {shape}" for name, shape in shapes.SHAPES.items()))
    return 0


def _listed() -> dict[str, Any]:
    variants = [
        {
            "name": v.name,
            "device": v.device,
            "summary": v.summary,
            "causal": v.causal,
            "head_dims": list(v.head_dims),
            "dtypes": list(v.dtypes),
            "configurations": space.count(v.parameters, v.constraints),
            "parameters": [
                {"name": p.name, "values": list(p.values), "default": p.default, "meaning": p.meaning}
                for p in v.parameters
            ],
            "constraints": [c.text for c in v.constraints],
        }
        for v in registry.VARIANTS.values()
    ]
    named = {name: shape.as_dict() for name, shape in shapes.SHAPES.items()}
    rungs = [asdict(rung) for rung in ladder.RUNGS]
    return {"schema_version": 1, "variants": variants, "shapes": named, "ladder": rungs}
