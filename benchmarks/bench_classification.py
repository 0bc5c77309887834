"""Classifying texts, packed without padding, in turns with the same backbone in torch."""

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from fastcore import TokenClassifier
from fastcore.bench.peers import TorchClassifier
from fastcore.bench.turns import MAX_DIFFERENCE

WORDS = (
    "the report says that they met at work and time will show how people use water food house city book line hand "
    "name place number group point home part day year week case fact area story month right study eye job word side"
)
REPEATS, PATIENCE_SECONDS = 3, 40.0


def _texts(classifier: TokenClassifier, lengths: list[int]) -> list[str]:
    """Texts of so many tokens, of words that are a token each."""
    rng = np.random.default_rng(0)
    words = [f" {word}" for word in WORDS.split() if len(classifier.tokenizer.encode(f" {word}")) == 1]
    extra = len(classifier.tokenizer.encode(words[0])) - 1
    return ["".join(rng.choice(words, length - extra)) for length in lengths]


TEXTS = {
    "512 tokens": [512],
    "64 texts of 24 to 48 tokens": np.random.default_rng(1).integers(24, 49, 64).tolist(),
}


@pytest.fixture(scope="session")
def loaded(classifier: Path, num_threads: int) -> TokenClassifier:
    return TokenClassifier(classifier, num_threads=num_threads)


@pytest.mark.parametrize("classifier_peer", ["alone", "torch f32", "torch bf16"], indirect=True)
@pytest.mark.parametrize("texts", TEXTS)
def bench_classification(
    benchmark: Any, classifier: Path, loaded: TokenClassifier, texts: str, classifier_peer: TorchClassifier | None
) -> None:
    many = _texts(loaded, TEXTS[texts])
    scores = loaded.score(many)
    ids = [score.token_ids for score in scores]
    assert list(map(len, ids)) == TEXTS[texts]
    for row, score in zip(ids, scores, strict=True):
        assert np.array_equal(loaded.logits(row)[0], score.logits)
    peer, seconds, difference = classifier_peer, list[float](), 0.0
    own = np.concatenate([score.logits for score in scores])

    def peer_takes_its_turn() -> None:
        nonlocal difference
        if peer is not None:
            start = perf_counter()
            logits = peer.logits(ids)
            seconds.append(perf_counter() - start)
            theirs = np.concatenate(logits)[:, : own.shape[1]]
            difference = float(np.sqrt(np.mean((theirs - own) ** 2)) / own.std())
            assert difference <= MAX_DIFFERENCE

    start = perf_counter()
    peer_takes_its_turn()
    loaded.score(many)
    seconds.clear()
    rounds = int(min(REPEATS, max(1, PATIENCE_SECONDS / (perf_counter() - start))))
    benchmark.pedantic(loaded.score, (many,), setup=peer_takes_its_turn, rounds=rounds)
    if benchmark.stats is None:  # --benchmark-disable
        return
    tokens, best = sum(TEXTS[texts]), benchmark.stats.stats.min
    figures = {
        "texts": texts,
        "tokens": tokens,
        "tokens_per_second": tokens / best,
        "texts_per_second": len(many) / best,
    }
    if peer is not None:
        figures |= {
            "peer": peer.name,
            "peer_version": peer.version,
            "peer_tokens_per_second": tokens / min(seconds),
            "speedup": min(seconds) / best,
            "difference": difference,
        }
    benchmark.extra_info |= {"model": classifier.name, "classification": figures}
