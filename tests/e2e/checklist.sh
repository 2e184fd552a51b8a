#!/usr/bin/env bash
# FlashCore's checklist for one run of the workspace in this folder: checklist.sh RUN [VARIANT]
# One line a point: [PASS], [FAIL], or [SKIP] with the reason where the run cannot decide it. Exit code 1: a point failed.
set -uo pipefail
run=$1 variant=${2:-flagship} failed=0
all=$(fcctl -q results export "$run") || exit 2
figures=$(fcctl -q results export "$run" --format flashcore 2>/dev/null) || figures={} # it measured nothing
report=$(fcctl -q results report "$run") || exit 2

point() { # WHAT JQ-CONDITION [JSON]
  if jq -e "$2" >/dev/null 2>&1 <<<"${3:-$all}"; then echo "[PASS] $1"; else echo "[FAIL] $1"; failed=1; fi
}
on_l4() { # WHAT JQ-CONDITION JSON: the figure is meant for an L4
  if jq -e '.gpu == "NVIDIA L4"' >/dev/null <<<"$figures"; then point "$@"; else
    echo "[SKIP] $1: measured on $(jq -r .gpu <<<"$figures")"
  fi
}
said() { # WHAT PATTERN: of the report
  if grep -Eq -- "$2" <<<"$report"; then echo "[PASS] $1"; else echo "[FAIL] $1"; failed=1; fi
}
of() { echo "[.documents[] | select(.kind == \"$1\") | .content]"; }

point "the run passed, and none of its gates is undecided" \
  '.run.status == "passed" and all(.run.steps[].gates[]?; .verdict != "fail" and .verdict != "unavailable")'
point "preflight: GPU, driver, CUDA toolkit, Nsight Compute, PyTorch, no error" \
  "$(of environment)[0] | .gpu.name and .gpu.driver and .cuda.version and .ncu.version and .torch.version
   and .summary.errors == 0"
point "correctness: 20 of 20 cases, max_err <= 0.06, mean_err" \
  "$(of correctness) | length > 0 and all(.[].summary; .total == 20 and .passed == 20 and .max_err <= 0.06
   and .mean_err <= .max_err)"
point "p50, p90 and p99 of the mission, in us, from at least 100 samples" \
  '.results.mission.flashcore | .n >= 100 and .p50 > 0 and .p50 <= .p90 and .p90 <= .p99' "$figures"
point "PyTorch SDPA in the same run, and the speedup over it" \
  '.results.mission.pytorch.p50 / .results.mission.flashcore.p50 == .speedup' "$figures"
point "the mission shape: B=1 H=8 S=512 D=64" '.config == {"B": 1, "H": 8, "S": 512, "D": 64}' "$figures"
point "no spills and no stack in any kernel of $variant" \
  "$(of build) | length > 0 and all(.[].kernels[]; .spill_store_bytes == 0 and .spill_load_bytes == 0
   and .stack_bytes == 0)"
point "Nsight Compute: tensor cores, SM, occupancy and DRAM of each profile" \
  "$(of profile) | length > 0 and all(.[].kernels[].metrics; .tensor_active_pct > 0 and .sm_throughput_pct > 0
   and .occupancy_pct > 0 and .dram_throughput_pct >= 0)"
point "tensor cores are active half of the time on the long shape" \
  "$(of profile) | [.[].kernels[].metrics.tensor_active_pct] | max >= 50"
said "the report: a table with p50, speedups over SDPA math and flash, max error, status" \
  '^\| kernel \| p50, µs .*vs SDPA math \| vs SDPA flash .*max error \| status \|$'
said "the report: the kernel is correct 20/20" "^\| $variant .*correct 20/20"
said "the report: bottlenecks and next levers" '^## Bottlenecks and next levers'
on_l4 "phase 1: under 200 us" '.results.mission.flashcore.p50 < 200' "$figures"
on_l4 "phase 2: under 58 us" '.results.mission.flashcore.p50 < 58' "$figures"
on_l4 "phase 3: 15 to 30 us or less" '.results.mission.flashcore.p50 <= 30' "$figures"
on_l4 "a grade, and the next step" '.results.mission.flashcore.p50 > 0' "$figures"
exit $failed
