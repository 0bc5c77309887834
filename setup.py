"""Builds fastcore._kernels from Cython and csrc/. Everything else is in pyproject.toml."""

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
OPENMP = ["-fopenmp"]
# Fused multiply-adds stand where the source says fma and nowhere else: the bits must not depend on the compiler.
COMPILE = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", *OPENMP]
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter"]

WHAT_TO_INSTALL = (
    "Install: xcode-select --install; brew install llvm libomp; then build with CC=$(brew --prefix llvm)/bin/clang."
    if platform.system() == "Darwin"
    else "Install: gcc and python3-dev (Debian, Ubuntu: apt install build-essential python3-dev; Fedora: dnf install "
    "gcc python3-devel; Alpine: apk add build-base python3-dev); with clang also libomp-dev."
)

CHECK = "#include <Python.h>\n#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"


class BuildKernels(build_ext):
    """build_ext that first looks for a C compiler with OpenMP and the Python headers, and says what to install."""

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "msvc":
            sys.exit("fastcore needs gcc or clang with OpenMP; on Windows, build it under WSL.")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "check.c")
            source.write_text(CHECK)
            command = [*self.compiler.compiler_so, *OPENMP, f"-I{sysconfig.get_paths()['include']}", "-c", str(source)]
            command += ["-o", str(Path(folder, "check.o"))]
            try:
                done = subprocess.run(command, capture_output=True, text=True)
            except OSError as error:
                sys.exit(
                    f"fastcore needs a C compiler, and {command[0]!r} does not start ({error}).\n{WHAT_TO_INSTALL}"
                )
            if done.returncode:
                sys.exit(
                    f"fastcore needs a C compiler with OpenMP and the Python headers; {command[0]!r} says:\n"
                    f"{done.stderr.strip()}\n{WHAT_TO_INSTALL}"
                )
        super().build_extensions()


extension = Extension(
    "fastcore._kernels",
    ["fastcore/_kernels.pyx", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.c"))],
    include_dirs=["csrc"],
    depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.h")),
    extra_compile_args=[*COMPILE, *(["-Werror", *WARNINGS] if os.environ.get("FASTCORE_WERROR") else [])],
    extra_link_args=OPENMP,
)

setup(
    ext_modules=cythonize([extension], compiler_directives={"language_level": 3}),
    cmdclass={"build_ext": BuildKernels},
)
