"""Reads config.json and safetensors files that are known to be sound."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

_STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "BOOL": np.bool_}


def load_config(folder: Path) -> dict[str, Any]:
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))


class Weights:
    """The tensors of every safetensors file in a folder, converted to `dtype` each time one is read."""

    def __init__(self, folder: Path, dtype: DTypeLike = np.float64) -> None:
        self.dtype = dtype
        self._stored: dict[str, tuple[str, np.ndarray]] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            blob = np.memmap(path, np.uint8, "r")
            (length,) = struct.unpack("<Q", blob[:8].tobytes())
            header = json.loads(blob[8 : 8 + length].tobytes())
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                value = blob[begin:end].view(_STORED[entry["dtype"]]).reshape(entry["shape"])
                self._stored[name] = (entry["dtype"], value)
        self.names = frozenset(self._stored)
        self.unread = set(self.names)

    def __getitem__(self, name: str) -> np.ndarray:
        stored_dtype, value = self._stored[name]
        self.unread.discard(name)
        if stored_dtype == "BF16":
            value = (value.astype(np.uint32) << 16).view(np.float32)
        return np.array(value, dtype=self.dtype)

    def linear(self, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """`name`.weight and `name`.bias, None where the checkpoint has no such bias."""
        return self[f"{name}.weight"], self[f"{name}.bias"] if f"{name}.bias" in self._stored else None
