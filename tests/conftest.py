"""Fixtures shared by all tests. Nothing here needs the compiled extension unless a test asks for `isa`."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sizes import AWKWARD_SIZES
from tiny import tiny_checkpoint


def pytest_configure() -> None:
    """Child processes must be interruptible, also when this run was started in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder: a child process would else find the source before the package that is installed."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an `isa` argument runs once on every instruction set that this machine has."""
    if "isa" in metafunc.fixturenames:
        from fastcore import _kernels

        metafunc.parametrize("isa", _kernels.available_isas(), indirect=True)


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the instruction set in use during the test."""
    from fastcore import _kernels

    before = _kernels.active_isa()
    _kernels.use_isa(request.param)
    yield request.param
    _kernels.use_isa(before)


@pytest.fixture(params=AWKWARD_SIZES)
def awkward_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """tests/data, the golden checkpoints."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_folder("llama", dtype="f32", ...) -> a tiny checkpoint, written once a session; do not change it."""
    root = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def folder(model_type: str = "qwen2", **options: Any) -> Path:
        key = json.dumps([model_type, options], sort_keys=True)
        if key not in written:
            written[key] = tiny_checkpoint(root / f"{len(written)}-{model_type}", model_type, **options)
        return written[key]

    return folder
