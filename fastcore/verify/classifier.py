"""Checks of a token classifier's numbers: logits against a golden, and the laws."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastcore.classify import TokenClassifier
from fastcore.verify.laws import isa_law, threads_law
from fastcore.verify.outcome import Checks, Outcome, skip
from fastcore.verify.references import Array, compare_logits, read_golden
from fastcore.verify.subject import Subject, quietly
from fastcore.verify.texts import TEXT

__all__ = ["Classifier"]

SENSITIVITY_TOLERANCE = 1e-4


class Classifier(Subject):
    @cached_property
    def model(self) -> TokenClassifier:
        return self._open(self.num_threads)

    def _open(self, num_threads: int) -> TokenClassifier:
        with quietly():
            return TokenClassifier(self.checkpoint, num_threads=num_threads)

    def load(self) -> int:
        return self.model.model.weight_bytes

    def against(self, golden: Path | None) -> Checks:
        if golden is None:
            yield "logits", lambda: skip("a token classifier is compared with a golden folder only; give one")
            return
        case, expected = read_golden(golden)

        def compare() -> Outcome:
            found, sensitivity = self.model.logits(case["input_ids"])
            passed, detail, figures = compare_logits(found, expected, "the golden")
            if sensitivity is None or case.get("sensitivity_logit") is None:
                return passed, detail, figures
            difference = abs(float(sensitivity) - case["sensitivity_logit"])
            close = difference <= SENSITIVITY_TOLERANCE
            return bool(passed and close), detail, {**figures, "sensitivity_difference": difference}

        yield "logits", compare

    def laws(self) -> Checks:
        ids = self.prompt
        expected = self.model.logits(ids)

        def equal(found: tuple[Array, Any]) -> bool:
            return bool(np.array_equal(found[0], expected[0]) and found[1] == expected[1])

        def batch() -> Outcome:
            texts = [TEXT, "", "Call Anna on 555-0100.", TEXT[:200]]
            alone = [self.model.score(text) for text in texts]
            together = self.model.score(texts)
            same = all(
                np.array_equal(a.logits, b.logits) and a.sensitivity_logit == b.sensitivity_logit
                for a, b in zip(alone, together, strict=True)
            )
            return same, f"{len(texts)} texts together get the scores they get alone", {"texts": len(texts)}

        def threads(count: int) -> bool:
            return equal(self._open(count).logits(ids))

        yield "law: threads", lambda: threads_law(threads)
        yield "law: batch", batch if self.tokenizer is not None else (lambda: skip("no tokenizer.json"))
        yield "law: instruction sets", lambda: isa_law(lambda: equal(self.model.logits(ids)))
