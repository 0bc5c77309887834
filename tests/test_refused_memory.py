"""Memory that is refused while a model is loaded and run is MemoryError, and never a crash: refuse_memory.py."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastcore import OutOfMemoryError, _kernels, huge_pages

HERE = Path(__file__).parent
MODELS = ("qwen2", "falcon_h1", "pii_masking")


def refuse(*arguments: str, preload: str = "") -> tuple[int, int]:
    """Requests refused, and how many of them were MemoryErrors."""
    environment = os.environ | {"LD_PRELOAD": preload, "PYTHONPATH": str(Path(_kernels.__file__).parents[1])}
    command = [sys.executable, str(HERE / "refuse_memory.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    requests, _, _, errors, _ = done.stdout.split()
    return int(requests), int(errors)


@pytest.fixture(scope="session")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not sys.platform.startswith("linux") or os.confstr("CS_GNU_LIBC_VERSION") is None or not shutil.which("cc"):
        pytest.skip("needs glibc and a compiler")
    library = str(tmp_path_factory.mktemp("preload") / "failing_malloc.so")
    subprocess.run(["cc", "-shared", "-fPIC", str(HERE / "c/failing_malloc.c"), "-o", library, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("what", ["core", "pages"])
def test_each_request_to_the_system(
    what: str, model_type: str, tiny_folder: Callable[..., Path], failing_malloc: str
) -> None:
    requests, errors = refuse(what, str(tiny_folder(model_type)), preload=failing_malloc)
    assert requests == errors > 0


@pytest.mark.parametrize("model_type", MODELS)
def test_requests_for_objects(model_type: str, tiny_folder: Callable[..., Path]) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter comes without its test hooks")
    requests, errors = refuse("objects", str(tiny_folder(model_type)), "1", "12000", "241")
    assert requests == 50
    assert errors > 0


def test_more_than_the_system_has() -> None:
    with pytest.raises(OutOfMemoryError, match="does not give"):
        huge_pages.zeros(1 << 60)
