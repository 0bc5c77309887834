"""Mask, generate, unmask: what a classifier finds in a chat is replaced before a language model reads it.

The model sees placeholders, and where its answer has one, the original stands there instead.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio.to_thread
from starlette.requests import Request

from fastcore.classify import Classification
from fastcore.locks import cached_property
from fastcore.pii.masking import MaskingRules, unmask
from fastcore.server.answers import RequestError
from fastcore.server.endpoint import collect
from fastcore.server.pii import PiiService
from fastcore.server.served import ServedModel, ServedModels
from fastcore.text.messages import prepare_messages
from fastcore.text.replies import Reply

__all__ = ["Guard", "Masking"]

RULES = MaskingRules("placeholder", whole_words=True)
TEXTS = ("content", "reasoning_content", "name")  # of a message, which are masked
UNMASKED = ("role", "tool_call_id")
BETWEEN = "\n"  # texts, when they are masked as one, so that a value has one placeholder in all


@dataclass(frozen=True)
class Masking:
    """Masked texts. mapping: placeholder -> original; items: what was found, without its text."""

    texts: Sequence[str]
    mapping: Mapping[str, str] = field(repr=False)
    items: Sequence[Mapping[str, Any]]
    model: str

    def reveal(self, reply: Reply, is_whole: bool, is_json: bool) -> Reply:
        """A reply with the originals back. Of one that goes on, what comes later is only added at its ends.

        is_json: its content is JSON, as the arguments of calls are, so that originals are escaped.
        """
        return Reply(
            _revealed(reply.reasoning, self.mapping, is_whole),
            _revealed(reply.content, self._escaped if is_json else self.mapping, is_whole),
            tuple(call._replace(arguments=_revealed(call.arguments, self._escaped, is_whole)) for call in reply.calls),
        )

    @cached_property
    def _escaped(self) -> Mapping[str, str]:
        """The mapping for texts that are JSON."""
        return {placeholder: json.dumps(text, ensure_ascii=False)[1:-1] for placeholder, text in self.mapping.items()}

    def facts(self) -> dict[str, Any]:
        return {"model": self.model, "items": list(self.items)}


def _revealed(text: str, mapping: Mapping[str, str], is_whole: bool) -> str:
    """Without an end that may begin a placeholder, where the text goes on."""
    if not is_whole and (start := text.rfind("[")) >= 0:  # which all placeholders begin with, and none has twice
        tail = text[start:]
        if any(len(tail) < len(known) and known.startswith(tail) for known in mapping):
            text = text[:start]
    return unmask(text, mapping)


@dataclass(frozen=True)
class Guard:
    """Masks by one of the served classifiers. is_always: every chat is masked, asked for or not."""

    models: Callable[[], ServedModels]
    classifier: ServedModel
    is_always: bool = False

    async def masked(self, http: Request, texts: Sequence[str]) -> Masking:
        models = self.models()
        service = cast(PiiService, await models.acquire(self.classifier))
        try:
            service.check(texts, "messages")
            with service.room.place():
                found = await collect(http, service.classifier(iter(texts)), service.room.threads)
                return await anyio.to_thread.run_sync(_masked, found, self.classifier.names[0])
        finally:
            models.release(self.classifier)

    async def masked_messages(
        self, http: Request, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Masking]:
        """A conversation with the texts of its messages masked. Raises RequestError where there is more than texts."""
        prepared = prepare_messages(list(messages))
        for i, message in enumerate(prepared):
            for name, value in message.items():  # a template may read any of them
                if value and name not in UNMASKED and not (name in TEXTS and isinstance(value, str)):
                    told = f"messages[{i}] has {name!r:.80}; only texts can be masked: {', '.join(TEXTS)}"
                    raise RequestError(400, told, param="messages")
        places = [(i, name) for i, message in enumerate(prepared) for name in TEXTS if message.get(name)]
        masking = await self.masked(http, [prepared[i][name] for i, name in places])
        for (i, name), text in zip(places, masking.texts, strict=True):
            prepared[i][name] = text
        items = []
        for item in masking.items:
            i, name = places[item["index"]]
            rest = {key: value for key, value in item.items() if key != "index"}
            items.append({"message": i, "field": name, **rest})
        return prepared, replace(masking, items=items)


def _masked(found: Sequence[Classification], model: str) -> Masking:
    """Texts that are masked as one, and cut apart again."""
    starts, length, entities = [], 0, []
    for each in found:
        each.check_covered()
        starts.append(length)
        entities += [replace(entity, start=entity.start + length, end=entity.end + length) for entity in each.entities]
        length += len(each.text) + len(BETWEEN)
    whole = RULES.mask(BETWEEN.join(each.text for each in found), entities)
    texts, items = [], []
    left, shift = list(whole.items), 0  # shift: how much longer the masked text is up to here
    for index, (each, start) in enumerate(zip(found, starts, strict=True)):
        end, first = start + len(each.text), start + shift
        while left and left[0].end <= end:
            item = left.pop(0)
            shift = item.masked_end - item.end
            items.append(
                {
                    "index": index, "label": item.label, "start": item.start - start, "end": item.end - start,
                    "score": item.score, "placeholder": item.replacement,
                }
            )  # fmt: skip
        texts.append(whole.text[first : end + shift])
    return Masking(texts, whole.mapping, items, model)
