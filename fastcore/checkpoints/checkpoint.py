"""A model's files, opened once: one noun for every format."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcore.checkpoints.mapped import MappedFile
from fastcore.errors import UnsupportedModelError
from fastcore.model.config import ModelConfig
from fastcore.model.tensor import Tensor
from fastcore.model.weights import PackedMaps

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Checkpoint", "TokenizerParts"]

_UNPREFIXED = ("embed_tokens.", "layers.", "norm.", "final_layernorm.")  # the last is Falcon-H1's


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer is made from.

    backend: the `tokenizers` object.
    config: tokenizer_config.json, or what stands for it: special tokens by name, chat_template.
    chat_templates: sources by name where they are files of their own; given, they replace those of the config.
    aliases: of ids whose token string a later id has too, that later id. `backend` knows each string by one id.
    """

    backend: "tokenizers.Tokenizer"
    config: Mapping[str, Any] = field(default_factory=dict)
    chat_templates: Mapping[str, str] | None = None
    aliases: Mapping[int, int] = field(default_factory=dict)


class Checkpoint(Mapping[str, Tensor], ABC):
    """The tensors of a model by name, in file order, and beside them its config and its tokenizer.

    Use it in a `with` block, or close it. After `close` tensors can no longer be read; config and tokenizer can.
    path: the folder or file that was opened, for messages.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], files: tuple[MappedFile, ...] = ()) -> None:
        self.path = path
        self._tensors = tensors
        self._stored_names = _stored_names(tensors)
        self._files = files
        self._parsed: ModelConfig | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(file.path for file in self._files)

    @property
    def nbytes(self) -> int:
        """Size of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self.values())

    def config(self) -> ModelConfig:
        """The model's shape and options, generation_config.json included; parsed once.

        Raises CheckpointError (naming field, found, expected) or UnsupportedModelError. One UserWarning names the
        fields that are unknown.
        """
        if self._parsed is None:
            self._parsed = self._parse()
        return self._parsed

    @property
    def packed(self) -> PackedMaps:
        """The linear maps that are stored as the kernels read them."""
        return {}

    def companions(self) -> dict[str, bytes]:
        """What lies beside the weights in a model folder of this model: file name (with /) -> content.

        Raises UnsupportedModelError where there is no such form.
        """
        raise UnsupportedModelError(f"{self.path} cannot be written as a model folder")

    @abstractmethod
    def _parse(self) -> ModelConfig: ...

    @abstractmethod
    def tokenizer(self) -> TokenizerParts | None:
        """The parts of the tokenizer, read when asked for; None where the checkpoint has none.

        Raises CheckpointError for a damaged one and UnsupportedModelError for a kind that is not known.
        """

    def close(self) -> None:
        """Unmap the files. Arrays already taken stay valid."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._stored_names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored_names)

    def __len__(self) -> int:
        return len(self._stored_names)


def _stored_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> name in the file. Saved from the class without a head (Qwen3Model), names lack the prefix `model.`."""
    if "embed_tokens.weight" not in tensors or any(name.startswith("model.") for name in tensors):
        return {name: name for name in tensors}
    return {f"model.{name}" if name.startswith(_UNPREFIXED) else name: name for name in tensors}
