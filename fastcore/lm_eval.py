"""fastcore as a model of the lm-eval harness, which finds it by its entry point:

    lm_eval --model fastcore --model_args pretrained=FOLDER --tasks ...

Releases of lm-eval that do not look for entry points are started through this module, with the same options:

    python -m fastcore.lm_eval --model fastcore --model_args pretrained=FOLDER --tasks ...
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastcore.engine.loglikelihood import encode_pair
from fastcore.engine.sampling_params import SamplingParams
from fastcore.errors import MissingPackageError
from fastcore.llm import LLM

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import MODEL_REGISTRY, register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError as error:
    raise MissingPackageError("lm-eval is not installed: pip install 'fastcore-engine[eval]'") from error

__all__ = ["FastcoreLM", "main"]

MAX_NEW_TOKENS = 256
BATCH = 64  # requests between two movements of the progress bar
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

Pair = tuple[list[int], list[int]]


class FastcoreLM(LM):  # type: ignore[misc, unused-ignore]
    """pretrained, dtype, num_threads, max_seq_len, kv_dtype: as for LLM.

    max_gen_toks: new tokens where a task does not say. batch_size, max_batch_size and device are what lm-eval hands to
    every model, and change nothing: fastcore sizes its own steps, on the CPU.
    """

    def __init__(
        self,
        pretrained: str,
        dtype: str = "auto",
        num_threads: int | None = None,
        max_seq_len: int | None = None,
        kv_dtype: str = "f32",
        max_gen_toks: int = MAX_NEW_TOKENS,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.llm = LLM(pretrained, dtype=dtype, num_threads=num_threads, max_seq_len=max_seq_len, kv_dtype=kv_dtype)
        start_id = self.llm.start_token_id
        if start_id is None:
            raise ValueError("the model has no beginning- or end-of-sequence token for a text to start from")
        self._start_id = start_id
        self._start_text = self.llm.tokenizer.decode([start_id], skip_special_tokens=False)
        self._name = pretrained
        self._max_gen_toks = max_gen_toks

    # ---------------------------------------------------------------- scores

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Each request's args are (context, continuation). What exceeds the context is cut off on the left."""
        pairs = [
            encode_pair(self.llm.tokenizer, context, continuation, self._start_id, self._adds_special(context))
            for context, continuation in (request.args for request in requests)
        ]
        results: list[tuple[float, bool]] = []
        for batch in self._batches(pairs, disable_tqdm):
            results += self.llm.loglikelihood([self._cut(pair) for pair in batch])
        self._cache("loglikelihood", requests, results)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Each request's args are (text,): the sum of the logprobs of all its tokens."""
        windows: list[Pair] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            ids = self._encode(request.args[0])
            found = get_rolling_token_windows(ids, self._start_id, self.llm.max_seq_len, context_len=1)
            windows += map(make_disjoint_window, found)
            owners += [i] * (len(windows) - len(owners))
        results = [0.0] * len(requests)
        scores = (score for batch in self._batches(windows, disable_tqdm) for score, _ in self.llm.loglikelihood(batch))
        for i, score in zip(owners, scores, strict=True):
            results[i] += score
        self._cache("loglikelihood_rolling", requests, results)
        return results

    def _cut(self, pair: Pair) -> Pair:
        """The pair without the first tokens, where there are more than the context holds."""
        context, continuation = pair
        excess = len(context) + len(continuation) - 1 - self.llm.max_seq_len
        if excess <= 0:
            return pair
        if excess >= len(context):
            longest = self.llm.max_seq_len
            raise ValueError(f"a continuation of {len(continuation)} tokens exceeds the context of {longest}")
        return context[excess:], continuation

    # ---------------------------------------------------------------- text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Each request's args are (context, options): `until`, max_gen_toks and options of SamplingParams."""
        groups: dict[str, list[int]] = {}  # requests with the same options run together
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        results = [""] * len(requests)
        for members in groups.values():
            params = self._sampling(requests[members[0]].args[1])
            assert params.max_tokens is not None
            room = self.llm.max_seq_len - params.max_tokens
            if room < 1:
                raise ValueError(f"{params.max_tokens} new tokens leave no room for a prompt of {self.llm.max_seq_len}")
            for batch in self._batches(members, disable_tqdm):
                prompts = [self._encode(requests[i].args[0])[-room:] or [self._start_id] for i in batch]
                for i, completion in zip(batch, self.llm.generate(prompts, params), strict=True):
                    results[i] = completion.text
        self._cache("generate_until", requests, results)
        return results

    def _sampling(self, options: Mapping[str, Any]) -> SamplingParams:
        given = dict(options)
        lengths = [given.pop(name, None) for name in _LENGTHS]
        stop = given.pop("until", None) or []
        samples = given.pop("do_sample", None)
        if samples is None:
            samples = bool(given.get("temperature"))
        given["temperature"] = given.get("temperature", 1.0) if samples else 0.0
        return SamplingParams(
            max_tokens=next((length for length in lengths if length is not None), self._max_gen_toks),
            stop=[stop] if isinstance(stop, str) else [text for text in stop if text],
            **given,
        )

    # ---------------------------------------------------------------- chat templates

    @property
    def tokenizer_name(self) -> str:
        """Tells lm-eval's cached requests of one tokenizer from those of another."""
        return self._name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the template that `apply_chat_template` renders, for the record."""
        templates = self.llm.tokenizer.chat_templates
        return templates.get("default") if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation; without a generation prompt it ends with the last message's own text."""
        text = self.llm.tokenizer.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)
        if not add_generation_prompt:
            last = chat_history[-1]["content"].strip()
            text = text[: text.rindex(last) + len(last)]
        return text

    # ---------------------------------------------------------------- shared

    def _adds_special(self, text: str) -> bool:
        """Whether the tokenizer's rule applies: not to a text that a chat template has already begun."""
        return not text.startswith(self._start_text)

    def _encode(self, text: str) -> list[int]:
        return self.llm.tokenizer.encode(text, add_special_tokens=self._adds_special(text))

    def _batches(self, items: Sequence[Any], disable_tqdm: bool) -> Iterator[Sequence[Any]]:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        with tqdm(total=len(items), disable=disable_tqdm or None) as bar:
            for start in range(0, len(items), BATCH):
                yield items[start : start + BATCH]
                bar.update(min(BATCH, len(items) - start))

    def _cache(self, kind: str, requests: Sequence[Any], results: Sequence[Any]) -> None:
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial(kind, request.args, result)


def main() -> None:
    """The lm_eval command, with this model among those that it knows."""
    from lm_eval.__main__ import cli_evaluate

    if "fastcore" not in MODEL_REGISTRY:
        register_model("fastcore")(FastcoreLM)
    cli_evaluate()


if __name__ == "__main__":
    main()
