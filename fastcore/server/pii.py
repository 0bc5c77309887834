"""The endpoints of a token classifier: /v1/scoring, its numbers token by token; /v1/pii, entities and masked texts."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from fastcore.classify import OFFSETS, Classification, TokenClassifier, TokenScores
from fastcore.pii.masking import MaskingRules
from fastcore.server.http import Body, Handler, RequestError, collect, json_response

__all__ = ["PiiService"]


class PiiService:
    """Scores, entities and masks of one token classifier."""

    def __init__(self, classifier: TokenClassifier) -> None:
        self.handlers: dict[str, Handler] = {
            "/v1/scoring": partial(scoring, classifier),
            "/v1/pii": partial(find, classifier),
        }

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Each request does its own work: none is left."""


async def scoring(classifier: TokenClassifier, request: Request, body: Body, model: str) -> Response:
    """{"sequences": [text, ...]} -> token_ids, pruning_scores [tokens][labels], ranking_scores [1], windows of each.

    Scores are logits. ranking_scores of a model without a sensitivity head are empty lists. windows is how many parts a
    text was read in: of more than one, scores are not those of one whole pass.
    """
    texts = _sequences(body)
    body.finish()
    scores = await collect(request, classifier.score(iter(texts)))
    return await anyio.to_thread.run_sync(_scoring_response, scores)


def _scoring_response(results: list[TokenScores]) -> Response:
    return json_response(
        {
            "token_ids": [scores.token_ids for scores in results],
            "pruning_scores": [scores.logits.tolist() for scores in results],
            "ranking_scores": [
                [] if scores.sensitivity_logit is None else [scores.sensitivity_logit] for scores in results
            ],
            "windows": [len(scores.windows) for scores in results],
        }
    )


async def find(classifier: TokenClassifier, request: Request, body: Body, model: str) -> Response:
    """{"sequences": [text, ...]} -> {"results": [...]}: entities, masked_text and sensitivity of each text.

    Options are those of masking (operator, per_label, allow_list, threshold, keep, keep_from, mask_char, key, join,
    whole_words), and offsets: code_points (default), utf8, or utf16 as JavaScript counts. The operator placeholder adds
    mapping.
    """
    texts = _sequences(body)
    offsets = body.string("offsets", "code_points")
    if offsets not in OFFSETS:
        raise RequestError(400, f"offsets is {offsets!r}; expected one of {', '.join(OFFSETS)}")
    rules = _rules(body, classifier)
    body.finish()
    results = await collect(request, classifier(iter(texts)))
    return await anyio.to_thread.run_sync(_find_response, results, rules, offsets)


def _find_response(results: Iterable[Classification], rules: MaskingRules, offsets: str) -> Response:
    answers = []
    for result in results:
        masked = result.mask(rules)
        answer = {**result.to_dict(offsets), "masked_text": masked.text}
        answers.append(answer | ({"mapping": masked.mapping} if masked.mapping else {}))
    return json_response({"results": answers})


def _sequences(body: Body) -> list[str]:
    texts = body.strings("sequences")
    if not texts:
        what = "missing" if texts is None else "empty"
        raise RequestError(400, f"sequences is {what}; expected a list of one or more texts")
    return texts


def _rules(body: Body, classifier: TokenClassifier) -> MaskingRules:
    per_label: Any = body.take("per_label") or {}
    known = classifier.labels.entity_types
    if not isinstance(per_label, dict) or not all(isinstance(name, str | None) for name in per_label.values()):
        raise RequestError(400, "per_label must be an object of label: operator, null to leave the label as it is")
    for label in per_label:
        if label not in known:
            raise RequestError(400, f"per_label has {label!r}; the model's labels are {', '.join(known)}")
    return MaskingRules(
        operator=body.string("operator") or "replace",
        per_label=per_label,
        allow_list=body.strings("allow_list") or (),
        threshold=body.number("threshold", 0.0),
        keep=body.number("keep", 0),  # type: ignore[arg-type]
        keep_from=body.string("keep_from") or "end",
        mask_char=body.string("mask_char") or "*",
        key=body.string("key"),
        join=body.integer("join"),
        whole_words=body.boolean("whole_words"),
    )
