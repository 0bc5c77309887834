"""A token classifier whose labels are known beforehand: they follow from each token alone, whatever is around it."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tiny import PII_LABELS, tiny_checkpoint, write_weights
from tokenizers import Tokenizer

__all__ = ["labelled_checkpoint"]

SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # at zero, a layer adds nothing to its input


def labelled_checkpoint(folder: Path, model_type: str = "pii_masking", **options: Any) -> Path:
    """Capital letters and the word " Alice" are private_person, digits are private_phone, all else is O.

    The sensitivity logit is that of the head's bias, 0.25.
    """
    tiny_checkpoint(folder, model_type, dtype="f32", **options)
    tensors = load_file(folder / "model.safetensors")
    prefix = "backbone." if model_type == "pii_masking" else "model."
    for name in tensors:
        if name.endswith(SILENT):
            tensors[name] = np.zeros_like(tensors[name])
    embedding = np.zeros_like(tensors[f"{prefix}embed_tokens.weight"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for token, token_id in tokenizer.get_vocab().items():
        embedding[token_id, _column(token)] = 1.0
    tensors[f"{prefix}embed_tokens.weight"] = embedding
    tensors[f"{prefix}norm.weight"] = np.ones_like(tensors[f"{prefix}norm.weight"])

    hidden = embedding.shape[1]
    head = np.zeros((len(PII_LABELS) + 1, hidden), np.float32)
    bias = np.zeros(len(head), np.float32)
    bias[-1] = 0.25
    head[PII_LABELS.index("O"), 0] = 3.0
    for column, kind in enumerate(("private_person", "private_phone"), start=1):
        for tag, weight in zip("BIES", (3.0, 3.25, 3.0, 2.0), strict=True):
            head[PII_LABELS.index(f"{tag}-{kind}"), column] = weight
    if model_type == "pii_masking":
        tensors |= {"token_cls_head.weight": head[:-1], "token_cls_head.bias": bias[:-1]}
        tensors |= {"sensitivity_head.weight": head[-1:], "sensitivity_head.bias": bias[-1:]}
    else:
        tensors |= {"score.weight": head, "score.bias": bias}
    write_weights(folder, tensors)
    return folder


def _column(token: str) -> int:
    """Which entity a token belongs to: 0 none, 1 a person, 2 a phone number."""
    first = token.removeprefix("\u0120")[:1]  # which stands for a space
    return 1 if "A" <= first <= "Z" else 2 if "0" <= first <= "9" else 0
