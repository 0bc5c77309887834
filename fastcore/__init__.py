"""Small language models on the CPU, straight from their published checkpoints."""

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES

# Another project installs an import package of this name: a folder with the files of both is neither.
_strangers = [name for name in ("_modidx.py", "basics.py", "foundation.py") if os.path.exists(f"{__path__[0]}/{name}")]
if _strangers:
    raise ImportError(
        f"{__path__[0]} holds files of another project named fastcore ({', '.join(_strangers)}) beside those of "
        "fastcore-engine; the two cannot share an environment. Run `pip uninstall fastcore fastcore-engine`, then "
        "install fastcore-engine again"
    )

if not any(os.path.exists(f"{__path__[0]}/_kernels{suffix}") for suffix in EXTENSION_SUFFIXES):
    raise ImportError(
        f"{__path__[0]} is the source of fastcore, and its C core is not built there. Python looks in the current "
        "folder first: run in another to use the fastcore that is installed, or build this one with `pip install -e .`"
    )

_HOMES = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "LLMOptions": "llm",
    "Chunk": "engine.completion",
    "Completion": "engine.completion",
    "Timings": "engine.completion",
    "TokenLogprob": "engine.completion",
    "Usage": "engine.completion",
    "SamplingOptions": "engine.sampling_params",
    "SamplingParams": "engine.sampling_params",
    "Classification": "pii.classification",
    "TokenClassifier": "classify",
    "TokenScores": "pii.classification",
    "Entity": "pii.spans",
    "MaskedText": "pii.masking",
    "MaskingOptions": "pii.masking",
    "from_transformers": "live",
    "CacheFullError": "errors",
    "ChatTemplateError": "errors",
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "ContextLengthError": "errors",
    "Error": "errors",
    "ForkError": "errors",
    "GrammarError": "errors",
    "MissingPackageError": "errors",
    "MissingShardError": "errors",
    "ModelNotFoundError": "errors",
    "NonFiniteError": "errors",
    "OutOfMemoryError": "errors",
    "QualityError": "errors",
    "ServerError": "errors",
    "UnsupportedModelError": "errors",
    "WorkerError": "errors",
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
