"""The model under test: its files and its text, which are checked alike for every kind of model."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.folder import read_config
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import Error
from fastcore.model.config import ModelConfig
from fastcore.text.tokenizer import Tokenizer
from fastcore.verify.outcome import Checks, Outcome, skip
from fastcore.verify.references import TransformersTemplate
from fastcore.verify.texts import CONVERSATIONS, STRINGS, TEXT

__all__ = ["NEW_TOKENS", "Subject", "quietly"]

NEW_TOKENS = 24  # that follow the prompt


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings about unknown config fields, which have a check of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class Subject(ABC):
    """The model under test."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self.path = path
        self.folder = path if path.is_dir() else path.parent
        self.num_threads = num_threads

    @cached_property
    def checkpoint(self) -> Checkpoint:
        with quietly():
            return open_checkpoint(self.path)

    @cached_property
    def config(self) -> ModelConfig:
        with quietly():
            try:
                return self.checkpoint.config()
            except Error:
                if "checkpoint" in self.__dict__:
                    raise
                return read_config(self.folder)  # damaged weights have a check of their own

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.of(self.checkpoint)

    @cached_property
    def prompt(self) -> list[int]:
        if self.tokenizer is not None:
            ids = self.tokenizer.encode(TEXT)
        else:
            ids = [(7919 * i + 13) % self.config.vocab_size for i in range(64)]
        return ids[: max(1, self.config.context_length - NEW_TOKENS)]

    # ---------------------------------------------------------------- files

    def config_fields(self) -> Outcome:
        unknown = self.config.unrecognised
        figures = {"model_type": self.config.model_type, "unrecognised": list(unknown)}
        if unknown:
            return False, f"fields unknown to fastcore, which may change the result: {', '.join(unknown)}", figures
        return True, f"{self.config.model_type}: every field is read, refused or known to change nothing", figures

    def tensors(self) -> Outcome:
        count = len(self.checkpoint)
        packed = self.load()
        detail = f"{count} tensors, each taken by name with the shape of the config; {packed / 1e6:.1f} MB packed"
        return True, detail, {"tensors": count, "packed_bytes": packed}

    @abstractmethod
    def load(self) -> int:
        """Load the model; bytes of its packed weights."""

    # ---------------------------------------------------------------- text

    def token_ids(self) -> Outcome:
        if self.tokenizer is None or not (self.folder / "tokenizer.json").is_file():
            return skip("no tokenizer.json")
        import tokenizers

        library = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        library.no_truncation()
        library.no_padding()
        wrong = []
        for text in STRINGS:
            for special in (True, False):
                ids = self.tokenizer.encode(text, add_special_tokens=special)
                decoder = self.tokenizer.decoder()
                streamed = "".join(map(decoder.push, ids)) + decoder.finish()
                if ids != library.encode(text, add_special_tokens=special).ids or streamed != library.decode(ids):
                    wrong.append(text)
        figures = {"strings": len(STRINGS), "different": wrong}
        if wrong:
            return (
                False,
                f"ids or streamed text differ from the tokenizers library, for example on {wrong[0]!r}",
                figures,
            )
        return True, f"equal to the tokenizers library on {len(STRINGS)} strings, streamed text too", figures

    def chat_template(self) -> Outcome:
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            return skip("no chat template")
        reference = TransformersTemplate.open(self.path)
        if isinstance(reference, str):
            return skip(reference)
        differing, refused = 0, 0
        for conversation in CONVERSATIONS:
            for prompt in (True, False):
                expected = reference.render(conversation, prompt)
                try:
                    found = self.tokenizer.apply_chat_template(list(conversation), add_generation_prompt=prompt)
                except Error:
                    found = None
                differing += found != expected
                refused += found is None
        count, source = 2 * len(CONVERSATIONS), f"transformers {reference.version}"
        figures = {"renderings": count, "different": differing, "refused_by_the_template": refused}
        if differing:
            return False, f"{differing} of {count} conversations differ from {source}", figures
        return True, f"{count} conversations equal to {source}, {refused} of them refused by both", figures

    # ---------------------------------------------------------------- numbers

    @abstractmethod
    def against(self, golden: Path | None) -> Checks:
        """Comparisons with a golden folder, or else with transformers."""

    @abstractmethod
    def laws(self) -> Checks:
        """What must be equal bit for bit."""
