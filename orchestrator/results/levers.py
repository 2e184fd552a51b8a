"""From a profile to bottlenecks and what to try next, by stated rules.

A rule looks at measured numbers, and either stays silent or says what it found, what to do about it, and which number
passed which threshold. Its *impact* is an estimate of how much of the kernel's time the finding concerns, 0 to 100; the
three largest are shown. It orders findings, and promises no speedup. The thresholds are this project's choice (there
is no law behind them); docs/report.md lists them, and a test keeps the two together. What to do about it is said for
any kernel; a document's ``levers`` says it better for its own.

Stall figures are Nsight Compute's ``smsp__average_warps_issue_stalled_*_per_issue_active``: warps that wait for that
reason at each issue. A reason's share of their sum is the share of a warp's life spent waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: The most warps that one SM holds at once, by compute capability (CUDA C++ Programming Guide, technical
#: specifications); 64 on those not named.
WARPS_PER_SM = {"7.5": 32, "8.6": 48, "8.7": 48, "8.9": 48, "12.0": 48}

SHOWN = 3


@dataclass(frozen=True)
class Measured:
    """What is known of one kernel on one shape; None where nothing is."""

    tensor_pct: float | None = None  # of the tensor pipe's active cycles
    wants_tensor: bool = False  # its authors have a target for that
    sm_pct: float | None = None
    dram_pct: float | None = None
    l2_hit_pct: float | None = None
    occupancy_pct: float | None = None
    theoretical_occupancy_pct: float | None = None
    warps_per_sm: int | None = None  # the most that one holds
    registers: float | None = None  # a thread
    smem_bytes: float | None = None  # a block, static and dynamic
    threads: int | None = None  # a block
    blocks: int | None = None
    sms: float | None = None
    spill_bytes: float | None = None  # loads and stores
    stack_bytes: float | None = None
    stalls: Mapping[str, float] = field(default_factory=dict)  # reason -> warps per issue
    p50_us: float | None = None
    launch_floor_us: float | None = None  # an empty kernel in the same mode
    roofline_pct: float | None = None  # of the floor's time
    roofline_bound: str | None = None  # tensor, exp2, memory, launch

    def share(self, *reasons: str) -> float | None:
        """Percent of a warp's life spent waiting for ``reasons``; None without stall figures."""
        total = sum(self.stalls.values())
        return 100 * sum(self.stalls.get(r, 0.0) for r in reasons) / total if total > 0 else None


#: (name, value, threshold) of a number behind a finding.
Fact = tuple[str, str, str]
#: An impact, and the numbers behind it; None: the rule does not fire.
Found = tuple[float, list[Fact]] | None
INFO = "for information"


@dataclass(frozen=True)
class Finding:
    """A bottleneck: which rule names it, what to try next, the percent of the kernel's time that it concerns, and the
    numbers that triggered the rule."""

    rule: str
    bottleneck: str
    lever: str
    impact: float
    facts: tuple[Fact, ...]


def findings(measured: Measured, limit: int | None = SHOWN) -> list[Finding]:
    """What the rules find, the largest impact first; equal ones in the order of :data:`RULES`."""
    known = ((name, bottleneck, lever, rule(measured)) for name, bottleneck, lever, rule in RULES)
    fired = [Finding(name, bottleneck, lever, at[0], tuple(at[1])) for name, bottleneck, lever, at in known if at]
    return sorted(fired, key=lambda one: -one.impact)[:limit]


def spills(m: Measured) -> Found:
    """Spilled registers: nothing else is worth a look before they are gone. Impact 100."""
    return (100.0, [("spills, bytes per thread", f"{m.spill_bytes:.0f}", "> 0")]) if m.spill_bytes else None


def stack(m: Measured) -> Found:
    """A stack without spills. Impact 100."""
    size = m.stack_bytes if not m.spill_bytes else None
    return (100.0, [("stack, bytes per thread", f"{size:.0f}", "> 0")]) if size else None


def scalar_fallback(m: Measured) -> Found:
    """Tensor cores are idle, and have a target, while the SM is busy. Impact 99: it is worth an order of magnitude."""
    if not m.wants_tensor or m.tensor_pct is None or m.sm_pct is None or m.tensor_pct >= 2 or m.sm_pct < 20:
        return None
    busy = ("SM throughput", f"{m.sm_pct:.1f} %", ">= 20 %")
    return 99.0, [("tensor cores active", f"{m.tensor_pct:.1f} %", "< 2 %"), busy]


def memory_bound(m: Measured) -> Found:
    """DRAM near its peak. Impact: its share of the peak."""
    if m.dram_pct is None or m.dram_pct < 60:
        return None
    hits = [] if m.l2_hit_pct is None else [("L2 hits", f"{m.l2_hit_pct:.1f} %", INFO)]
    return m.dram_pct, [("DRAM throughput", f"{m.dram_pct:.1f} % of peak", ">= 60 %"), *hits]


def tensor_bound(m: Measured) -> Found:
    """Tensor cores near their peak: what is left is small. Impact: what they do not reach."""
    if m.tensor_pct is None or m.tensor_pct < 70:
        return None
    return 100 - m.tensor_pct, [("tensor cores active", f"{m.tensor_pct:.1f} %", ">= 70 %")]


def exponentials(m: Measured) -> Found:
    """exp2 sets the roofline's floor, and the kernel is near it. Impact: how much of its time the floor is."""
    if m.roofline_bound != "exp2" or m.roofline_pct is None or m.roofline_pct < 40:
        return None
    return m.roofline_pct, [("time at the exp2 ceiling", f"{m.roofline_pct:.0f} % of p50", ">= 40 %")]


def launch_bound(m: Measured) -> Found:
    """An empty launch is a large part of the time. Impact: that part."""
    share = 100 * min(1.0, m.launch_floor_us / m.p50_us) if m.p50_us and m.launch_floor_us is not None else 0.0
    if share < 20:
        return None
    empty = ("empty launch", f"{m.launch_floor_us:.2f} us", f">= 20 % of p50 ({m.p50_us:.2f} us)")
    return share, [empty, ("share of the time", f"{share:.0f} %", ">= 20 %")]


def underfilled(m: Measured) -> Found:
    """Fewer blocks than SMs. Impact: the share of SMs without one."""
    if not (m.blocks and m.sms and m.blocks < m.sms):
        return None
    idle = 100 * (1 - m.blocks / m.sms)
    return idle, [("blocks", f"{m.blocks}", f"< {m.sms:.0f} SMs"), ("SMs without work", f"{idle:.0f} %", "> 0 %")]


def last_wave(m: Measured) -> Found:
    """A few waves, the last one nearly empty. Impact: the share of block slots that stay empty."""
    slots = _resident_blocks(m)
    if not (m.blocks and slots and m.sms and m.blocks >= m.sms):
        return None
    waves = m.blocks / (slots * m.sms)
    empty = 100 * (1 - waves / -(-m.blocks // int(slots * m.sms)))
    if not 1 < waves <= 8 or empty < 10:
        return None
    return empty, [
        ("waves", f"{waves:.2f}", "1 to 8, not whole"), ("empty block slots", f"{empty:.0f} %", ">= 10 %"),
    ]  # fmt: skip


_LATENCY = ("long_scoreboard", "short_scoreboard", "wait", "barrier", "drain", "membar", "no_instruction", "imc_miss")


def occupancy(m: Measured) -> Found:
    """Few warps, and those wait. Impact: latency's share of a warp's life, less what warps there are can hide."""
    waiting = m.share(*_LATENCY)
    if m.occupancy_pct is None or waiting is None or m.occupancy_pct >= 25 or waiting < 50:
        return None
    facts = [
        ("occupancy", f"{m.occupancy_pct:.1f} %", "< 25 %"),
        ("warps' time spent on latencies", f"{waiting:.0f} %", ">= 50 %"),
    ]
    if m.registers is not None:
        facts.append(("registers per thread", f"{m.registers:.0f}", INFO))
    if m.smem_bytes is not None:
        facts.append(("shared memory per block", f"{m.smem_bytes / 1024:.1f} KiB", INFO))
    return waiting * (1 - m.occupancy_pct / 25) / 2, facts


@dataclass(frozen=True)
class Stalled:
    """Fires when warps spend ``threshold_pct`` of their life waiting for ``reasons``. Impact: that share."""

    reasons: tuple[str, ...]
    threshold_pct: float

    def __call__(self, m: Measured) -> Found:
        share = m.share(*self.reasons)
        if share is None or share < self.threshold_pct:
            return None
        warps, total = sum(m.stalls.get(r, 0.0) for r in self.reasons), sum(m.stalls.values())
        value = f"{warps:.2f} of {total:.2f} warps per issue: {share:.0f} %"
        return share, [(" + ".join(r for r in self.reasons if m.stalls.get(r)), value, f">= {self.threshold_pct} %")]


def _resident_blocks(m: Measured) -> int | None:
    """Blocks that one SM holds at once, from the theoretical occupancy; None if unknown."""
    if not (m.theoretical_occupancy_pct and m.threads and m.warps_per_sm):
        return None
    warps = -(-m.threads // 32)
    return round(m.theoretical_occupancy_pct / 100 * m.warps_per_sm / warps) or None


#: A rule's name, its bottleneck, what to do about it, and when it fires.
RULES: tuple[tuple[str, str, str, Callable[[Measured], Found]], ...] = (
    ("spills", "registers spill to local memory", "unroll less, use smaller tiles, or relax __launch_bounds__", spills),
    ("stack", "an array is in local memory",
     "use only constants as array indices: unroll the loop fully, or use named registers", stack),
    ("scalar_fallback", "the arithmetic is scalar: tensor cores are idle while the SM is busy",
     "move products to the tensor cores (mma.sync or WMMA), and check for a remaining scalar path", scalar_fallback),
    ("memory_bound", "DRAM is the limit",
     "move fewer bytes: use larger tiles, fuse adjacent kernels, order blocks for L2 reuse, use narrower types",
     memory_bound),
    ("tensor_bound", "tensor cores are close to their limit",
     "this algorithm is close to its limit: use narrower types, or fewer products", tensor_bound),
    ("exponentials", "the rate of exp2 (special function units) is the closest limit",
     "compute a part of the exponentials as a polynomial on the FMA pipe", exponentials),
    ("launch_bound", "the launch itself is a large part of the time",
     "do more per launch: batch shapes, fuse adjacent kernels, or capture the calls in a CUDA graph", launch_bound),
    ("underfilled", "some SMs have no block",
     "split the work over more blocks (with a reduction if necessary), or use smaller tiles", underfilled),
    ("last_wave", "the last wave of blocks leaves SMs idle",
     "make blocks persistent and distribute tiles to them, or choose a tile size that fills whole waves", last_wave),
    ("occupancy", "too few warps to hide latencies",
     "use fewer registers or less shared memory per block (smaller tiles, fewer stages), or more work per warp",
     occupancy),
    ("global_latency", "warps wait for global memory or L2",
     "load earlier: use more cp.async stages, and issue the next tile's loads before this tile's arithmetic",
     Stalled(("long_scoreboard", "tex_throttle"), 15)),
    ("shared_latency", "warps wait for shared memory or special functions",
     "keep values in registers, load with ldmatrix.x4, avoid bank conflicts with a swizzle",
     Stalled(("short_scoreboard",), 15)),
    ("shared_throughput", "the queue to shared or local memory is full",
     "use fewer and wider accesses: 16 bytes per thread, ldmatrix.x4, reuse values in registers",
     Stalled(("mio_throttle", "lg_throttle"), 10)),
    ("barriers", "warps wait for each other",
     "synchronise smaller groups: use named barriers or warp-level sync, or producer warps that work ahead",
     Stalled(("barrier", "membar"), 10)),
    ("dependencies", "warps wait for their own last instruction",
     "add independent work per warp: unroll, or interleave two tiles",
     Stalled(("wait", "dispatch_stall"), 25)),
    ("math_pipe", "an arithmetic pipe is full",
     "use fewer instructions per result: fold constants, use wider instructions, move work to another pipe",
     Stalled(("math_pipe_throttle", "gmma"), 20)),
    ("instructions", "warps wait for instructions or constants",
     "make the loop body smaller: unroll less, keep the loop within the instruction cache, keep constants in registers",
     Stalled(("no_instruction", "imc_miss", "branch_resolving"), 10)),
)  # fmt: skip
