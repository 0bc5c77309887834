"""A model folder in Hugging Face form: weights, config.json and the tokenizer's files beside them."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastcore.checkpoints.checkpoint import Checkpoint, TokenizerParts
from fastcore.checkpoints.fh1w_configs import builtin_config
from fastcore.checkpoints.fields import Fields
from fastcore.checkpoints.hf_config import parse_fields
from fastcore.checkpoints.mapped import MappedFile, read_bytes
from fastcore.checkpoints.safetensors import missing_shards, read_weight_map
from fastcore.checkpoints.strict_json import MAX_BYTES, read_object
from fastcore.checkpoints.tokenizer_files import TEMPLATES_FOLDER, TOKENIZER_FILES, read_tokenizer
from fastcore.errors import CheckpointError, UnsupportedModelError
from fastcore.model.config import ModelConfig
from fastcore.model.tensor import Tensor

__all__ = [
    "CONFIG_NAME",
    "PACKED_NAME",
    "FolderCheckpoint",
    "explain_single_file",
    "refuse_unpacked",
    "weights_of_folder",
]

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PACKED_NAME = "packed.safetensors"  # not model.safetensors: others would take it for the weights
CONFIG_NAME = "config.json"
_COMPANIONS = ("generation_config.json", "viterbi.json")
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


class FolderCheckpoint(Checkpoint):
    """Weights in safetensors or FH1W files, with config and tokenizer in the folder that they lie in.

    An FH1W pack without a config.json beside it gets one of the built-in configs.
    """

    def __init__(
        self, path: Path, folder: Path, tensors: Mapping[str, Tensor], files: tuple[MappedFile, ...], is_pack: bool
    ) -> None:
        self.folder = folder
        self._is_pack = is_pack
        self._config_json = _read(folder / CONFIG_NAME)
        if not is_pack:
            _mention_adapter(folder)
            tensors = self._dequantized(tensors)
        super().__init__(path, tensors, files)

    def _dequantized(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Take quantization_config out of the config where the tensors can be given as plain ones."""
        config = self._config_json or {}
        for name in ("quantization_config", "compression_config"):
            settings = config.get(name)
            if not isinstance(settings, Mapping):
                continue
            from fastcore.checkpoints.quantized import METHODS, dequantized

            if settings.get("quant_method") in METHODS:
                del config[name]
                fields = Fields(settings, str(self.folder / CONFIG_NAME), f"{name}.")
                tensors = dequantized(tensors, fields, lambda stem: _has_bias(config, stem))
        return tensors

    def _parse(self) -> ModelConfig:
        if self._is_pack and self._config_json is None:
            return builtin_config(self)
        return _parse(self.folder, self._config_json)

    def tokenizer(self) -> TokenizerParts | None:
        return read_tokenizer(self.folder)

    def companions(self) -> dict[str, bytes]:
        """Its own files; the config without quantization_config, where the tensors are given as plain ones."""
        if self._config_json is None:
            raise UnsupportedModelError(f"{self.folder} has no {CONFIG_NAME}; write one beside the weights first")
        others = [self.folder / name for name in (*_COMPANIONS, *TOKENIZER_FILES)]
        others += sorted((self.folder / TEMPLATES_FOLDER).glob("*.jinja"))
        config = json.dumps(self._config_json, indent=2, ensure_ascii=False) + "\n"
        return {CONFIG_NAME: config.encode()} | {
            str(file.relative_to(self.folder)): read_bytes(file, MAX_BYTES) for file in others if file.is_file()
        }


def read_config(folder: Path) -> ModelConfig:
    """The config of a folder alone: config.json, generation_config.json and viterbi.json."""
    return _parse(folder, _read(folder / CONFIG_NAME))


def _parse(folder: Path, config: Mapping[str, Any] | None) -> ModelConfig:
    if config is None:
        raise CheckpointError(f"{folder} has no {CONFIG_NAME}; expected a model folder in Hugging Face form")
    others = [folder / name for name in _COMPANIONS]
    generation, viterbi = (Fields(_read(file) or {}, str(file)) for file in others)
    return parse_fields(Fields(config, str(folder / CONFIG_NAME)), generation, viterbi)


def _has_bias(config: Mapping[str, Any], name: str) -> bool:
    """Whether config.json gives this linear map a bias."""
    if ".self_attn." in name:
        return bool(config.get("attention_bias")) or (config.get("model_type") == "qwen2" and ".o_proj." not in name)
    return bool(config.get("mlp_bias")) if ".mlp." in name else True


def _read(file: Path) -> dict[str, Any] | None:
    return read_object(file) if file.exists() else None


def weights_of_folder(folder: Path) -> Path:
    """model.safetensors, its index or packed.safetensors, or else the only .fh1w or .gguf file."""
    for name in (WEIGHTS_NAME, INDEX_NAME, PACKED_NAME):
        if (folder / name).exists():
            return folder / name
    names = sorted(entry.name for entry in folder.iterdir())
    packs = [name for name in names if name.endswith((".fh1w", ".gguf"))]
    if len(packs) == 1:
        return folder / packs[0]
    hint = ""
    if any(name in _ADAPTERS for name in names):
        hint = "; it holds a LoRA adapter only: merge it into its base model and save that"
    elif any(name.endswith((".bin", ".pth")) for name in names):
        hint = "; save the model as safetensors first"
    elif packs:
        hint = "; give one of the files itself"
    raise CheckpointError(
        f"{folder} holds no {WEIGHTS_NAME}, no {INDEX_NAME} and not exactly one .fh1w or .gguf file; "
        f"found: {', '.join(names[:20]) or 'nothing'}{hint}"
    )


def explain_single_file(path: Path, found: Mapping[str, Any] | CheckpointError) -> None:
    """Raise if a model.safetensors is not whole, or cannot be read, beside an index whose files are all there.

    found: its tensors, or the error that reading it gave. What is left over from another download is not the model.
    """
    index = path.parent / INDEX_NAME
    if path.name != WEIGHTS_NAME or not index.exists():
        return
    try:
        weight_map = read_weight_map(index)
    except CheckpointError:
        return
    if missing_shards(index, weight_map):
        return
    if isinstance(found, CheckpointError):
        what = str(found)
    else:
        # a tied head may be stored in one of them only
        lacking = [name for name in weight_map if name not in found and name != "lm_head.weight"]
        if not lacking:
            return
        what = f"{path} lacks {len(lacking)} of the {len(weight_map)} tensors in {INDEX_NAME}, such as {lacking[0]!r}"
    raise CheckpointError(
        f"{what}. All files of {INDEX_NAME} are beside it: remove {WEIGHTS_NAME} if it is left over, or give the "
        "index itself as the model"
    )


def refuse_unpacked(path: Path) -> None:
    """Raise for a file of the packed name whose header does not say that it is packed."""
    if path.name == PACKED_NAME:
        raise CheckpointError(f"{path} is not a packed file of fastcore: its header does not name that format")


def _mention_adapter(folder: Path) -> None:
    if any((folder / name).exists() for name in _ADAPTERS):
        message = (
            f"{folder} holds a LoRA adapter beside the model's own weights; the adapter is not applied. Merge it into "
            "the model to use it"
        )
        warnings.warn(message, UserWarning, stacklevel=4)
