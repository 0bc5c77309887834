"""Small language models on the CPU, straight from their published checkpoints."""

from importlib import import_module

_HOMES = {
    "LLM": "llm",
    "Completion": "llm",
    "SamplingParams": "sampling",
    "TokenClassifier": "classify",
    "from_transformers": "llm",
} | {
    name: "errors"
    for name in (
        "CacheFullError",
        "ChatTemplateError",
        "CheckpointError",
        "ContextLengthError",
        "Error",
        "MissingPackageError",
        "MissingShardError",
        "ModelNotFoundError",
        "NonFiniteError",
        "UnsupportedModelError",
    )
}

__version__ = "0.1.0"
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    """Load a public name's module at first use, so that `import fastcore` stays cheap."""
    if name in _HOMES:
        value = getattr(import_module(f"fastcore.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
