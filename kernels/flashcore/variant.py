"""A kernel variant: what it takes, its compile-time parameters with their legal values, and how it is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flashcore.errors import UsageError, nearest

#: A full set of compile-time parameters, name -> value; each becomes ``-DNAME=VALUE``.
Configuration = dict[str, int]

#: The part of a source that has the functions of flashcore.h.
COMMON = 1


@dataclass(frozen=True)
class Parameter:
    name: str
    values: tuple[int, ...]
    default: int
    meaning: str


@dataclass(frozen=True)
class Constraint:
    """A rule across parameters, ``text`` for people."""

    text: str
    holds: Callable[[Mapping[str, int]], bool]


@dataclass(frozen=True)
class Variant:
    name: str
    device: str  # cuda or cpu
    source: Path
    summary: str
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    dtypes: tuple[str, ...] = ("float16",)
    head_dims: tuple[int, ...] = (64,)
    causal: bool = True
    grouped_heads: bool = False  # takes fewer heads of K and V than of Q
    lower_right: tuple[int, ...] = ()  # head dimensions of which it takes a causal mask to the lower right corner
    masks: tuple[int, ...] = ()  # head dimensions of which it takes a boolean mask
    scores: bool = False  # takes flashcore.extras.Scores
    window: bool = False  # takes those that only hide all but the keys up to a query's place in the lower right corner
    packed: bool = False  # takes sequences of different lengths one behind the other
    pages: bool = False  # takes keys and values in pages
    alignment: int = 2  # bytes that pointers and row starts must be a multiple of
    eight_bits: str = ""  # which operands have no more: all, or qk: those of Q K^T (flashcore.roundings)
    chooses: bool = False  # its library has many tilings and takes one by shape and device
    #: Those tilings, by type and head dimension, in the library's order: "64x32x64,2,2pt" is 64 rows, 32 rows per warp,
    #: 64 keys, 2 groups, 2 stages, p(ipelined), s(taggered), t(ensor sums), q (SHARED_Q),
    #: m (takes masks, and is chosen for calls that need that), c (changes scores); or they are numbers of splits.
    tilings: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    #: Its default configuration is several libraries, each for some calls, so that the first call waits for one or
    #: two. Of each its parts, ``-DPART=`` a sum of some, for several translation units at once. In the
    #: order that balances them: unit i of n gets each n-th from the i-th on.
    libraries: tuple[tuple[int, ...], ...] = ()
    #: The number of the library for a head dimension and calls that need a tiling with masks, or that do not.
    library_of: Callable[[int, bool], int] = lambda _D, _masked: 0
    #: What is the same in many configurations, as the part ``COMMON``: the settings to compile it with, as a library of
    #: its own, for all like the given one, once. Of each configuration only the kernel is compiled then, to a file of
    #: device code, and the library that opens it is ``told`` the values of these parameters. Empty: nothing is apart.
    common: Callable[[Mapping[str, int]], Configuration] = lambda _: {}
    told: tuple[str, ...] = ()

    def configure(self, overrides: Mapping[str, int] | None = None) -> Configuration:
        """The defaults with ``overrides`` applied.

        Raises:
            UsageError: an unknown parameter, an illegal value, or a combination that breaks a constraint.
        """
        chosen = {p.name: p.default for p in self.parameters}
        for name, value in (overrides or {}).items():
            parameter = next((p for p in self.parameters if p.name == name), None)
            if parameter is None:
                hint = nearest(name, chosen) if chosen else f"{self.name} has no parameters"
                raise UsageError(f"{self.name} has no parameter {name}", hint=hint)
            if value not in parameter.values:
                legal = ", ".join(map(str, parameter.values))
                raise UsageError(f"{name}={value} is not a legal value for {self.name}", hint=f"legal values: {legal}")
            chosen[name] = value
        for constraint in self.constraints:
            if not constraint.holds(chosen):
                raise UsageError(
                    f"{self.name} cannot be built with these parameters: {constraint.text}",
                    cause=f"the parameters are {chosen}",
                )
        return chosen

    def units(self, library: int, compilers: int) -> list[int]:
        """``PART`` of each translation unit of a library, for as many compilers at once."""
        parts = self.libraries[library]
        count = max(1, min(compilers, len(parts)))
        return [sum(parts[i::count]) for i in range(count)]

    def label(self, configuration: Mapping[str, int], asked: Container[str] = ()) -> str:
        """The name, with what differs from the defaults or was ``asked`` for: ``stage5:NUM_PRODUCER_WARPS=2``."""
        named = [
            f"{p.name}={configuration[p.name]}"
            for p in self.parameters
            if p.name in asked or configuration[p.name] != p.default
        ]
        return ":".join(filter(None, (self.name, "+".join(named))))

    def space(self, settled: Mapping[str, int] | None = None) -> Iterator[Configuration]:
        """Every legal configuration with the values that are ``settled``, the defaults first."""
        default, only = self.configure(), settled or {}
        if all(default[name] == value for name, value in only.items()):
            yield default
        for values in itertools.product(*((only[p.name],) if p.name in only else p.values for p in self.parameters)):
            chosen = dict(zip((p.name for p in self.parameters), values))  # noqa: B905 (Python 3.9)
            if chosen != default and all(c.holds(chosen) for c in self.constraints):
                yield chosen
