"""A weight format is a row of the table and the functions that CONTRIBUTING.md names: one more touches only these."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# f32 whose panels hold the negative of each weight
ROW = "    X(A, TOY, toy, NULL, 0, NULL, NULL, NULL, 1, 64, FC_SOURCE_F32)"
PACK = """
static void pack_toy(void *blocks, int lane, const float *values, int n)
{
    for (int i = 0; i < n; i++) {
        ((float *)blocks)[i * FC_LANES + lane] = -values[i];
    }
}

static void unpack_toy(const void *blocks, int lane, float *values, int n)
{
    for (int i = 0; i < n; i++) {
        values[i] = -((const float *)blocks)[i * FC_LANES + lane];
    }
}

/* ---- the table */"""
LOAD = """
static inline p16 p16_load_toy(const void *p) { return p16_sub(p16_zero(), p16_load((const float *)p)); }

#endif
"""


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before, path
    path.write_text(after)


def test_a_new_format_touches_what_is_documented(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    csrc = tmp_path / "csrc"
    shutil.copytree(ROOT / "csrc", csrc)
    last_row = re.compile(r"^(    X\(A, .*\))$", re.MULTILINE)
    edit(csrc / "formats.h", lambda text: last_row.sub(lambda row: f"{row[1]} \\\n{ROW}", text))
    edit(csrc / "formats.c", lambda text: text.replace("\n/* ---- the table */", PACK))
    edit(csrc / "linear_tpl.h", lambda text: text.replace("X(F16, f16)", "X(F16, f16) X(TOY, toy)"))
    for primitives in csrc.glob("simd_*.h"):
        if "p16_load_f32" in primitives.read_text():
            edit(primitives, lambda text: LOAD.lstrip("\n").join(text.rsplit("#endif\n", 1)))
    program = str(tmp_path / "check_kernels")
    flags = ["-std=gnu11", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", f"-I{csrc}"]
    sources = [str(ROOT / "tests/c/check_kernels.c"), *map(str, csrc.glob("*.c"))]
    subprocess.run(["cc", *flags, *sources, "-lm", "-o", program], check=True, timeout=600)
    done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        isa, kernel, checksum = line.split()
        found.setdefault(isa, {})[kernel] = checksum
    assert "scalar" in found
    for isa, checksums in found.items():
        assert checksums["gemm_toy"] == found["scalar"]["gemm_toy"], isa
