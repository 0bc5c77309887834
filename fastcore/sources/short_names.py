"""Short names of models of the hub whose architectures run here."""

from collections.abc import Mapping

__all__ = ["SHORT_NAMES", "hub_id"]

SHORT_NAMES: Mapping[str, str] = {
    "falcon-h1-0.5b": "tiiuae/Falcon-H1-0.5B-Instruct",
    "falcon-h1-1.5b": "tiiuae/Falcon-H1-1.5B-Instruct",
    "falcon-h1-1.5b-deep": "tiiuae/Falcon-H1-1.5B-Deep-Instruct",
    "falcon-h1-3b": "tiiuae/Falcon-H1-3B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",  # the hub gives both to those who took their licence
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "qwen2-0.5b": "Qwen/Qwen2-0.5B-Instruct",
    "qwen2-1.5b": "Qwen/Qwen2-1.5B-Instruct",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-coder-0.5b": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder-1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "qwen2.5-coder-3b": "Qwen/Qwen2.5-Coder-3B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
}


def hub_id(name: str) -> str:
    """The hub id that a short name stands for; any other name as it is."""
    return SHORT_NAMES.get(name, name)
