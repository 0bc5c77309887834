"""The build: what it says when something is missing, and that the types of the border match what was built."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fastcore import _kernels

SETUP = Path(__file__).parent.parent / "setup.py"


def build(folder: Path, pyx: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run setup.py as it is over a small extension, so that only its own checks take time."""
    shutil.copy(SETUP, folder)
    for name in ("csrc", "fastcore"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "fastcore/__init__.py").write_text("")
    (folder / "fastcore/_kernels.pyx").write_text(pyx)
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    done = build(tmp_path, CC="/nonexistent/cc")
    assert done.returncode == 1
    assert "fastcore needs a C compiler, and '/nonexistent/cc' does not start" in done.stderr
    assert "apt install build-essential python3-dev" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_openmp_the_build_says_what_to_install(tmp_path: Path) -> None:
    compiler = tmp_path / "cc-without-openmp"
    compiler.write_text("#!/bin/sh\necho 'fatal error: omp.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = build(tmp_path, CC=str(compiler))
    assert done.returncode == 1
    assert "fastcore needs a C compiler with OpenMP and the Python headers" in done.stderr
    assert "fatal error: omp.h: No such file" in done.stderr
    assert "libomp-dev" in done.stderr


HOW_IT_ROUNDS = '''
cdef extern from *:
    """
    #ifdef __FAST_MATH__
    enum { FAST_MATH = 1 };
    #else
    enum { FAST_MATH = 0 };
    #endif
    """
    enum:
        FAST_MATH

def how_it_rounds(float x, float y, float z):
    return FAST_MATH, x + y + z, (x + y) - x == y, z / 2
'''

SHOW = """
import sys
from fastcore import _kernels

print(*_kernels.how_it_rounds(1.0, 2.0**-30, 2.0**-126), sys.float_info.min / 2)
"""


@pytest.mark.fault("A9")
@pytest.mark.parametrize("flags", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations -ffinite-math-only"])
@pytest.mark.parametrize("variable", ["CFLAGS", "LDFLAGS", "CC"])
def test_flags_that_change_results_are_left_out(variable: str, flags: str, tmp_path: Path) -> None:
    """Neither what is compiled, nor, by what such flags link in, how the process treats numbers near zero."""
    done = build(tmp_path, HOW_IT_ROUNDS, **{variable: f"cc {flags}" if variable == "CC" else flags})
    assert done.returncode == 0, done.stderr
    assert f"built without {flags}" in done.stderr
    shown = subprocess.run([sys.executable, "-c", SHOW], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["0", "1.0", "False", str(2.0**-127), str(sys.float_info.min / 2)]


def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    compiler = tmp_path / "counting-cc"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec cc "$@"\n')
    compiler.chmod(0o755)

    def compiled() -> set[str]:
        (tmp_path / "calls").write_text("")
        done = build(tmp_path, CC=str(compiler))
        assert done.returncode == 0, done.stderr
        calls = (tmp_path / "calls").read_text().splitlines()
        sources = {source for call in calls if " -c " in call for source in re.findall(r"\S+\.c\b", call)}
        return {source for source in sources if not source.endswith("check.c")}

    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/one.c").write_text("int one(void) { return 1; }\n")
    (tmp_path / "csrc/two.c").write_text("int two(void) { return 2; }\n")
    assert compiled() == {"csrc/one.c", "csrc/two.c", "fastcore/_kernels.c"}
    (tmp_path / "csrc/two.c").write_text("int two(void) { return 22; }\n")
    assert compiled() == {"csrc/two.c"}
    (tmp_path / "csrc/all.h").write_text("int one(void), two(void);\n")
    assert compiled() == {"csrc/one.c", "csrc/two.c", "fastcore/_kernels.c"}


def test_no_flag_of_the_build_host() -> None:
    assert "-march" not in SETUP.read_text()
    assert "-mtune" not in SETUP.read_text()


def test_the_typed_border_names_what_was_built() -> None:
    """Every public name of the extension and of its classes is in the stub, and nothing else is."""
    stub = ast.parse(Path(_kernels.__file__).with_name("_kernels.pyi").read_text())
    assert {name for name in names(stub) if not name.startswith("_")} == public(_kernels)
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            named = {name for name in names(node) if not name.startswith("_")}
            assert named == public(getattr(_kernels, node.name)), node.name


def names(node: ast.Module | ast.ClassDef) -> set[str]:
    found = set()
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found.add(statement.name)
        elif isinstance(statement, ast.AnnAssign):
            assert isinstance(statement.target, ast.Name)
            found.add(statement.target.id)
    return found


def public(owner: object) -> set[str]:
    """Names that are not private and not imported."""
    values = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    return {
        name
        for name, value in values.items()
        if not isinstance(value, ModuleType) and getattr(value, "__module__", None) in (None, "fastcore._kernels")
    }
