"""Which configuration a variant gets for a shape on a GPU: the nearest measured row of ``tilings.json``.

A row says: on this GPU, at this shape, these settings were the fastest of those compared, in this run::

    {"variant": "fused", "gpu": "NVIDIA H200", "sms": 132, "shape": {"B": 1, "H": 8, "S": 512, "D": 64},
     "set": {"TILE_M": 32, "WARPS_KV": 4}, "run": "20261121t110151z-evidence-gpu-host-6eef63"}

What is not in ``set`` has its default. For a shape or a GPU without a row of its own the nearest row counts. Near is
what makes equally many blocks for each multiprocessor, and loops equally long: the distance of two places is
``|log2 of their query rows per multiprocessor| + |log2 of their keys|``, so that on another GPU the choice follows from
its number of multiprocessors and the shape. The rows of this very GPU go before those of others. A variant whose
library itself chooses by shape and device (``Variant.chooses``) is overruled by rows of this GPU and shape only.

The table is data under review: a search adds rows, a person commits them. ``--set`` goes past it.

``python -m flashcore.tilings`` is how ``fcctl tune --adopt`` writes it: from a JSON object on stdin, ``{"env":
{"VARIANT": ..}, "rows": [{"gpu", "sms", "case", "params", "run"}], "text"}``, to the table's new text on stdout.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashcore import shapes
from flashcore.errors import FlashcoreError, UsageError
from flashcore.registry import VARIANTS, split
from flashcore.shapes import Shape
from flashcore.toolchain import TARGET_GPU, Gpu
from flashcore.variant import Configuration, Variant

TABLE = Path(__file__).with_name("tilings.json")
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Row:
    variant: str
    gpu: Gpu
    shape: Shape
    settings: Mapping[str, int]
    run: str  # the run whose figures chose it

    def distance(self, gpu: Gpu, shape: Shape) -> float:
        """In doublings: of the query rows for each multiprocessor, plus of the keys. 0 where all is the same."""
        return abs(math.log2(_load(gpu, shape) / _load(self.gpu, self.shape))) + abs(
            math.log2(shape.keys / self.shape.keys)
        )

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Row:
        """The row that :meth:`as_dict` gave.

        Raises:
            LookupError, TypeError, ValueError: ``entry`` is no such thing.
        """
        shape = Shape(**{str(k): int(v) for k, v in entry["shape"].items()})
        settings = {str(k): int(v) for k, v in entry["set"].items()}
        gpu = Gpu(str(entry["gpu"]), int(entry["sms"]))
        if min(shape.B, shape.H, shape.S, shape.D, shape.keys, gpu.sms) < 1:
            raise ValueError(f"a row contains a size below 1: {entry}")
        return cls(str(entry["variant"]), gpu, shape, settings, str(entry["run"]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "gpu": self.gpu.name,
            "sms": self.gpu.sms,
            "shape": self.shape.as_dict(),
            "set": dict(self.settings),
            "run": self.run,
        }


@dataclass(frozen=True)
class Choice:
    configuration: Configuration
    reason: str  # for people
    run: str = ""  # whose figures chose it; empty for the defaults


def choose(variant: Variant, shape: Shape, gpu: Gpu | None = None, rows: Iterable[Row] | None = None) -> Choice:
    """The configuration of ``variant`` for ``shape`` on ``gpu`` (default: the card these kernels are tuned for).

    Raises:
        UsageError: the table is broken, or has a row that the variant cannot be built with.
    """
    card = gpu or TARGET_GPU
    usable = [r for r in (load() if rows is None else rows) if r.variant == variant.name and r.shape.D == shape.D]
    if variant.chooses:
        usable = [r for r in usable if r.gpu == card and r.shape == shape]
    usable = [r for r in usable if r.gpu == card] or usable
    nearest = min(usable, key=lambda r: r.distance(card, shape), default=None)
    if nearest is None:
        return Choice(variant.configure(), "its defaults")
    exact = nearest.gpu == card and nearest.shape == shape
    where = f"{nearest.shape} on {nearest.gpu.name} ({nearest.gpu.sms} SMs), run {nearest.run}"
    reason = ("measured: " if exact else "nearest measured: ") + where
    return Choice(variant.configure(nearest.settings), reason, nearest.run)


def reachable(variant: Variant, gpu: Gpu | None = None) -> list[Configuration]:
    """Every configuration that :func:`choose` can come to on ``gpu`` for a shape that is in the table, and the defaults
    where there is none: each once."""
    found = []
    for row in load():
        if row.variant == variant.name:
            chosen = choose(variant, row.shape, gpu).configuration
            if chosen not in found:
                found.append(chosen)
    return found or [variant.configure()]


def load(path: Path = TABLE) -> tuple[Row, ...]:
    """All rows.

    Raises:
        UsageError: not such a table; a row of an unknown variant, or with settings it does not have.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise _no_table(path.name, e) from e
    return parse(text, path.name)


def parse(text: str, name: str = TABLE.name) -> tuple[Row, ...]:
    """The rows of a table's text; ``name`` is what messages call it. Raises: as :func:`load`."""
    try:
        document = json.loads(text)
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {document['schema_version']}, but must be {SCHEMA_VERSION}")
        rows = tuple(Row.from_dict(entry) for entry in document["rows"])
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise _no_table(name, e) from e
    for row in rows:
        if row.variant not in VARIANTS:
            raise UsageError(f"{name} has a row for {row.variant!r}, which is not a variant")
        VARIANTS[row.variant].configure(row.settings)
    return rows


def _no_table(name: str, fault: Exception) -> UsageError:
    cause = f"{type(fault).__name__}: {fault}"
    return UsageError(f"{name} is not a table of tilings", cause=cause, hint="restore it: git checkout -- " + name)


def render(rows: Iterable[Row]) -> str:
    """The table's text; of rows for the same variant, GPU and shape the last one counts.

    Raises:
        UsageError: a row is not legal.
    """
    kept = {}
    for row in rows:
        VARIANTS[row.variant].configure(row.settings)
        kept[_key(row)] = row
    body = ",\n".join("  " + json.dumps(kept[key].as_dict()) for key in sorted(kept))
    return f'{{\n "schema_version": {SCHEMA_VERSION},\n "rows": [\n{body}\n ]\n}}\n'


def adopted(given: Mapping[str, Any]) -> list[Row]:
    """Rows as a search has them (see the module's text), of the variant in its environment; only what differs from the
    variant's defaults is kept.

    Raises:
        UsageError: they are none.
    """
    try:
        variant = VARIANTS[split(str(given["env"]["VARIANT"]))[0]]
        known = {row.gpu.name: row.gpu.sms for row in load()}
        rows = []
        for entry in given["rows"]:
            name, sms = str(entry["gpu"]), entry.get("sms") or known.get(str(entry["gpu"]))
            if sms is None:
                raise UsageError(
                    f"the number of multiprocessors of a {name} is unknown", hint="search on this GPU again"
                )
            default = variant.configure()
            chosen = variant.configure({str(k): int(v) for k, v in entry["params"].items()})
            settings = {key: value for key, value in chosen.items() if value != default[key]}
            (shape,) = shapes.parse(str(entry["case"])).values()
            rows.append(Row(variant.name, Gpu(name, int(sms)), shape, settings, str(entry["run"])))
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise UsageError("these rows are not from a search", cause=f"{type(e).__name__}: {e}") from e
    return rows


def main() -> int:
    """Read what is to be adopted, print the table with it."""
    try:
        given = json.load(sys.stdin)
        text = str(given.get("text") or "")
        before = parse(text) if text.strip() else ()
        sys.stdout.write(render([*before, *adopted(given)]))
    except FlashcoreError as e:
        print("error: " + str(e), file=sys.stderr)
        return e.exit_code
    except (ValueError, AttributeError) as e:
        print(f"error: standard input is not a JSON object: {e}", file=sys.stderr)
        return 2
    return 0


def _key(row: Row) -> tuple[Any, ...]:
    s = row.shape
    return (row.variant, row.gpu.name, row.gpu.sms, s.B * s.H * s.S * s.keys, s.B, s.H, s.S, s.keys, s.D)


def _load(gpu: Gpu, shape: Shape) -> float:
    """Query rows for each multiprocessor."""
    return shape.B * shape.H * shape.S / gpu.sms


if __name__ == "__main__":
    sys.exit(main())
