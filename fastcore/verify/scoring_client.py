"""A token classifier beside a server that answers /v1/scoring: how far their numbers are apart."""

import http.client
import json
import math
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore.classify import TokenClassifier
from fastcore.errors import ServerError

__all__ = ["compare_scoring"]

SCORING_MODEL = "pii-masking-latest"


def compare_scoring(
    classifier: TokenClassifier,
    text: str,
    scoring_url: str,
    *,
    model: str = SCORING_MODEL,
    api_key: str | None = None,
    timeout: float = 120.0,
) -> dict[str, Any]:
    """Send one text to scoring_url/v1/scoring and run the token ids that come back through the classifier.

    Returns what is ready for JSON: tokens, max_abs_delta, mean_abs_delta, min_cosine (over tokens), argmax_agreement
    ("agreeing/all"), sensitivity_ref (the classifier's logit), sensitivity_served, sensitivity_delta (these three null
    without a sensitivity head), and same_token_ids, whether the classifier's own tokenizer gives the served ids. Raises
    ServerError for a server that does not answer, or answers something else.
    """
    scoring_url = scoring_url.rstrip("/").removesuffix("/v1/scoring")
    served = _ask(f"{scoring_url}/v1/scoring", {"model": model, "sequences": [text]}, api_key, timeout)
    token_ids, served_logits, served_sensitivity = _first_sequence(served, scoring_url)
    logits, sensitivity = classifier.logits(token_ids)
    if not token_ids:
        served_logits = served_logits.reshape(logits.shape)
    if served_logits.shape != logits.shape:
        raise ServerError(
            f"{scoring_url} serves pruning_scores {list(served_logits.shape)}; the model gives {list(logits.shape)}"
        )
    delta = np.abs(logits.astype(np.float64) - served_logits)
    sensitivity_delta = None
    if sensitivity is not None and served_sensitivity is not None:
        sensitivity_delta = round(abs(sensitivity - served_sensitivity), 6)
    return {
        "tokens": len(token_ids),
        "max_abs_delta": round(float(delta.max(initial=0)), 5),
        "mean_abs_delta": round(float(delta.mean()) if delta.size else 0.0, 6),
        "min_cosine": round(_min_cosine(logits, served_logits), 8),
        "argmax_agreement": f"{int((logits.argmax(-1) == served_logits.argmax(-1)).sum())}/{len(token_ids)}",
        "sensitivity_ref": None if sensitivity is None else round(sensitivity, 5),
        "sensitivity_served": None if served_sensitivity is None else round(served_sensitivity, 5),
        "sensitivity_delta": sensitivity_delta,
        "same_token_ids": classifier.tokenizer.encode(text) == token_ids,
    }


def _min_cosine(a: NDArray[np.float32], b: NDArray[np.float64]) -> float:
    """The least cosine similarity of two rows; 1 where there are none."""
    x = a.astype(np.float64)
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines = (x * b).sum(-1) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return float(cosines.min(initial=1.0))


def _ask(url: str, question: dict[str, Any], api_key: str | None, timeout: float) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ServerError(f"{url}: expected an address that begins with http:// or https://")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        request = urllib.request.Request(url, json.dumps(question).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        said = " ".join(error.read(1000).decode(errors="replace").split())[:200]
        raise ServerError(f"{url} answers {error.code} {error.reason}: {said}") from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"{url} does not answer: {getattr(error, 'reason', None) or error}") from None
    except ValueError as error:
        raise ServerError(f"{url} answers something other than JSON: {error}") from None


def _first_sequence(answer: Any, where: str) -> tuple[list[int], NDArray[np.float64], float | None]:
    """token ids, logits [tokens, labels] and the sensitivity logit of the first sequence."""
    try:
        token_ids = [int(token_id) for token_id in answer["token_ids"][0]]
        logits = np.array(answer["pruning_scores"][0], np.float64)
        ranking = answer["ranking_scores"][0]
        sensitivity = float(ranking[0]) if ranking else None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerError(
            f"{where} answers something other than token_ids, pruning_scores and ranking_scores of one sequence "
            f"({type(error).__name__}: {error})"
        ) from None
    if not np.isfinite(logits).all() or not math.isfinite(sensitivity or 0.0):
        raise ServerError(f"{where} answers scores that are not finite")
    return token_ids, logits, sensitivity
