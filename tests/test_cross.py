"""The same bits from other compilers and for other processors, and a baseline that runs on old ones.

tests/c/check_kernels.c runs every kernel and a tiny model on fixed inputs and prints a checksum each. It is built here
for whatever this machine can compile for, and run natively or under user-mode emulation.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fastcore import _kernels

ROOT = Path(__file__).parents[1]
CHECK = Path(__file__).parent / "c" / "check_kernels.c"
# The flags of setup.py, less optimised so that it compiles in seconds: that must not change a bit either.
FLAGS = ["-std=gnu11", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fopenmp"]
FLAGS += ["-Wall", "-Wextra", f"-I{ROOT / 'csrc'}"]
if os.environ.get("FASTCORE_WERROR"):
    FLAGS.append("-Werror")
NEON_COMPILER, NEON_EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
IS_X86 = platform.machine() in ("x86_64", "AMD64")

Checksums = dict[str, dict[str, str]]  # instruction set -> kernel -> checksum


def compile_one(compiler: str, source: Path, folder: Path, *flags: str) -> str:
    target = str(folder / f"{source.stem}.o")
    run([compiler, *FLAGS, *flags, "-c", str(source), "-o", target])
    return target


def link(compiler: str, objects: Sequence[str], folder: Path) -> str:
    program = str(folder / "check_kernels")
    run([compiler, "-fopenmp", *objects, "-lm", "-o", program])
    return program


def build(compiler: str, folder: Path) -> str:
    """The check program."""
    with ThreadPoolExecutor(2) as pool:
        sources = [CHECK, *(ROOT / "csrc").glob("*.c")]
        objects = list(pool.map(lambda source: compile_one(compiler, source, folder), sources))
    return link(compiler, objects, folder)


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def checksums(*command: str) -> Checksums:
    found: Checksums = {}
    for line in run(command).splitlines():
        isa, kernel, checksum = line.split()
        found.setdefault(isa, {})[kernel] = checksum
    return found


def needed(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the check program and its objects, built by this machine's compiler."""
    needed("cc")
    folder = tmp_path_factory.mktemp("native")
    build("cc", folder)
    return folder


@pytest.fixture(scope="module")
def expected(native: Path) -> dict[str, str]:
    """The checksums of the scalar kernels, which every other instruction set of this machine must have too."""
    found = checksums(str(native / "check_kernels"))
    assert found == dict.fromkeys(_kernels.available_isas(), found["scalar"])
    assert {"model", "gemm_bf16", "attention", "scan"} < set(found["scalar"])
    return found["scalar"]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_compiler_gives_the_same_bits(compiler: str, expected: dict[str, str], tmp_path: Path) -> None:
    needed(compiler)
    if os.path.realpath(shutil.which(compiler) or "") == os.path.realpath(shutil.which("cc") or ""):
        pytest.skip(f"{compiler} is cc, which made what others are compared with")
    trial = [compiler, "-fopenmp", "-xc", "-", "-o", str(tmp_path / "trial")]
    if subprocess.run(trial, input="int main(void) { return 0; }", text=True, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no OpenMP library")
    found = checksums(build(compiler, tmp_path))
    assert found == dict.fromkeys(_kernels.available_isas(), expected)


def test_neon_gives_the_same_bits_under_emulation(expected: dict[str, str], tmp_path: Path) -> None:
    needed(NEON_COMPILER, NEON_EMULATOR)
    program = build(NEON_COMPILER, tmp_path)
    found = checksums(NEON_EMULATOR, "-L", "/usr/aarch64-linux-gnu", program)
    assert found == dict.fromkeys(["scalar", "neon", "neondot", "neoni8mm"], expected)


# SIMDe computes the 512-bit intrinsics with 256-bit ones. It lacks the two conversions of halves.
EMULATED_INTRINSICS = """
#ifndef EMULATED_INTRINSICS
#define EMULATED_INTRINSICS
#include_next <immintrin.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

static inline simde__m512 emulated_cvtph_ps(__m256i halves)
{
    __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                       _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
    return simde_mm512_loadu_ps(parts);
}

static inline __m256i emulated_cvtps_ph(simde__m512 x)
{
    __m256 parts[2];
    simde_mm512_storeu_ps(parts, x);
    return _mm256_set_m128i(_mm256_cvtps_ph(parts[1], 0), _mm256_cvtps_ph(parts[0], 0));
}

#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtph_ps(halves) emulated_cvtph_ps(halves)
#define _mm512_cvtps_ph(x, rounding) emulated_cvtps_ph(x)
#endif
"""


def test_avx512_gives_the_same_bits_where_its_intrinsics_are_emulated(
    native: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    if "avx2" not in _kernels.available_isas():
        pytest.skip("the emulation needs AVX2")
    trial = ["cc", "-E", "-xc", "-"]
    if subprocess.run(trial, input="#include <simde/x86/avx512.h>", text=True, capture_output=True).returncode:
        pytest.skip("needs the headers of SIMDe (Debian, Ubuntu: libsimde-dev)")
    (tmp_path / "immintrin.h").write_text(EMULATED_INTRINSICS)
    emulated = tmp_path / "emulated.c"
    emulated.write_text('#include "immintrin.h"\n#include "simd_avx512.h"\n#include "isa_tpl.h"\n')
    objects = [str(path) for path in native.glob("*.o") if path.stem != "isa_avx512"]
    objects.append(compile_one("cc", emulated, tmp_path, "-mavx2", "-mfma", "-mf16c", "-Wno-psabi"))
    assert checksums(link("cc", objects, tmp_path), "avx512") == {"avx512": expected}


def test_amx_gives_the_same_bits_where_its_instructions_are_emulated(
    native: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    if "avx512vnni" not in _kernels.available_isas():
        pytest.skip("what is around the tiles needs AVX-512 with VNNI")
    emulated = tmp_path / "emulated.c"
    emulated.write_text('#include "emulated_amx.h"\n#include "simd_avx512amx.h"\n#include "isa_quantised_tpl.h"\n')
    objects = [str(path) for path in native.glob("*.o") if path.stem != "isa_avx512amx"]
    flags = [*(f"-mavx512{feature}" for feature in ("vnni", "f", "bw", "vl")), "-mfma", "-mf16c", f"-I{CHECK.parent}"]
    objects.append(compile_one("cc", emulated, tmp_path, *flags))
    assert checksums(link("cc", objects, tmp_path), "avx512amx") == {"avx512amx": expected}


SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_the_sanitizers_find_nothing(expected: dict[str, str], tmp_path: Path) -> None:
    """No read or write out of bounds, no undefined arithmetic, in any kernel or in the tiny model's steps."""
    trial = ["cc", *SANITIZE, "-xc", "-", "-o", str(tmp_path / "trial")]
    if subprocess.run(trial, input="int main(void) { return 0; }", text=True, capture_output=True).returncode:
        pytest.skip("cc has no sanitizers")
    program = str(tmp_path / "check_kernels")
    sources = [str(source) for source in (CHECK, *(ROOT / "csrc").glob("*.c"))]
    run(["cc", *FLAGS, "-O0", *SANITIZE, *sources, "-lm", "-o", program])
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # a container may not allow the search for them
    done = subprocess.run([program], capture_output=True, text=True, timeout=600, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"model {expected['model']}" in done.stdout


# ---------------------------------------------------------------- the baseline of x86


@pytest.mark.case("P03")
@pytest.mark.skipif(not IS_X86, reason="about x86")
def test_wide_registers_are_used_behind_the_dispatch_only() -> None:
    """In the built extension, isa_avx2.c and the files of AVX-512 alone use ymm, and the latter alone zmm."""
    needed("objdump")
    library = _kernels.__file__
    homes: dict[int, str] = {}  # address of a static function -> its source file
    source = ""
    for line in run(["objdump", "--syms", library]).splitlines():
        if match := re.match(r"0+ l +df \*ABS\*\s+0+\s*(.*)", line):
            source = match[1]
        elif match := re.match(r"([0-9a-f]+) l +F \.text", line):
            homes[int(match[1], 16)] = source
    if "isa_avx2.c" not in homes.values():
        pytest.skip("the extension was stripped of its symbols")

    found: dict[str, set[str]] = {"ymm": set(), "zmm": set()}
    home = ""
    with subprocess.Popen(
        ["objdump", "-d", "--no-show-raw-insn", library], stdout=subprocess.PIPE, text=True
    ) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            if match := re.match(r"([0-9a-f]+) <(.*)>:", line):
                home = homes.get(int(match[1], 16), match[2])
            for register in found:
                if f"%{register}" in line:
                    found[register].add(home)
    wide = {"isa_avx512.c", "isa_avx512vnni.c", "isa_avx512amx.c"}
    assert found["zmm"] == wide
    assert found["ymm"] <= {"isa_avx2.c", *wide}


@pytest.mark.case("P03")
@pytest.mark.skipif(not IS_X86, reason="about x86")
def test_a_processor_without_avx_imports_and_computes_the_same_bits(data_folder: Path, tmp_path: Path) -> None:
    needed("qemu-x86_64")
    emulator = ["qemu-x86_64", "-cpu", "Nehalem", sys.executable]
    if subprocess.run([*emulator, "-c", "import numpy"], capture_output=True, timeout=300).returncode:
        pytest.skip("this build of NumPy does not run on such a processor either")
    arguments = [str(data_folder / "qwen2-tied"), str(tmp_path / "logits.npy"), "90,169,131,12,168,176,196,158"]
    path = str(Path(_kernels.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path, "FASTCORE_ISA": ""}
    found = []
    for command in ([sys.executable], emulator):
        script = str(Path(__file__).with_name("old_processor.py"))
        done = subprocess.run(
            [*command, script, *arguments], capture_output=True, text=True, timeout=300, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        found.append((done.stdout.split(), np.load(arguments[1])))
    (here, logits), (old, same) = found
    assert here == list(_kernels.available_isas())
    assert old == ["scalar"]
    assert np.array_equal(logits, same)
