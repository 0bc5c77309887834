"""The build: what it says when something is missing, and that the types of the border match what was built."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from fastcore import _kernels

SETUP = Path(__file__).parent.parent / "setup.py"


def build(folder: Path, cc: str) -> "subprocess.CompletedProcess[str]":
    """Run setup.py as it is over an empty extension, so that only its own checks take time."""
    shutil.copy(SETUP, folder)
    (folder / "csrc").mkdir()
    (folder / "fastcore").mkdir()
    (folder / "fastcore/_kernels.pyx").write_text("")
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env=os.environ | {"CC": cc},
        capture_output=True,
        text=True,
    )


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    done = build(tmp_path, cc="/nonexistent/cc")
    assert done.returncode == 1
    assert "fastcore needs a C compiler, and '/nonexistent/cc' does not start" in done.stderr
    assert "apt install build-essential python3-dev" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_openmp_the_build_says_what_to_install(tmp_path: Path) -> None:
    compiler = tmp_path / "cc-without-openmp"
    compiler.write_text("#!/bin/sh\necho 'fatal error: omp.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = build(tmp_path, cc=str(compiler))
    assert done.returncode == 1
    assert "fastcore needs a C compiler with OpenMP and the Python headers" in done.stderr
    assert "fatal error: omp.h: No such file" in done.stderr
    assert "libomp-dev" in done.stderr


def test_no_flag_of_the_build_host() -> None:
    assert "-march" not in SETUP.read_text()
    assert "-mtune" not in SETUP.read_text()


def test_the_typed_border_names_what_was_built() -> None:
    """Every public name of the extension and of its classes is in the stub, and nothing else is."""
    stub = ast.parse(Path(_kernels.__file__).with_name("_kernels.pyi").read_text())
    assert {name for name in names(stub) if not name.startswith("_")} == public(_kernels)
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            assert names(node) - {"__init__"} == public(getattr(_kernels, node.name)), node.name


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
