"""``profile``: one launch under Nsight Compute."""

from __future__ import annotations

import argparse
import json

from flashcore import documents, profile, shapes
from flashcore.command.asked import kernel_of, variant_of
from flashcore.errors import Unavailable, UsageError


def run(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "mission")
    if len(chosen) != 1:
        raise UsageError("profile needs exactly one shape", hint="for example --shape mission")
    variant, _ = variant_of(options, options.variant)
    if variant.device != "cuda":
        raise Unavailable(f"{variant.name} does not run on a GPU: Nsight Compute cannot profile it")
    if not options.loop:
        profile.ncu()
    tuned = kernel_of(options, chosen=chosen.values())
    ((name, shape),) = chosen.items()
    kernel = tuned.for_shape(shape)
    if options.loop:
        profile.loop(kernel, shape)
        return 0
    label = tuned.label
    arguments = [label, "--shape", ",".join(map(str, (shape.B, shape.H, shape.S, shape.D)))]
    about = {
        "variant": kernel.variant.name,
        "label": label,
        "configuration": kernel.built.configuration,
        "shape": {"name": name, **shape.as_dict()},
    }
    slug = f"{kernel.built.slug}-{name.replace(',', 'x')}"
    import torch

    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    path = profile.run(slug, arguments, documents.folder(options.out), about, sms)
    for found in json.loads(path.read_text(encoding="utf-8"))["kernels"]:
        for metric, value in found["metrics"].items():
            print(f"  {metric:<28} {'-' if value is None else f'{value:,.6g}'}")
        stalls = ", ".join(f"{s['reason']} {s['warps']:.2f}" for s in found["top_stalls"])
        print(f"  {'stalls, warps per issue':<28} {stalls}")
    print(path)
    return 0
