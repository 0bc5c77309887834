"""Importing fastcore: cheap, lazy, and alone under its name."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import fastcore

HOME = Path(fastcore.__file__).parent.parent
HEAVY = {
    "gguf",
    "huggingface_hub",
    "jinja2",
    "platformdirs",
    "safetensors",
    "tokenizers",
    "tqdm",
    "torch",
    "transformers",
}


def python(*arguments: str, home: Path = HOME) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(home)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd="/")


def imported(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter loads for a statement."""
    done = python("-X", "importtime", "-c", statement)
    assert done.returncode == 0, done.stderr
    modules = [line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {module.split(".")[0] for module in modules}


def test_import_loads_no_text_or_hub_package() -> None:
    packages = imported("import fastcore")
    assert "fastcore" in packages
    assert not packages & HEAVY


@pytest.mark.parametrize("statement", ["from fastcore import LLM, SamplingParams", "import fastcore.cli.generate"])
def test_the_api_loads_text_and_hub_packages_only_when_a_model_is_opened(statement: str) -> None:
    assert not imported(statement) & HEAVY


def test_every_public_name_is_there() -> None:
    for name in fastcore.__all__:
        assert getattr(fastcore, name) is not None
    assert dir(fastcore) == sorted(fastcore.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = fastcore.Nonsense


def test_files_of_another_project_beside_ours_are_refused(tmp_path: Path) -> None:
    package = tmp_path / "fastcore"
    package.mkdir()
    (package / "__init__.py").write_bytes((HOME / "fastcore/__init__.py").read_bytes())
    (package / f"_kernels{EXTENSION_SUFFIXES[0]}").touch()
    assert python("-c", "import fastcore", home=tmp_path).returncode == 0
    (package / "basics.py").touch()
    done = python("-c", "import fastcore", home=tmp_path)
    assert done.returncode == 1
    assert "another project named fastcore (basics.py)" in done.stderr
    assert "pip uninstall fastcore fastcore-engine" in done.stderr


def test_the_source_without_its_core_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "fastcore"
    folder.mkdir()
    shutil.copy(Path(fastcore.__file__), folder)
    child = subprocess.run([sys.executable, "-c", "import fastcore"], capture_output=True, text=True, cwd=tmp_path)
    assert child.returncode == 1
    assert f"{folder} is the source of fastcore, and its C core is not built there" in child.stderr
    assert "pip install -e ." in child.stderr
