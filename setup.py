"""Builds fastcore._kernels from Cython and csrc/. Everything else is in pyproject.toml."""

import hashlib
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
OPENMP = ["-fopenmp"]
# Fused multiply-adds stand where the source says fma and nowhere else: the bits must not depend on the compiler.
EXACT = ["-fno-fast-math", "-ffp-contract=off"]
COMPILE = ["-std=gnu11", "-O3", *EXACT, "-fno-math-errno", "-fvisibility=hidden", *OPENMP]
# The border only checks and passes on: at -O3 it would take as long to compile as all kernels of an instruction set.
BORDER = ["-O1"]
# What CFLAGS, LDFLAGS or CC must not ask for: it would change results, or, when linking, how the whole process rounds.
INEXACT = re.compile(
    "-(Ofast|ffast-math|f(unsafe-math-optimizations|associative-math|reciprocal-math|finite-math-only|cx-limited-range)"
    "|fno-(signed-zeros|trapping-math)|frounding-math|fsingle-precision-constant|f(p-contract|p-model|excess-precision"
    "|denormal-fp-math|denormal-fp-math-f32)=.*|mfpmath=.*|mrecip(=.*)?|mdaz-ftz)"
)
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter"]

WHAT_TO_INSTALL = (
    "Install: xcode-select --install; brew install llvm libomp; then build with CC=$(brew --prefix llvm)/bin/clang."
    if platform.system() == "Darwin"
    else "Install: gcc and python3-dev (Debian, Ubuntu: apt install build-essential python3-dev; Fedora: dnf install "
    "gcc python3-devel; Alpine: apk add build-base python3-dev); with clang also libomp-dev."
)

CHECK = "#include <Python.h>\n#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"


class BuildKernels(build_ext):
    """build_ext that first looks for a C compiler with OpenMP and the Python headers, and says what to install.

    It compiles as many sources at a time as there are CPUs, and only those of which something changed.
    """

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
        for name in ("compiler", "compiler_so", "linker_so", "linker_exe"):
            self.leave_out_inexact(name)
        compile_sources = self.compiler.compile

        def compile_in_parallel(sources: "list[str]", **options: Any) -> "list[str]":
            headers = b"".join(Path(name).read_bytes() for name in options["depends"])
            options["depends"] = []

            def compile_one(source: str) -> "list[str]":
                flags = [*options["extra_postargs"], *(BORDER if source.endswith("_kernels.c") else [])]
                one = {**options, "extra_postargs": flags}
                stated = repr((self.compiler.compiler_so, sorted(one.items()))).encode()
                digest = hashlib.sha256(b"\0".join([stated, headers, Path(source).read_bytes()])).hexdigest()
                (target,) = self.compiler.object_filenames([source], output_dir=options["output_dir"])
                made = Path(f"{target}.digest")
                if not (made.is_file() and made.read_text() == digest and Path(target).is_file()):
                    made.unlink(missing_ok=True)
                    compile_sources([source], **one)
                    made.write_text(digest)
                return [target]

            longest_first = sorted(sources, key=lambda source: -Path(source).stat().st_size - 10**6 * ("isa" in source))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [target for targets in pool.map(compile_one, longest_first) for target in targets]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()

    def leave_out_inexact(self, name: str) -> None:
        command = getattr(self.compiler, name)
        left_out = [word for word in command if INEXACT.fullmatch(word)]
        if left_out:
            print(f"fastcore is built without {' '.join(left_out)}, which would change its results", file=sys.stderr)
            setattr(self.compiler, name, [word for word in command if word not in left_out])


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
