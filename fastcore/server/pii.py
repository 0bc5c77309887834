"""The endpoints of a token classifier: /v1/scoring, its numbers token by token; /v1/pii, entities and masked texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fastcore.classify import OFFSETS, Classification, TokenClassifier, TokenScores
from fastcore.pii.masking import MaskingOptions, MaskingRules
from fastcore.server.answers import RequestError, json_bytes, json_response
from fastcore.server.endpoint import Handler, Room, collect
from fastcore.server.limits import RequestLimits

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["PiiService"]

ROWS = 1024  # of numbers that become text at once


class ScoringFields(msgspec.Struct):
    """The body of /v1/scoring."""

    model: str | None = None
    sequences: list[str] | None = None


class FindFields(ScoringFields):
    """The body of /v1/pii: the texts, and the options of masking."""

    offsets: str | None = None
    operator: str | None = None
    per_label: dict[str, str | None] | None = None
    allow_list: list[str] | None = None
    threshold: float | None = None
    keep: int | None = None
    keep_from: str | None = None
    mask_char: str | None = None
    key: str | None = None
    join: int | None = None
    whole_words: bool | None = None


class PiiService:
    """Scores, entities and masks of one token classifier."""

    def __init__(self, classifier: TokenClassifier, limits: RequestLimits) -> None:
        self.classifier = classifier
        self._limits = limits
        self.room = Room(limits.max_requests)

    @property
    def tokenizer(self) -> "Tokenizer":
        return self.classifier.tokenizer

    @property
    def max_seq_len(self) -> int:
        return self.classifier.max_seq_len

    def status(self) -> dict[str, float]:
        return {"active_requests": self.room.taken}

    def facts(self) -> dict[str, Any]:
        return {"max_model_len": self.classifier.max_seq_len}

    def stop(self) -> None:
        """Each request does its own work, which ends with it."""

    def close(self) -> None:
        """No work is left when the requests are."""

    async def scoring(self, request: Request, fields: ScoringFields, model: str) -> Response:
        """{"sequences": [text, ...]} -> token_ids, pruning_scores [tokens][labels], ranking_scores [1], windows.

        Scores are logits. ranking_scores of a model without a sensitivity head are empty lists. windows: in how many
        parts a text was read; the numbers of more than one part are not those of one pass.
        """
        texts = self._texts(fields)
        room = self._limits.max_scored_tokens

        def check(scores: TokenScores) -> None:
            nonlocal room
            room -= len(scores.token_ids)
            if room < 0:
                raise RequestError(
                    400,
                    f"the texts have more than {self._limits.max_scored_tokens} tokens together; send fewer at once",
                    param="sequences",
                )

        with self.room.place():
            scores = await collect(request, self.classifier.score(iter(texts)), self.room.threads, check)
            return await anyio.to_thread.run_sync(_scoring_response, scores)

    async def find(self, request: Request, fields: FindFields, model: str) -> Response:
        """{"sequences": [text, ...]} -> {"results": [...]}: entities, masked_text and sensitivity of each text.

        Options are those of masking (operator, per_label, allow_list, threshold, keep, keep_from, mask_char, key, join,
        whole_words), and offsets: code_points (default), utf8, or utf16 as JavaScript counts. The operator placeholder
        adds mapping.
        """
        texts = self._texts(fields)
        offsets = fields.offsets or "code_points"
        if offsets not in OFFSETS:
            raise RequestError(
                400, f"offsets is {offsets!r:.80}; expected one of {', '.join(OFFSETS)}", param="offsets"
            )
        rules = self._rules(fields)
        with self.room.place():
            results = await collect(request, self.classifier(iter(texts)), self.room.threads)
            return await anyio.to_thread.run_sync(_find_response, results, rules, offsets)

    def _texts(self, fields: ScoringFields) -> list[str]:
        texts = fields.sequences
        if not texts:
            what, code = ("missing", "missing_required_parameter") if texts is None else ("empty", None)
            message = f"sequences is {what}; expected a list of one or more texts"
            raise RequestError(400, message, code=code, param="sequences")
        self.check(texts, "sequences")
        return texts

    def check(self, texts: Sequence[str], name: str) -> None:
        """Raise RequestError for more or longer texts of a field than are read in one request."""
        if len(texts) > self._limits.max_texts:
            message = f"{name} has {len(texts)} texts; expected at most {self._limits.max_texts}"
            raise RequestError(400, message, param=name)
        for i, text in enumerate(texts):
            if len(text) > self._limits.max_text_chars:
                message = f"{name}[{i}] has {len(text)} characters; expected at most {self._limits.max_text_chars}"
                raise RequestError(400, message, param=name)

    def _rules(self, fields: FindFields) -> MaskingRules:
        known = self.classifier.labels.entity_types
        for label in fields.per_label or {}:
            if label not in known:
                message = f"per_label has {label!r:.80}; the model's labels are {', '.join(known)}"
                raise RequestError(400, message, param="per_label")
        names = ("operator", *MaskingOptions.__annotations__)
        options: dict[str, Any] = {name: value for name in names if (value := getattr(fields, name)) is not None}
        return MaskingRules(**options | {"allow_list": frozenset(fields.allow_list or ())})

    handlers: ClassVar[dict[str, Handler[Any]]] = {
        "/v1/scoring": Handler(ScoringFields, scoring),
        "/v1/pii": Handler(FindFields, find),
    }


def _scoring_response(results: list[TokenScores]) -> Response:
    """The numbers become text a few at a time, as they take much room in between."""
    rest = {
        "token_ids": [scores.token_ids for scores in results],
        "ranking_scores": [
            [] if scores.sensitivity_logit is None else [scores.sensitivity_logit] for scores in results
        ],
        "windows": [len(scores.windows) for scores in results],
    }
    parts = [json_bytes(rest)[:-1], b',"pruning_scores":[']
    for i, scores in enumerate(results):
        parts.append(b",[" if i else b"[")
        for start in range(0, len(scores.logits), ROWS):
            rows = json_bytes(scores.logits[start : start + ROWS].tolist())
            parts += [b"," if start else b"", rows[1:-1]]
        parts.append(b"]")
    parts.append(b"]}")
    return Response(b"".join(parts), media_type="application/json")


def _find_response(results: Iterable[Classification], rules: MaskingRules, offsets: str) -> Response:
    answers = []
    for result in results:
        masked = result.mask(rules)
        answer = {**result.to_dict(offsets), "masked_text": masked.text}
        answers.append(answer | ({"mapping": masked.mapping} if masked.mapping else {}))
    return json_response({"results": answers})
