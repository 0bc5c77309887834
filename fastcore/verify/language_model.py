"""Checks of a language model's numbers: logits, greedy tokens, and the laws."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.llm import LLM
from fastcore.models import Model, load_model
from fastcore.verify.laws import cut, isa_law, threads_law
from fastcore.verify.outcome import Checks, Outcome, skip
from fastcore.verify.references import Array, TransformersModel, compare_logits, read_golden
from fastcore.verify.subject import NEW_TOKENS, Subject, quietly

__all__ = ["LanguageModel"]

TIE = 1e-3  # between two logits that are closer than this, either token is right
POOL_BYTES = 1 << 30


class LanguageModel(Subject):
    @cached_property
    def model(self) -> Model:
        with quietly():
            return load_model(self.checkpoint, "auto", self.num_threads)

    @cached_property
    def pool(self) -> StatePool:
        return StatePool(self.model, POOL_BYTES)

    def load(self) -> int:
        return self.model.weight_bytes

    def logits(self, ids: Sequence[int], sizes: Sequence[int] | None = None, num_threads: int | None = None) -> Array:
        """Logits at every position, with the tokens run in pieces of these sizes."""
        result = np.empty((len(ids), self.config.vocab_size), np.float32)
        with SequenceState(self.pool, prompt_length=len(ids)) as sequence:
            for size in [len(ids)] if sizes is None else sizes:
                start = sequence.length
                piece = Piece(sequence, ids[start : start + size], range(size))
                threads = num_threads or self.num_threads
                run_step(self.model, [piece], num_threads=threads, logits=result[start : start + size])
        return result

    def greedy(self, ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """The next tokens, one step each, and the gap between the two best logits at each."""
        tokens: list[int] = []
        gaps: list[float] = []
        row = np.empty((1, self.config.vocab_size), np.float32)
        with SequenceState(self.pool) as sequence:
            for _ in range(count):
                new = [*ids, *tokens][sequence.length :]
                run_step(self.model, [Piece(sequence, new, [len(new) - 1])], num_threads=self.num_threads, logits=row)
                second, best = np.partition(row[0], -2)[-2:]
                tokens.append(int(row[0].argmax()))
                gaps.append(float(best - second))
        return tokens, gaps

    def against(self, golden: Path | None) -> Checks:
        if golden is not None:
            case, expected = read_golden(golden)
            ids = case["input_ids"]
            yield "logits", lambda: compare_logits(self.logits(ids), expected, "the golden")
            if "greedy" in case:
                yield "greedy tokens", lambda: self._compare_greedy(ids, case["greedy"], "the golden")
            return
        reference = TransformersModel.open(self.path)
        if isinstance(reference, str):
            reason = reference
            yield "logits", lambda: skip(reason)
            yield "greedy tokens", lambda: skip(reason)
            return
        source = f"transformers {reference.version} in f32"
        yield "logits", lambda: compare_logits(self.logits(self.prompt), reference.logits(self.prompt), source)
        yield (
            "greedy tokens",
            lambda: self._compare_greedy(self.prompt, reference.greedy(self.prompt, NEW_TOKENS), source),
        )

    def _compare_greedy(self, ids: Sequence[int], expected: Sequence[int], source: str) -> Outcome:
        tokens, gaps = self.greedy(ids, len(expected))
        same = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), len(expected))
        figures = {"tokens": len(expected), "equal": same, "smallest_gap": min(gaps[: same + 1])}
        if same == len(expected):
            return (
                True,
                f"{same} tokens equal to {source}; the two best logits were {min(gaps):.2g} apart or more",
                figures,
            )
        if gaps[same] <= TIE:
            return (
                True,
                f"{same} tokens equal to {source}, then a tie: the two best are {gaps[same]:.1g} apart",
                figures,
            )
        return False, f"token {same} is {tokens[same]} and {source} has {expected[same]}", figures

    def laws(self) -> Checks:
        ids = self.prompt
        expected = self.logits(ids)

        def equal(found: Array) -> bool:
            return bool(np.array_equal(found, expected))

        def chunks() -> Outcome:
            cuts = [cut(len(ids), size) for size in (1, 5, 17, max(1, len(ids) - 1))]
            same = [equal(self.logits(ids, sizes)) for sizes in cuts]
            figures = {"cuts": len(cuts), "equal": sum(same)}
            return (
                all(same),
                f"logits of {len(ids)} tokens in {len(cuts)} ways to cut them, token by token too",
                figures,
            )

        yield "law: threads", lambda: threads_law(lambda n: equal(self.logits(ids, num_threads=n)))
        yield "law: chunks", chunks
        yield "law: batch", self._batch_law
        yield "law: instruction sets", lambda: isa_law(lambda: equal(self.logits(ids)))

    def _batch_law(self) -> Outcome:
        prompts = [self.prompt[:1], self.prompt[:7], self.prompt, self.prompt[3:20]]
        sequences = [SequenceState(self.pool) for _ in prompts]
        try:
            pieces = [Piece(sequence, ids, range(len(ids))) for sequence, ids in zip(sequences, prompts, strict=True)]
            together = np.empty((sum(map(len, prompts)), self.config.vocab_size), np.float32)
            run_step(self.model, pieces, num_threads=self.num_threads, logits=together)
        finally:
            for sequence in sequences:
                sequence.free()
        passed = bool(np.array_equal(together, np.concatenate([self.logits(ids) for ids in prompts])))
        detail = f"{len(prompts)} prompts in one step get the logits they get alone"
        if self.tokenizer is not None:
            llm = LLM.from_model(self.model, self.tokenizer, num_threads=self.num_threads, kv_cache_bytes=POOL_BYTES)
            batch = [completion.token_ids for completion in llm.generate(prompts, max_tokens=8)]
            passed &= batch == [llm.generate(ids, max_tokens=8).token_ids for ids in prompts]
            detail += ", and the same tokens after them"
        return passed, detail, {"prompts": len(prompts)}
