"""What a model is compared with: a golden folder, or the same checkpoint in transformers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.errors import CheckpointError
from fastcore.verify.outcome import Outcome

__all__ = ["Array", "TransformersModel", "TransformersTemplate", "compare_logits", "read_golden"]

# Largest difference over the standard deviation of the reference: f32 rounding through the layers
LOGITS_TOLERANCE = 2e-4

Array = NDArray[np.float32]


def compare_logits(found: Array, expected: Array, source: str) -> Outcome:
    if found.shape != expected.shape:
        return False, f"shape {list(found.shape)}, and {source} has {list(expected.shape)}", {}
    spread = float(expected.std())
    difference = float(np.abs(found - expected).max())
    passed = bool(difference <= LOGITS_TOLERANCE * spread)
    figures = {"positions": len(found), "max_difference": difference, "std": spread, "tolerance": LOGITS_TOLERANCE}
    detail = f"{len(found)} positions: largest difference {difference / spread:.1e} of the std, against {source}"
    return passed, detail, figures


def read_golden(folder: Path) -> tuple[dict[str, Any], Array]:
    try:
        case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        case["input_ids"] = list(case["input_ids"])
        return case, np.load(folder / "logits.npy")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder} is not a golden folder with case.json and logits.npy: {error}") from error


class TransformersModel:
    """The same checkpoint in transformers, in f32 with eager attention."""

    def __init__(self, model: Any, version: str) -> None:
        self._model = model
        self.version = version

    @classmethod
    def open(cls, path: Path) -> "TransformersModel | str":
        """The model, or the reason why there is none."""
        if not path.is_dir():
            return "transformers reads folders only; give a golden folder"
        try:
            import torch
            import transformers
        except ImportError:
            return "transformers is not installed; install it, or give a golden folder"
        release = tuple(int(number) for number in transformers.__version__.split(".")[:2])
        options = {
            "dtype" if release >= (4, 56) else "torch_dtype": torch.float32,
            "attn_implementation": "eager",
            "local_files_only": True,
        }
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()
        except Exception as error:  # whatever another library raises about this folder
            return f"transformers does not load this model: {error}"
        return cls(model, transformers.__version__)

    def logits(self, ids: Sequence[int]) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        import torch

        tokens: list[int] = []
        new, cache = list(ids), None
        with torch.no_grad():
            for _ in range(count):
                output = self._model(torch.tensor([new]), past_key_values=cache, use_cache=True)
                new, cache = [int(output.logits[0, -1].argmax())], output.past_key_values
                tokens += new
        return tokens


class TransformersTemplate:
    """The chat template of the same folder, as transformers renders it."""

    def __init__(self, tokenizer: Any, version: str) -> None:
        self._tokenizer = tokenizer
        self.version = version

    @classmethod
    def open(cls, path: Path) -> "TransformersTemplate | str":
        """The template, or the reason why there is none."""
        if not path.is_dir():
            return "transformers reads folders only"
        try:
            import transformers
        except ImportError:
            return "transformers is not installed"
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # whatever another library raises about this folder
            return f"transformers does not load this tokenizer: {error}"
        if not tokenizer.chat_template:
            return "transformers finds no chat template here"
        return cls(tokenizer, transformers.__version__)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str | None:
        """The prompt text; None where the template refuses."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception:  # a template is a program of its own: whatever it raises is its answer
            return None
        return text
