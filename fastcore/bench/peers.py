"""Other engines, driven as fastcore is: llama.cpp and torch, on the weights of the same folder.

They are for benchmarks alone (extra `peers`).
"""

import copy
import ctypes
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.bench.gguf_file import write_gguf
from fastcore.bench.runner import Runner
from fastcore.checkpoints.open import load_config
from fastcore.errors import MissingPackageError, UnsupportedModelError

__all__ = ["PEERS", "LlamaCpp", "Torch", "TorchClassifier", "peers_of"]

MAX_ROWS = 512  # of a pass of llama.cpp, as its own benchmark has it and as fastcore does


def peers_of(path: Path, num_threads: int) -> list[tuple[str, Callable[[], Runner]]]:
    """Names of the peers, and what opens each on a model folder or .gguf file.

    Opening raises MissingPackageError for one that is not installed, UnsupportedModelError for a model it cannot run.
    """
    return [(name, partial(open_peer, path, num_threads)) for name, open_peer in PEERS.items()]


class LlamaCpp:
    """llama.cpp, as llama-cpp-python builds it. Flash attention stays off, its faster setting on CPUs.

    path: a .gguf file, taken as it is, or a folder whose weights are written to one; quantised by llama.cpp itself
    where `file_type` names one of its types (Q8_0, Q4_K_M ...).
    """

    def __init__(self, path: Path, num_threads: int, file_type: str | None = None) -> None:
        try:
            import llama_cpp
        except ImportError:
            raise MissingPackageError("llama-cpp-python is not installed; it comes with the extra `peers`") from None
        self._api = llama_cpp
        self._num_threads = num_threads
        self._context: Any = None
        self._sequences: list[int] = []  # length of each
        self._marked: list[int] = []
        self._rows: list[int] = []  # of the last pass, whose logits follow the sequences
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_NO_LOG, ctypes.c_void_p(0))
        with tempfile.TemporaryDirectory(prefix="fastcore-") as folder:
            file = path if path.suffix == ".gguf" else write_gguf(path, Path(folder) / "model.gguf")
            if file_type is not None:
                file = _quantised(llama_cpp, file, Path(folder) / "quantised.gguf", file_type, num_threads)
            parameters = llama_cpp.llama_model_default_params()
            # the file stays readable after its name is gone
            self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), parameters)
        if not self._model:
            raise UnsupportedModelError(f"llama.cpp cannot load {path}")
        text = ctypes.create_string_buffer(128)
        llama_cpp.llama_model_desc(self._model, text, len(text))
        # architecture, size, file type, which "(guessed)" may precede
        self.name = f"llama.cpp {text.value.decode().replace('(guessed)', '').split(maxsplit=2)[-1].lower()}"
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        config = load_config(path)
        self.weight_bytes = llama_cpp.llama_model_size(self._model)
        self.position_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # f16
        self._vocab_size = config.vocab_size

    def start(self, batch: int, positions: int) -> None:
        api = self._api
        self._free_context()
        parameters = api.llama_context_default_params()
        parameters.n_ctx = batch * (-(-positions // 256) * 256)  # split evenly between the sequences
        parameters.n_batch = parameters.n_ubatch = MAX_ROWS
        parameters.n_seq_max = batch
        parameters.n_threads = parameters.n_threads_batch = self._num_threads
        parameters.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise UnsupportedModelError(f"llama.cpp cannot hold {batch} sequences of {positions} positions")
        self._batch = api.llama_batch_init(MAX_ROWS, 0, 1)
        self._sequences = [0] * batch

    def run(self, token_ids: NDArray[np.int32]) -> None:
        batch, count = token_ids.shape
        rows = max(1, MAX_ROWS // batch)
        for first in range(0, count, rows):
            self._pass(token_ids[:, first : first + rows], first + rows >= count)
        self._api.llama_synchronize(self._context)

    def _pass(self, token_ids: NDArray[np.int32], is_last: bool, all_rows: bool = False) -> None:
        batch, self._rows, i = self._batch, [], 0
        for sequence, row in enumerate(token_ids.tolist()):
            for token in row:
                batch.token[i], batch.pos[i], batch.logits[i] = token, self._sequences[sequence], all_rows
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                self._sequences[sequence] += 1
                i += 1
            if is_last:
                batch.logits[i - 1] = True
                self._rows += range(i - len(row) if all_rows else i - 1, i)
        batch.n_tokens = i
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp failed with code {code}")

    def every_logits(self, token_ids: Sequence[int], rows: int) -> Iterator[NDArray[np.float32]]:
        """The logits after each token of a new sequence, f32 [up to `rows`, vocab_size] at a time."""
        self.start(1, len(token_ids))
        for first in range(0, len(token_ids), rows):
            part = np.array([token_ids[first : first + rows]], np.int32)
            self._pass(part, True, all_rows=True)
            yield self.logits()

    def logits(self) -> NDArray[np.float32]:
        rows = (self._api.llama_get_logits_ith(self._context, row) for row in self._rows)
        return np.stack([np.ctypeslib.as_array(row, (self._vocab_size,)) for row in rows])

    def mark(self) -> None:
        self._marked = list(self._sequences)

    def rewind(self) -> None:
        memory = self._api.llama_get_memory(self._context)
        for sequence, length in enumerate(self._marked):
            self._api.llama_memory_seq_rm(memory, sequence, length, -1)
        self._sequences = list(self._marked)

    def close(self) -> None:
        self._free_context()
        self._api.llama_model_free(self._model)

    def _free_context(self) -> None:
        if self._context:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._context)
            self._context = None


def _quantised(api: Any, file: Path, to: Path, file_type: str, num_threads: int) -> Path:
    parameters = api.llama_model_quantize_default_params()
    parameters.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    parameters.nthread = num_threads
    if api.llama_model_quantize(str(file).encode(), str(to).encode(), ctypes.byref(parameters)):
        raise UnsupportedModelError(f"llama.cpp cannot write {file.name} as {file_type}")
    return to


_NO_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


class Torch:
    """transformers on torch. dtype: f32 | bf16, of weights and activations."""

    def __init__(self, path: Path, num_threads: int, *, dtype: str) -> None:
        torch, transformers = _import_torch(num_threads)
        if not path.is_dir():
            raise UnsupportedModelError(f"transformers is run on folders; {path} is a file")
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=kind).eval()
        self.name = f"torch {dtype}"
        self.version = f"torch {torch.__version__}, transformers {transformers.__version__}"
        config = load_config(path)
        matrices = [module.weight for module in self._model.modules() if isinstance(module, torch.nn.Linear)]
        self.weight_bytes = sum(matrix.numel() for matrix in matrices) * kind.itemsize
        values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        self.position_bytes = values * kind.itemsize
        self._cache: Any = None
        self._marked: Any = None
        self._logits: Any = None

    def start(self, batch: int, positions: int) -> None:
        self._cache = self._marked = None

    def run(self, token_ids: NDArray[np.int32]) -> None:
        with self._torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the argument's newer name, which older versions lack
            tokens = self._torch.from_numpy(token_ids.astype(np.int64))
            output = self._model(tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache, self._logits = output.past_key_values, output.logits

    def logits(self) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._logits[:, -1].float().numpy()
        return logits

    def mark(self) -> None:
        self._marked = copy.deepcopy(self._cache)

    def rewind(self) -> None:
        self._cache = copy.deepcopy(self._marked)

    def close(self) -> None:
        self._model = self._cache = self._marked = self._logits = None


class TorchClassifier:
    """A token classifier on transformers' backbone, bidirectional; texts of one call are padded to the longest."""

    def __init__(self, path: Path, num_threads: int, *, dtype: str) -> None:
        torch, transformers = _import_torch(num_threads)
        from safetensors.torch import load_file

        config = load_config(path)
        if not config.is_token_classifier or config.is_causal:
            raise UnsupportedModelError(f"{path.name} is not a bidirectional token classifier")
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        stored = json.loads((path / "config.json").read_text(encoding="utf-8"))
        shape = transformers.Qwen3Config(**(stored.get("backbone") or stored))
        tensors: dict[str, Any] = {}
        for file in sorted(path.glob("*.safetensors")):
            tensors |= load_file(file)
        prefix = "backbone." if config.model_type == "pii_masking" else "model."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        self._torch = torch
        self._backbone = transformers.Qwen3Model.from_pretrained(None, config=shape, state_dict=own, dtype=kind).eval()
        head = "token_cls_head" if config.model_type == "pii_masking" else "score"
        self._head: Any = [
            tensors[f"{head}.{part}"].to(kind) for part in ("weight", "bias") if f"{head}.{part}" in tensors
        ]
        self.name = f"torch {dtype}"
        self.version = f"torch {torch.__version__}, transformers {transformers.__version__}"

    def logits(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """f32 [num_tokens, rows of the head] of each text's token ids."""
        torch = self._torch
        longest = max(map(len, texts))
        tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
        mask = torch.zeros(len(texts), 1, 1, longest, dtype=self._head[0].dtype)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
            mask[row, ..., len(text) :] = torch.finfo(mask.dtype).min
        with torch.inference_mode():
            hidden = self._backbone(
                tokens, attention_mask=mask.expand(-1, 1, longest, -1), use_cache=False
            ).last_hidden_state
            logits = torch.nn.functional.linear(hidden, *self._head).float().numpy()
        return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]

    def close(self) -> None:
        self._backbone = self._head = None


def _import_torch(num_threads: int) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingPackageError(f"{error.name} is not installed; it comes with the extra `peers`") from None
    torch.set_num_threads(num_threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return torch, transformers


PEERS: Mapping[str, Callable[[Path, int], Runner]] = {
    "llama.cpp": LlamaCpp,
    "torch f32": partial(Torch, dtype="f32"),
    "torch bf16": partial(Torch, dtype="bf16"),
}
