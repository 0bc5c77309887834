"""Build the extension with sanitizers in a folder of its own, and run the tests of what is written in C on it.

python tests/sanitize.py address       # also undefined behaviour
python tests/sanitize.py thread
python tests/sanitize.py address --programs 2000        # and so many random programs
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = {
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1",
    "thread": "-fsanitize=thread -fno-omit-frame-pointer -g1",
}
OPTIONS = {
    # The interpreter keeps memory until it ends. NumPy asks for sizes that no machine has, and expects a refusal.
    # Fresh pages stay zeros, as tests/separate_memory.py expects.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1:max_malloc_fill_size=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # The interpreter and NumPy are not instrumented: what they do in memory is not judged, how they meet is seen.
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:report_signal_unsafe=0",
}
# The thread sanitizer does not support threads in a child of a process that had some.
CHOICE = {"address": ["-p", "separate_memory"], "thread": ["-k", "not fork"]}
TESTS = [
    "test_kernels.py",
    "test_program.py",
    "test_random_programs.py",
    "test_ssm.py",
    "test_models.py",
    "test_falcon_h1.py",
    "test_pii_model.py",
    "test_rope_model.py",
    "test_sampling.py",
    "test_spans.py",
]


REFUSED = re.compile(r"==\d+==WARNING: AddressSanitizer failed to allocate 0x\w+ bytes")  # what NumPy expects

# A team reads where its work lies before it can be told that this was written (csrc/parallel.c).
SUPPRESSIONS = "race_top:fc_parallel._omp_fn"


def build(kind: str, folder: Path) -> None:
    """The package with its extension under sanitizers, in `folder`."""
    for name in ("fastcore", "csrc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "_kernels.c", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    compiler = folder / "cc"  # at -O1, which reports better and is built in half the time
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O1\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CC": str(compiler), "CFLAGS": FLAGS[kind], "LDFLAGS": FLAGS[kind]}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def run(kind: str, folder: Path, *command: str) -> int:
    """Python under the sanitizer, with the package of `folder`."""
    compiler = os.environ.get("CC", "cc").split()
    library = {"address": "libasan.so", "thread": "libtsan.so"}[kind]
    done = subprocess.run([*compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    environment = os.environ | OPTIONS | {"LD_PRELOAD": done.stdout.strip(), "PYTHONPATH": str(folder)}
    suppressions = folder / "suppressions"
    suppressions.write_text(SUPPRESSIONS)
    for name in OPTIONS:  # reports go to files: pytest holds back what a process says that is ended
        environment[name] += f":log_path={folder / 'report'}"
    environment["TSAN_OPTIONS"] += f":suppressions={suppressions}"
    code = subprocess.run([sys.executable, *command], env=environment, cwd=folder).returncode
    for path in folder.glob("report.*"):
        report = [line for line in path.read_text(errors="replace").splitlines() if line and not REFUSED.match(line)]
        print(*report, sep="\n")
        code = code or bool(report)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=FLAGS)
    parser.add_argument("--folder", type=Path, help="build there, once, and keep it (default: in a temporary folder)")
    parser.add_argument("--programs", type=int, default=0, metavar="N", help="run N random programs after the tests")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files of tests/ (default: those of the C core)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "fastcore").exists():
            folder.mkdir(exist_ok=True)
            build(args.kind, folder)
        tests = [str(ROOT / "tests" / test) for test in args.tests]
        command = [
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "2",
            "--dist",
            "worksteal",
            "-p",
            "no:cacheprovider",
            *CHOICE[args.kind],
            *tests,
        ]
        code = run(args.kind, folder, *command)
        if args.programs and not code:
            code = run(args.kind, folder, str(ROOT / "tests/test_random_programs.py"), str(args.programs))
    return code


if __name__ == "__main__":
    sys.exit(main())
