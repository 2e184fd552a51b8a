"""Building with the real compilers, the cache, and what the launcher refuses."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import shutil
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashcore import apart, launch, peaks, readers, registry, tilings, toolchain
from flashcore import build as building
from flashcore import library as library_module
from flashcore.build import build
from flashcore.errors import BuildFailed, Unavailable, Unsupported, UsageError
from flashcore.extras import Scores
from flashcore.variant import COMMON, Parameter, Variant
from tests.support.tiers import sampled

CPU = registry.VARIANTS["cpu"]
#: Compiles in a fifth of the time of the real one.
SMALL = """
#include "flashcore.h"
#include "answer.h"
FLASHCORE_API int flashcore_forward(const flashcore_args *) { return ANSWER; }
FLASHCORE_API const char *flashcore_error(int) { return "made up"; }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args) + WRONG_SIZE; }
"""


@pytest.fixture
def small(tmp_path: Path, own_cache: Path) -> Variant:
    (tmp_path / "small.cpp").write_text(SMALL)
    (tmp_path / "answer.h").write_text("#define ANSWER 7\n")
    size = Parameter("WRONG_SIZE", (0, 8), 0, "")
    return Variant("small", "cpu", tmp_path / "small.cpp", "", parameters=(size,))


@pytest.fixture(scope="module")
def cpu(builds: None) -> launch.Kernel:
    return launch.Kernel(build(CPU))


def tensors(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape or (1, 2, 5, 64)).half() for _ in range(3)]


# ------------------------------------------------------------------------------------------------ build
def test_an_unchanged_variant_is_cached_and_any_change_builds_anew(small: Variant) -> None:
    first = build(small)
    assert not first.cached
    assert first.document["kernels"] == []
    again = build(small)
    assert again.cached
    assert again.library == first.library
    assert again.document["duration_s"] < first.document["duration_s"]
    assert not build(small, {"WRONG_SIZE": 8}).cached
    assert not build(small, debug=True).cached
    (small.source.parent / "answer.h").write_text("#define ANSWER 8\n")
    assert not build(small).cached
    small.source.write_text(SMALL + "// changed\n")
    assert not build(small).cached


def test_two_builds_at_once_both_succeed(small: Variant) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(build, [small] * 4))
    assert len({b.library for b in found}) == 1
    assert [p.name for p in building.cache_folder().iterdir()] == [found[0].library.parent.name]


def test_a_refused_source_says_what_the_compiler_said(small: Variant) -> None:
    small.source.write_text(SMALL + "int broken = nothing;\n")
    with pytest.raises(BuildFailed) as raised:
        build(small)
    assert "'nothing' was not declared" in str(raised.value) or "undeclared identifier" in str(raised.value)
    assert list(building.cache_folder().iterdir()) == []


def test_a_missing_compiler_is_unavailable_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(toolchain, "_nvcc_candidates", list)
    for find, said in ((toolchain.nvcc, "CUDA_HOME"), (toolchain.cxx, "install g++")):
        find.cache_clear()
        with pytest.raises(Unavailable, match=re.escape(said)):
            find()


def _nvcc_missing() -> bool:
    try:
        toolchain.nvcc()
    except Unavailable:
        return True
    return False


needs_nvcc = pytest.mark.skipif(
    _nvcc_missing(), reason="unavailable: compiling for sm_89 needs nvcc, a GPU it does not"
)
#: What a variant may use on an L4 where less than the hardware's 255 is asked of it.
REGISTERS = {"wmma": 120}
FLAGSHIP = registry.VARIANTS["flagship"]
#: The flagship's are checked in test_reach.py, which compiles all of them.
CUDA = [(v.name, {}) for v in registry.VARIANTS.values() if v.device == "cuda" and v.name != "flagship"]


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "settings"),
    sampled([*CUDA, ("stage5", {"NUM_PRODUCER_WARPS": 2})], keep=[("baseline", {})]),
)
def test_cuda_variants_fit_an_l4_without_spills(name: str, settings: dict[str, int], own_cache: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = build(registry.VARIANTS[name], settings, archs="89")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent > 0
    assert name != "fused" or spent <= 5.0  # seconds of a processor: the clock on the wall is other programs' too
    kernels = built.document["kernels"]
    assert kernels
    for kernel in kernels:
        assert kernel["arch"] == "sm_89"
        assert kernel["stack_bytes"] == 0
        assert (kernel["spill_store_bytes"], kernel["spill_load_bytes"]) == (0, 0)
        assert 0 < kernel["registers"] <= REGISTERS.get(name, 255)
        assert kernel["smem_bytes"] <= 65536
    assert "Local memory used" not in built.log.read_text()  # -warn-lmem-usage: an array that registers do not hold
    again = build(registry.VARIANTS[name], settings, archs="89")
    assert again.cached
    assert again.document["kernels"] == kernels
    assert again.document["duration_s"] < built.document["duration_s"]


@pytest.mark.full
@needs_nvcc
@pytest.mark.parametrize(
    "needs",
    ["double f(double x) { return std::beta(x, x); }", "double f() { return exp10l(2); }"],
    ids=["beta", "exp10l"],
)
def test_a_source_that_needs_what_is_left_out_builds_with_all_of_the_headers(
    needs: str, tmp_path: Path, own_cache: Path
) -> None:
    source = tmp_path / "rich.cu"
    source.write_text(f"#include <cmath>\n{needs}\n")
    rich = Variant("rich", "cuda", source, "")
    built = build(rich, archs="89")
    assert not set(building.LEAN) & set(built.document["command"].split())
    assert build(rich, archs="89").cached
    source.write_text(f"#include <cmath>\n{needs}\nint broken = nothing;\n")
    with pytest.raises(BuildFailed) as raised:
        build(rich, archs="89")
    assert '"nothing" is undefined' in str(raised.value)
    assert "beta" not in str(raised.value)  # the error is the source's, not what was left out


def device_code(
    variant: Variant, settings: dict[str, int], folder: Path, arch: str = "89"
) -> tuple[str, str, list[dict[str, int]]]:
    """Label, variant and what ptxas says of each kernel."""
    configuration = variant.configure(settings)
    label = variant.label(configuration)
    command = [w for w in building._command(variant, configuration, False, [arch], True) if w != "-shared"]
    output = folder / f"{building.slug(label)}.cubin"
    argv = [*command, "-cubin", f"-I{registry.CSRC}", str(variant.source), "-o", str(output)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[:4000]
    log = output.with_suffix(".log")
    log.write_text(done.stdout)
    return label, variant.name, readers.read("ptxas", log)["kernels"]


@pytest.mark.full
@needs_nvcc
def test_every_tiling_of_the_table_fits_an_l4_without_spills(tmp_path: Path) -> None:
    """Of each only what the GPU runs, by the build's own command: the host's part of each variant is built above."""
    distinct = {(row.variant, tuple(sorted(row.settings.items()))) for row in tilings.load()}
    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda one: device_code(registry.VARIANTS[one[0]], dict(one[1]), tmp_path), distinct))
    wasteful = [
        f"{label}: {k}"
        for label, variant, kernels in compiled
        for k in kernels
        if k["stack_bytes"] or k["spill_store_bytes"] or k["registers"] > REGISTERS.get(variant, 255)
    ]
    assert compiled
    assert all(kernels for _, _, kernels in compiled)
    assert wasteful == []


def test_translation_units_share_out_all_parts_of_a_library_whatever_the_number_of_processors() -> None:
    for library, parts in enumerate(FLAGSHIP.libraries):
        for processors in range(1, 20):
            units = FLAGSHIP.units(library, processors)
            assert len(units) == min(processors, len(parts))
            assert sum(units) == sum(parts)
            assert all(unit & other == 0 for i, unit in enumerate(units) for other in units[:i])


def test_the_parts_of_the_flagship_are_those_that_its_source_tells_apart() -> None:
    """A bit that no unit has would be found missing when the library is loaded only."""
    source = FLAGSHIP.source.read_text(encoding="utf-8")
    bits = {int(bit) for bit in re.findall(r"#if PART & (\d+)\b", source)}
    assert bits == {1 << n for n in range(len(bits))}
    others = [sum(parts) - COMMON for parts in FLAGSHIP.libraries]
    assert sum(others) == sum(bits) - COMMON
    assert f"#define PART {sum(bits)}\n" in source  # one unit


SMALL_TILING = {"TILE_M": 16, "TILE_N": 16}
TILINGS = [{**SMALL_TILING, "TILE_N": keys} for keys in (16, 32, 64)]
HOSTS, OWN = f"-DPART={COMMON}", apart.ALONE
GROUPED_TILING = {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 4, "STAGES": 2, "PIPELINED": 1, "SHARED_Q": 1}
OTHER_TILING = {"TILE_M": 32, "TILE_N": 16, "STAGES": 2, "BFLOAT16": 1, "SWIZZLE": 0}


a_tiling = pytest.mark.group("a tiling of the flagship")


@pytest.mark.full
@needs_nvcc
def test_of_a_tiling_only_the_kernel_is_compiled_and_the_hosts_part_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    run = toolchain.run

    def counting(argv: list[str]) -> subprocess.CompletedProcess[str]:
        started.append(next((word for word in argv if word in (HOSTS, OWN)), "link"))
        assert (set(apart.LEAN) <= set(argv)) == (OWN in argv)
        return run(argv)

    monkeypatch.setattr(toolchain, "run", counting)
    for settings, expected in (
        (SMALL_TILING, [HOSTS, OWN]),
        (OTHER_TILING, [OWN]),
        ({**SMALL_TILING, "STAGES": 2}, [HOSTS, OWN]),  # what was kept is gone by then
    ):
        started.clear()
        built = build(FLAGSHIP, settings, archs="89")
        assert sorted(started) == sorted(expected)
        assert set(building.LEAN) <= set(built.document["command"].split())  # a search has hundreds built
        (kernel,) = built.document["kernels"]
        code = built.library.with_name("kernel.cubin")
        assert built.code == apart.Code(code, kernel["mangled"])
        assert built.document["artifacts"] == [str(built.library), str(code)]
        assert {p.name for p in code.parent.iterdir()} == {"build.json", "build.log", "kernel.so", "kernel.cubin"}
        assert kernel["mangled"].encode() in code.read_bytes()
        library = ctypes.CDLL(str(built.library), mode=os.RTLD_NOW)  # every symbol is found
        assert library.flashcore_args_bytes() == ctypes.sizeof(library_module.Args)
        again = build(FLAGSHIP, settings, archs="89")
        assert (again.cached, again.code) == (True, built.code)
        (kept,) = own_cache.glob("*.so")
        if settings == OTHER_TILING:
            kept.unlink()


@pytest.mark.full
@needs_nvcc
@a_tiling
@pytest.mark.parametrize(("tiling", "arch"), [(OTHER_TILING, "89"), (GROUPED_TILING, "90a")], ids=["sm_89", "sm_90a"])
def test_a_kernel_is_the_same_to_the_byte_as_in_a_library_of_its_own(
    tiling: dict[str, int], arch: str, tmp_path: Path, builds: None
) -> None:
    built = build(FLAGSHIP, tiling, archs=arch)
    assert built.code is not None
    device_code(FLAGSHIP, tiling, tmp_path, arch)  # of the source as a whole, with all of CUDA's headers
    (whole,) = tmp_path.glob("*.cubin")
    assert machine_code(built.code.file) == machine_code(whole)


def machine_code(file: Path) -> bytes:
    """The instructions of the only kernel in a file of device code (ELF, 64 bits)."""
    elf = file.read_bytes()
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + n * size) for n in range(count)]
    strings = headers[names][4]
    (found,) = (h for h in headers if elf.startswith(b".text.", strings + h[0]))
    return elf[found[4] : found[4] + found[5]]


@pytest.mark.full
@needs_nvcc
@a_tiling
def test_a_kernel_that_cannot_be_loaded_says_why(builds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if toolchain.gpu() is not None:  # asked here: a driver that was asked before the workers were forked ends them
        pytest.skip("unavailable: there is a driver, which loads it")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    built = build(FLAGSHIP, SMALL_TILING, archs="89")
    with pytest.raises(Unavailable) as raised:
        launch.Kernel(built)
    said = str(raised.value).splitlines()
    assert said[0] == f"cannot load {built.library.with_name('kernel.cubin')}"
    assert said[1].startswith("cause: cudaError")
    assert said[2] == f"hint: delete it, so that it is built again: rm -r {built.library.parent}"


@pytest.mark.full
@needs_nvcc
def test_code_for_several_architectures_is_one_file(own_cache: Path) -> None:
    built = build(FLAGSHIP, SMALL_TILING, archs="89,90")
    assert built.code is not None
    assert built.code.file.name == "kernel.fatbin"
    assert {(k["mangled"], k["arch"]) for k in built.document["kernels"]} == {
        (built.code.kernel, arch) for arch in ("sm_89", "sm_90")
    }


@pytest.mark.full
@needs_nvcc
def test_a_tiling_that_does_not_compile_says_why(tmp_path: Path, own_cache: Path) -> None:
    shutil.copytree(registry.CSRC, tmp_path / "csrc")
    source = tmp_path / "csrc/flagship.cu"
    instance = "\ntemplate __global__"
    source.write_text(source.read_text().replace(instance, "\nint broken = nothing;" + instance, 1))
    with pytest.raises(BuildFailed) as raised:
        build(replace(FLAGSHIP, source=source), SMALL_TILING, archs="89")
    assert '"nothing" is undefined' in str(raised.value)
    assert "-cubin" in str(raised.value)


@pytest.mark.full
@needs_nvcc
def test_a_kernel_that_needs_more_of_cuda_than_is_declared_builds_with_its_headers(
    tmp_path: Path, own_cache: Path
) -> None:
    shutil.copytree(registry.CSRC, tmp_path / "csrc")
    rows = tmp_path / "csrc/flagship_rows.cuh"
    used = "#if defined(__CUDA_ARCH__)\n__device__ double more(double x) { return erfcx(x); }\n#endif\n"
    rows.write_text(rows.read_text().replace("\nnamespace flashcore {\n", "\nnamespace flashcore {\n" + used, 1))
    built = build(replace(FLAGSHIP, source=tmp_path / "csrc/flagship.cu"), SMALL_TILING, archs="89")
    assert built.code is not None
    assert not set(building.LEAN) & set(built.document["command"].split())


@pytest.mark.full
@needs_nvcc
def test_of_builds_that_begin_at_once_one_compiles_what_they_share(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    run, is_compiled = toolchain.run, threading.Event()

    def slowly(argv: list[str]) -> subprocess.CompletedProcess[str]:
        part = next(word for word in argv if word in (HOSTS, OWN))
        started.append(part)
        if part == HOSTS:
            assert is_compiled.wait()  # not before each of the others has compiled its own
        done = run(argv)
        if started.count(OWN) == len(TILINGS):
            is_compiled.set()
        return done

    monkeypatch.setattr(toolchain, "run", slowly)
    with ThreadPoolExecutor(len(TILINGS)) as pool:
        built = list(pool.map(lambda tiling: build(FLAGSHIP, tiling, archs="89"), TILINGS))
    assert sorted(started) == sorted([HOSTS, *[OWN] * len(TILINGS)])
    assert len({one.library for one in built}) == len(TILINGS)
    for one in built:
        library = ctypes.CDLL(str(one.library), mode=os.RTLD_NOW)
        assert library.flashcore_args_bytes() == ctypes.sizeof(library_module.Args)


def test_a_build_that_failed_does_not_wait_for_what_others_compile(tmp_path: Path) -> None:
    kept = tmp_path / "kept.so"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody is at it
        said, failed = apart.build(["false"], ["true"], tmp_path / "kernel.so", kept, lean=True)
    assert failed[0] == "false"
    assert said == ""


@pytest.mark.full
@needs_nvcc
@pytest.mark.skipif(not shutil.which("objdump"), reason="unavailable: objdump reads the object files")
def test_the_hosts_part_does_not_depend_on_the_tiling(tmp_path: Path) -> None:
    def code(settings: dict[str, int]) -> str:
        command = building._command(FLAGSHIP, settings, False, ["89"], True)
        how = (apart.FROM_FILE, "-DPART=1", f"-I{registry.CSRC}")
        argv = [*(w for w in command if w != "-shared"), *how, str(FLAGSHIP.source)]
        done = subprocess.run([*argv, "-c", "-o", "host.o"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        objdump = ["objdump", "-dr", "--no-show-raw-insn", "-j", ".text", "host.o"]
        text = subprocess.run(objdump, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return re.sub(r"_GLOBAL__N__\w+_flagship_cu_[0-9a-f]+(_\d+)?", "anonymous", text)

    alike = code(FLAGSHIP.common(FLAGSHIP.configure(SMALL_TILING)))
    assert "flashcore_forward" in alike
    assert alike == code(FLAGSHIP.configure(OTHER_TILING))


def test_a_library_of_all_tilings_is_not_taken_for_one_of_one() -> None:
    assert FLAGSHIP.common(FLAGSHIP.configure()) == {}
    assert FLAGSHIP.common(FLAGSHIP.configure({"SWIZZLE": 0})) == {}
    assert FLAGSHIP.common(FLAGSHIP.configure(SMALL_TILING)) != {}


@pytest.mark.full
@needs_nvcc
def test_the_ceilings_code_compiles_for_every_chip_it_is_meant_for(builds: None) -> None:
    built = build(peaks.SOURCE, archs="80,89,90")
    assert {k["arch"] for k in built.document["kernels"]} == {"sm_80", "sm_89", "sm_90"}
    assert {(k["stack_bytes"], k["spill_store_bytes"]) for k in built.document["kernels"]} == {(0, 0)}
    library = library_module.load(built, ctypes.CDLL)  # called as any kernel is: what a call costs is measured with it
    for name in ("peak_issue", "peak_copy", "peak_warps", "peak_chains", "forward", "error"):
        assert hasattr(library, f"flashcore_{name}")


def test_a_log_without_a_reader_is_reported_not_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_module", lambda: None)
    monkeypatch.delenv("FCCTL_HOST", raising=False)
    with pytest.raises(readers.Unreadable):
        readers.read("ptxas", tmp_path / "build.log")


# ------------------------------------------------------------------------------------------------ launch
def test_the_result_is_attention_on_default_and_given_output(cpu: launch.Kernel) -> None:
    q, k, v = tensors()
    out = torch.full_like(q, float("nan"))
    assert cpu(q, k, v, out=out) is out
    assert torch.equal(out, cpu(q, k, v))
    right = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert torch.allclose(out.float(), right, atol=2e-3)


@pytest.mark.parametrize("configuration", [{"ROWS": 32, "KEYS": 32}, {"ROWS": 256, "KEYS": 256}])
def test_other_block_sizes_give_the_same_attention(configuration: dict[str, int], cpu: launch.Kernel) -> None:
    other = launch.Kernel(build(CPU, configuration))
    q, k, v = tensors(1, 2, 300, 64)
    assert torch.allclose(other(q, k, v, causal=True).float(), cpu(q, k, v, causal=True).float(), atol=1e-3)


def test_portable_code_without_the_processors_extensions_is_right(cpu: launch.Kernel) -> None:
    portable = launch.Kernel(build(CPU, native=False))
    q, k, v = tensors(2, 2, 70, 64)
    q[0, 0, 0] *= 1e-6  # subnormal
    v[0, 0, :, 0] *= 1e-6
    assert torch.allclose(portable(q, k, v).float(), cpu(q, k, v).float(), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_any_number_of_threads_gives_the_same_attention(
    threads: int, cpu: launch.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = tensors(2, 3, 300, 64)
    right = cpu(q, k, v, causal=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(launch.Kernel(cpu.built)(q, k, v, causal=True), right)


def test_many_threads_may_call_at_once(cpu: launch.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # and each call has threads of its own
    cpu = launch.Kernel(cpu.built)
    cases = [tensors(1, 4, 40 + n, 64) for n in range(8)]
    right = [cpu(*c) for c in cases]
    with ThreadPoolExecutor(8) as pool:
        is_right = pool.map(lambda n: all(torch.equal(cpu(*cases[n]), right[n]) for _ in range(30)), range(8))
    assert list(is_right) == [True] * 8


def refusals() -> dict[str, tuple[list[torch.Tensor], dict[str, object], str]]:
    q, k, v = tensors()
    return {
        "dtype": ([q.float(), k, v], {}, "q is float32; cpu takes float16"),
        "dimensions": ([q[0], k, v], {}, "q has 3 dimensions"),
        "head_dim": (tensors(1, 2, 5, 32), {}, "does not support head dimension 32"),
        "layout": ([q, k.transpose(2, 3).contiguous().transpose(2, 3), v], {}, "k's last dimension is not contiguous"),
        "heads": ([q, k[:, :1], v[:, :1]], {}, "the shapes do not match"),
        "keys": ([q, k[:, :, :3], v], {}, "the shapes do not match"),
        "empty": ([q, k[:, :, :0], v[:, :, :0]], {}, "tensors that are not empty"),
        "gradient": ([q.float().requires_grad_().half(), k, v], {}, "no backward pass"),
        "out_shape": ([q, k, v], {"out": torch.empty(1, 2, 4, 64).half()}, "the shapes do not match"),
        "out_overlaps": (
            [q, k, v],
            {"out": torch.empty(1, 1, 5, 64).half().expand(1, 2, 5, 64)},
            "elements of out share memory",
        ),
        "device": ([q.to("meta"), k, v], {}, "q is on meta; cpu runs on cpu"),
    }


@pytest.mark.parametrize("what", refusals())
def test_unsupported_inputs_are_refused_before_the_launch(what: str, cpu: launch.Kernel) -> None:
    arguments, options, said = refusals()[what]
    with pytest.raises(Unsupported, match=re.escape(said)):
        cpu(*arguments, **options)


def test_a_refusal_names_the_variants_that_take_it(cpu: launch.Kernel) -> None:
    q, k, v = tensors()
    with pytest.raises(Unsupported) as masked:
        cpu(q, k, v, mask=torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool))
    assert masked.value.hint == "supported by: flagship, extended"
    with pytest.raises(Unsupported, match="cpu does not support window") as windowed:
        cpu.extended((Scores((3, 0)),), q, k, v)
    assert windowed.value.hint == "supported by: extended, decode, paged"


def test_misaligned_tensors_are_refused_by_kernels_with_wide_loads(cpu: launch.Kernel) -> None:
    wide = launch.Kernel(replace(cpu.built, variant=replace(CPU, alignment=16)))
    q, k, v = tensors()
    shifted = torch.empty(q.numel() + 1).half()[1:].view(q.shape)
    with pytest.raises(Unsupported, match="start at a multiple of 16 bytes"):
        wide(shifted, k, v)
    odd_rows = torch.empty(1, 2, 5, 66).half()[..., :64]
    with pytest.raises(Unsupported, match="rows do not start at multiples of 16 bytes"):
        wide(odd_rows, k, v)
    assert torch.equal(wide(q, k, v), cpu(q, k, v))


def test_a_return_code_is_an_error_with_its_name(small: Variant) -> None:
    with pytest.raises(launch.LaunchFailed, match=r"made up \(7\)"):
        launch.Kernel(build(small))(*tensors())


def test_a_library_that_refuses_the_gpu_says_so(small: Variant) -> None:
    small.source.write_text(SMALL.replace("made up", "cudaErrorNotSupported"))
    with pytest.raises(launch.LaunchFailed, match="small does not support this GPU"):
        launch.Kernel(build(small))(*tensors())


def test_a_library_with_another_struct_is_refused(small: Variant) -> None:
    with pytest.raises(Unavailable, match="another version of flashcore_args"):
        launch.Kernel(build(small, {"WRONG_SIZE": 8}))


def test_the_struct_lists_the_headers_fields_in_order() -> None:
    header = (registry.CSRC / "flashcore.h").read_text(encoding="utf-8")
    body = re.sub(r"//.*", "", header.split("typedef struct flashcore_args {")[1].split("}")[0])
    declared = [re.sub(r"^.*?(\w+)$", r"\1", name.strip()) for line in body.split(";") for name in line.split(",")]
    assert [name for name, _ in library_module.Args._fields_] == [name for name in declared if name]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_cuda_variant_without_a_gpu_is_unavailable(small: Variant) -> None:
    with pytest.raises(Unavailable, match="torch finds none"):
        launch.Kernel(replace(build(small), variant=registry.VARIANTS["baseline"]))


def test_an_illegal_parameter_never_reaches_the_compiler() -> None:
    with pytest.raises(UsageError, match="legal values"):
        build(CPU, {"ROWS": 7})
