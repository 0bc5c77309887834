"""The best label path that BIES grammar allows."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike


def is_legal(before: str, after: str) -> bool:
    """B and I are continued by I or E of their type; O, E and S are followed by O or by any B or S."""
    if before[0] in "BI":
        return after[0] in "IE" and after[2:] == before[2:]
    return after[0] in "OBS"


def transition_scores(labels: Sequence[str], b_bias: float, e_bias: float, dtype: DTypeLike = np.float64) -> np.ndarray:
    """[from, to]: b_bias for a step into a B label plus e_bias for a step out of an E label, -inf if illegal."""
    b_bias, e_bias = np.asarray([b_bias, e_bias], dtype)
    scores = np.full((len(labels), len(labels)), -np.inf, dtype)
    for i, before in enumerate(labels):
        for j, after in enumerate(labels):
            if is_legal(before, after):
                scores[i, j] = (b_bias if after[0] == "B" else 0) + (e_bias if before[0] == "E" else 0)
    return scores


def best_path(
    token_logits: np.ndarray, labels: Sequence[str], b_bias: float, e_bias: float, dtype: DTypeLike = np.float64
) -> tuple[list[int], float]:
    """The label index of every token and the path's score: its logits plus its transition scores.

    A path starts in O, B or S and ends in O, E or S. Each token adds two terms in this order: (best score so far +
    transition score) + logit, in `dtype`. On a tie the lower label index wins, at the end and at every step back.
    """
    emitted = np.asarray(token_logits, dtype)
    if len(emitted) == 0:
        return [], 0.0
    steps = transition_scores(labels, b_bias, e_bias, dtype)
    starts = np.array([label[0] in "OBS" for label in labels])
    ends = np.array([label[0] in "OES" for label in labels])

    score = np.where(starts, emitted[0], -np.inf)
    came_from = []
    for logits in emitted[1:]:
        candidates = score[:, None] + steps
        came_from.append(candidates.argmax(0))
        score = candidates.max(0) + logits
    score = np.where(ends, score, -np.inf)
    path = [int(score.argmax())]
    for best_before in reversed(came_from):
        path.append(int(best_before[path[-1]]))
    return path[::-1], float(score.max())


def best_path_f32(
    logits: np.ndarray, transition_scores: np.ndarray, start_scores: np.ndarray, end_scores: np.ndarray
) -> list[int]:
    """The best path as the engine defines it to the last bit: f32, scores kept small by taking off the best one.

    All scores are f32, with -inf where forbidden; sums go (score + transition) + logit, then less the best score.
    """
    if len(logits) == 0:
        return []

    def less_the_best(score: np.ndarray) -> np.ndarray:
        return score - max(score.max(), np.finfo(np.float32).min)

    score = less_the_best(start_scores + logits[0])
    came_from = []
    for emitted in logits[1:]:
        candidates = score[:, None] + transition_scores
        came_from.append(candidates.argmax(0))
        score = less_the_best(candidates.max(0) + emitted)
    path = [int((score + end_scores).argmax())]
    for best_before in reversed(came_from):
        path.append(int(best_before[path[-1]]))
    return path[::-1]


def path_score(
    path: Sequence[int], token_logits: np.ndarray, labels: Sequence[str], b_bias: float, e_bias: float
) -> float:
    """The float64 score of one given path."""
    steps = transition_scores(labels, b_bias, e_bias)
    emitted = np.asarray(token_logits, np.float64)
    stepped = sum(steps[before, after] for before, after in itertools.pairwise(path))
    return stepped + sum(emitted[t, label] for t, label in enumerate(path))
