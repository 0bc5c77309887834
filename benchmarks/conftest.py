"""What benchmarks share: the models, the threads, the limits of the machine, and peers.

    pytest benchmarks --models FOLDER --benchmark-json results.json

FOLDER holds model folders (also FASTCORE_BENCH_MODELS); without it the default model is measured.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from fastcore._kernels import active_isa
from fastcore.bench.machine_limits import MachineLimits, read_buffer
from fastcore.bench.peers import PEERS, TorchClassifier
from fastcore.checkpoints.open import load_config
from fastcore.errors import Error, MissingPackageError, UnsupportedModelError
from fastcore.machine import machine_facts
from fastcore.model.config import ModelConfig
from fastcore.models import Model, load_model
from fastcore.sources.resolve import resolve
from fastcore.threads import resolve_num_threads

Open = Callable[[Path, int], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--models", default=os.environ.get("FASTCORE_BENCH_MODELS"), help="folder of model folders")
    parser.addoption("--threads", type=int, help="threads to run (default: see `fastcore info`)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`generator` and `classifier` are model folders of the two kinds."""
    for kind in ("generator", "classifier"):
        if kind in metafunc.fixturenames:
            models = _models(metafunc.config.getoption("--models"))
            folders = [path for path, config in models if config.is_token_classifier == (kind == "classifier")]
            metafunc.parametrize(kind, folders, ids=lambda path: path.name, scope="session")


@cache
def _models(root: str | None) -> list[tuple[Path, ModelConfig]]:
    if root is None:
        path = resolve(None)
        return [(path, load_config(path))]
    models = []
    for path in sorted(Path(root).iterdir()):
        if (path / "config.json").is_file():
            try:
                models.append((path, load_config(path)))
            except Error as error:
                raise pytest.UsageError(f"{path} is not a model: {error}") from None
    return models


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["fastcore"] = machine_facts() | {"threads": resolve_num_threads(config.getoption("--threads"))}


@pytest.fixture(scope="session")
def num_threads(pytestconfig: pytest.Config) -> int:
    return resolve_num_threads(pytestconfig.getoption("--threads"))


@pytest.fixture(scope="session")
def model(generator: Path, num_threads: int) -> Model:
    """The generator, loaded once for all that is measured with it."""
    return load_model(generator, num_threads=num_threads)


class Machine:
    """The limits of this machine: the best seen so far in this session, measured again around each benchmark."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._data = read_buffer()
        self._limits = MachineLimits.measure(num_threads, self._data)
        for _ in range(4):
            self.limits()

    def limits(self) -> MachineLimits:
        self._limits = self._limits.best(MachineLimits.measure(self.num_threads, self._data))
        return self._limits


@pytest.fixture(scope="session")
def machine(num_threads: int) -> Machine:
    return Machine(num_threads)


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest, generator: Path, num_threads: int) -> Iterator[Any]:
    """The engine that the parameter names, on the generator's weights; None for "alone"."""
    yield from _opened(request.param, PEERS, generator, num_threads)


@pytest.fixture(scope="session")
def classifier_peer(request: pytest.FixtureRequest, classifier: Path, num_threads: int) -> Iterator[Any]:
    """torch with the parameter's dtype, on the classifier's weights; None for "alone"."""
    engines = {f"torch {dtype}": partial(TorchClassifier, dtype=dtype) for dtype in ("f32", "bf16")}
    yield from _opened(request.param, engines, classifier, num_threads)


def _opened(
    name: str, engines: Mapping[str, Callable[[Path, int], Any]], folder: Path, num_threads: int
) -> Iterator[Any]:
    if name == "alone":
        yield None
        return
    try:
        engine = engines[name](folder, num_threads)
    except (MissingPackageError, UnsupportedModelError) as error:
        engine, reason = None, str(error)
    if engine is None:
        pytest.skip(reason)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _instruction_set(request: pytest.FixtureRequest) -> None:
    if "benchmark" in request.fixturenames:
        request.getfixturevalue("benchmark").extra_info["isa"] = active_isa()
