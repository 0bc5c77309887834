"""Every error that fastcore raises on purpose. A message says what, which field, expected, found, and what to do."""

__all__ = [
    "CacheFullError",
    "ChatTemplateError",
    "CheckpointError",
    "ClosedError",
    "ContextLengthError",
    "Error",
    "ForkError",
    "GrammarError",
    "MaskingError",
    "MissingPackageError",
    "MissingShardError",
    "ModelNotFoundError",
    "NonFiniteError",
    "OutOfMemoryError",
    "QualityError",
    "ServerError",
    "UnsupportedModelError",
    "WorkerError",
]


class Error(Exception):
    """The root: `except fastcore.Error` catches everything below."""


class CheckpointError(Error, ValueError):
    """A file of the checkpoint is damaged, incomplete or contradicts its config."""


class MissingShardError(CheckpointError, FileNotFoundError):
    """The index names files that are not there."""


class UnsupportedModelError(Error, ValueError):
    """The checkpoint is well formed but needs something that is not implemented."""


class ContextLengthError(Error, ValueError):
    """The prompt does not fit the context window."""


class CacheFullError(Error, MemoryError):
    """The state pool's byte cap cannot hold another sequence."""


class OutOfMemoryError(Error, MemoryError):
    """The system does not give the memory for weights, cache or workspace."""


class NonFiniteError(Error, ArithmeticError):
    """The model produced NaN or infinity where a number is needed."""


class QualityError(Error, ValueError):
    """What quantising a model lost is beyond the bounds that were given."""


class ChatTemplateError(Error, ValueError):
    """The checkpoint has no chat template, or the template refused the messages."""


class GrammarError(Error, ValueError):
    """A JSON schema, regular expression or grammar is malformed, not supported, or too complex to follow."""


class MaskingError(Error, ValueError):
    """A file cannot be masked for certain: it is damaged, or what belongs to a field cannot be told or rewritten."""


class ForkError(Error, RuntimeError):
    """The process forked while another thread used the model, which is half done in the child."""


class ClosedError(Error, RuntimeError):
    """The model was closed, and its memory is free."""


class ModelNotFoundError(Error, FileNotFoundError):
    """No folder, file, cached model or reachable source answers to this model name."""


class WorkerError(Error, RuntimeError):
    """A process that was to do a part of the work ended before it was done."""


class ServerError(Error, OSError):
    """A server that was asked does not answer, or answers something else."""


class MissingPackageError(Error, ImportError):
    """An optional package is needed; the message names the extra that brings it."""
