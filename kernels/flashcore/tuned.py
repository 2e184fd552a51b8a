"""A variant ready to run on any shape: for each, the library with the configuration that :mod:`flashcore.tilings` has.

``Tuned(variant)`` follows the table; ``Tuned(variant, {"TILE_M": 64})`` is one configuration for all shapes. Libraries
are built and loaded when they are first needed, or several at once by :meth:`Tuned.prepare`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flashcore import build, tilings, toolchain
from flashcore.errors import UsageError
from flashcore.registry import VARIANTS
from flashcore.shapes import Shape
from flashcore.variant import Configuration, Variant

if TYPE_CHECKING:  # torch is not needed to build
    import torch

    from flashcore.launch import Kernel


def _takes(variant: Variant, what: str, D: int) -> bool:
    """A shape's ``window``, ``mask`` or ``sequences``."""
    takes = {"window": variant.window, "mask": D in variant.masks, "sequences": variant.packed}
    return D in variant.head_dims and takes[what]


class Tuned:
    def __init__(
        self,
        variant: Variant,
        overrides: Mapping[str, int] | None = None,
        *,
        debug: bool = False,
        archs: str | None = None,
        load: Callable[[build.Built], Any] | None = None,
    ) -> None:
        """``load`` makes a kernel of a library; default: it is loaded into this process.

        Raises:
            UsageError: ``overrides`` are not legal.
        """
        self.variant = variant
        self._overrides = dict(overrides) if overrides else None
        self._debug, self._archs, self._load = debug, archs, load
        #: What results call it: the bare name stands for the table's choices.
        self.label = variant.label(variant.configure(overrides), overrides or {})
        self._built: dict[Any, build.Built] = {}
        self._kernels: dict[tuple[int, ...], Kernel] = {}

    def choice(self, shape: Shape) -> tilings.Choice:
        """Raises UsageError: the variant does not take so few heads of keys, or what else the shape asks for."""
        if shape.H_kv is not None and not self.variant.grouped_heads:
            takers = ", ".join(v.name for v in VARIANTS.values() if v.grouped_heads)
            raise UsageError(
                f"{self.variant.name} needs as many heads of keys as of queries, not {shape}",
                hint=f"variants that take fewer: {takers}",
            )
        for what in ("window", "mask", "sequences"):
            if getattr(shape, what) is not None and not _takes(self.variant, what, shape.D):
                raise UsageError(
                    f"{self.variant.name} does not support {what} at D = {shape.D}: {shape}",
                    hint="supported by: " + ", ".join(v.name for v in VARIANTS.values() if _takes(v, what, shape.D)),
                )
        if self._overrides is not None:
            return tilings.Choice(self.variant.configure(self._overrides), "as set")
        return tilings.choose(self.variant, shape, toolchain.gpu())

    def built(self, shape: Shape) -> build.Built:
        """The library for ``shape``.

        Raises:
            Unavailable: no compiler here.
            BuildFailed: it refused.
        """
        return self._build(self.choice(shape).configuration, [shape])

    def prepare(self, shapes: Iterable[Shape] | None = None) -> list[build.Built]:
        """Build what ``shapes`` need (default: all that this machine can come to), several at once; each once."""
        needed = None if shapes is None else list(shapes)
        if needed is not None:
            wanted = [self.choice(shape).configuration for shape in needed]
        elif self._overrides is not None:
            wanted = [self.variant.configure(self._overrides)]
        else:
            wanted = tilings.reachable(self.variant, toolchain.gpu())
        from concurrent.futures import ThreadPoolExecutor

        distinct = {tuple(c.values()): c for c in wanted}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            return list(pool.map(lambda one: self._build(one, needed), distinct.values()))

    def for_shape(self, shape: Shape) -> Kernel:
        """The kernel for ``shape``, loaded.

        Raises:
            Unavailable: no GPU, no compiler, or a library that does not load.
            BuildFailed: the compiler refused.
        """
        return self._kernel(self.built(shape))

    def kernels(self) -> list[Kernel]:
        """One for each configuration that this machine can come to."""
        return [self._kernel(built) for built in self.prepare()]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        """As :meth:`flashcore.launch.Kernel.__call__`, by the kernel for these shapes."""
        return self.for_shape(Shape.of(q.shape, k.shape))(q, k, v, **options)

    def _build(self, configuration: Configuration, shapes: Iterable[Shape] | None = None) -> build.Built:
        """Of a variant that is several libraries, those for ``shapes`` (None: all)."""
        library_of = self.variant.library_of
        needed = None if shapes is None else frozenset(library_of(s.D, s.mask is not None) for s in shapes)
        key = tuple(configuration.values()), needed
        if key not in self._built:
            self._built[key] = build.build(
                self.variant, configuration, debug=self._debug, archs=self._archs, label=self.label, libraries=needed
            )
        return self._built[key]

    def _kernel(self, built: build.Built) -> Kernel:
        from flashcore.launch import Kernel

        key = tuple(built.configuration.values())
        if key not in self._kernels:
            self._kernels[key] = (self._load or Kernel)(built)
        return self._kernels[key]
