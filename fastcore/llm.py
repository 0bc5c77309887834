"""The Python API: a language model loaded for generation, logits and loglikelihood."""

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.open import ModelPath, opened
from fastcore.engine import loglikelihood as loglikelihoods
from fastcore.engine.completion import Chunk, Completion, chunks, completion
from fastcore.engine.drafts import Drafts
from fastcore.engine.holder import ModelHolder, is_whole
from fastcore.engine.request import Request
from fastcore.engine.sampling import Sampler
from fastcore.engine.sampling_params import SamplingOptions, SamplingParams, check_speculate
from fastcore.engine.scheduler import Results, Scheduler
from fastcore.engine.state import StatePool
from fastcore.engine.text_stream import NoText, TextStream
from fastcore.errors import ChatTemplateError, ContextLengthError, UnsupportedModelError
from fastcore.locks import cached_property
from fastcore.models import Model, load_model
from fastcore.text import chat_template
from fastcore.text.grammars import Grammars
from fastcore.text.prompts import (
    Message,
    Prompt,
    TokenIds,
    are_conversations,
    checked_ids,
    is_list,
    is_single,
    unwrapped,
)
from fastcore.threads import resolve_num_threads

if TYPE_CHECKING:
    from fastcore.text.tokenizer import Tokenizer

__all__ = ["LLM", "Completion", "LLMOptions"]

DEFAULT_MAX_TOKENS = 256
ADDRESS_BYTES = 1 << 47  # that a process can address
KV_CACHE_BYTES = 4 << 30  # by default, or a quarter of the machine's memory where that is less

NO_SPECULATION = (
    "speculate is ngram, and this model has recurrent state, which cannot go back from a wrong guess; leave it off"
)

Array = NDArray[np.float32]


class LLMOptions(TypedDict, total=False):
    """How to load and run a language model.

    dtype: auto (weights as stored; bf16 where they are quantised), the default | f32 | bf16 | f16 | int8 | int4.
    num_threads: None, the default, is the physical cores that affinity and container quota leave.
    max_seq_len: longest prompt and output together; None, the default, is the model's own.
    kv_cache_bytes: cap of the KV cache, which grows only as it is used; None, the default, is 4 GiB, or a quarter of
    the machine's memory where that is less.
    kv_dtype: f32, the default | f16 | int8.
    prefix_cache: whether what was computed of earlier texts is kept, under the same cap, for those that begin alike;
    True, the default. Results are the same bits.
    speculate: ngram guesses tokens from the text so far, which makes texts that repeat themselves or the prompt faster
    and changes no token | off, the default. Not for models with recurrent state, which cannot go back.
    """

    dtype: str
    num_threads: int | None
    max_seq_len: int | None
    kv_cache_bytes: int | None
    kv_dtype: str
    prefix_cache: bool
    speculate: str | None


class LLM(ModelHolder):
    """A language model on this machine's CPU.

    model: a folder, a .gguf or .fh1w file, a hub id or a named model; None is the default model. Or a checkpoint that
    is open already. Without a tokenizer it takes and gives token ids, and an error says what is missing for text.
    options: dtype, num_threads, max_seq_len, kv_cache_bytes, kv_dtype, prefix_cache and speculate, as
    LLMOptions says.

    Safe to use from several threads: their requests run as one batch, and each gets the result it would get alone.
    `close()`, or the end of `with LLM(...) as llm`, frees its memory.
    """

    _held: ClassVar[tuple[str, ...]] = ("model", "pool", "_scheduler", "_tokenizer", "_grammars")

    def __init__(self, model: ModelPath | Checkpoint | None = None, **options: Unpack[LLMOptions]) -> None:
        from fastcore.sources.resolve import resolve
        from fastcore.text.tokenizer import Tokenizer

        _check_options(options)
        threads = options["num_threads"] = resolve_num_threads(options.get("num_threads"))
        with opened(model if isinstance(model, Checkpoint) else resolve(model)) as checkpoint:
            loaded = load_model(checkpoint, options.get("dtype", "auto"), threads)
            tokenizer = Tokenizer.of(checkpoint)
        self._start(loaded, tokenizer, checkpoint.path, options)

    @classmethod
    def from_model(cls, model: Model, tokenizer: "Tokenizer | None", **options: Unpack[LLMOptions]) -> "LLM":
        """An LLM around a model that is already loaded, whose dtype is settled. Its weights are shared."""
        _check_options(options, without="dtype")
        llm = cls.__new__(cls)
        llm._start(model, tokenizer, Path(), options)
        return llm

    def _start(self, model: Model, tokenizer: "Tokenizer | None", path: Path, options: LLMOptions) -> None:
        config = model.config
        if config.is_token_classifier:
            name = ", ".join(config.architectures) or config.model_type
            raise UnsupportedModelError(f"{name} classifies tokens; open it with fastcore.TokenClassifier")
        longest, max_seq_len = config.context_length, options.get("max_seq_len")
        if max_seq_len is not None and not is_whole(max_seq_len, 1, longest):
            raise ValueError(f"max_seq_len is {max_seq_len!r}; expected a whole number from 1 to the model's {longest}")
        kv_cache_bytes = options.get("kv_cache_bytes")
        if kv_cache_bytes is None:
            kv_cache_bytes = min(KV_CACHE_BYTES, _memory_bytes() // 4)
        if not is_whole(kv_cache_bytes, 0, ADDRESS_BYTES):
            raise ValueError(f"kv_cache_bytes is {kv_cache_bytes!r}; expected a whole number from 0 to {ADDRESS_BYTES}")
        self._speculate = check_speculate("speculate", options.get("speculate"))
        self.config = config
        self.model = model
        self.num_threads = resolve_num_threads(options.get("num_threads"))
        self.pool = StatePool(model, kv_cache_bytes, options.get("kv_dtype", "f32"))
        if self._speculate == "ngram" and self.pool.state_blocks:
            raise UnsupportedModelError(NO_SPECULATION)
        self.max_seq_len = min(max_seq_len or longest, self.pool.max_positions)
        self._scheduler = Scheduler(model, self.pool, self.num_threads, options.get("prefix_cache", True))
        self._tokenizer = tokenizer
        self._path = path
        endings = () if tokenizer is None else tokenizer.eos_token_ids
        self.eos_token_ids = tuple(dict.fromkeys([*config.eos_token_ids, *endings]))

    @property
    def tokenizer(self) -> "Tokenizer":
        """CheckpointError where the checkpoint has none."""
        if self._tokenizer is None:
            from fastcore.text.tokenizer import missing_tokenizer

            raise missing_tokenizer(self._path)
        return self._tokenizer

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.config.vocab_size, self.eos_token_ids)

    # ---------------------------------------------------------------- generation

    @overload
    def generate(  # type: ignore[overload-overlap]  # a string is a sequence of strings
        self, prompts: Prompt, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """Complete a prompt (text or token ids), or each prompt of a list, as one batch.

        A prompt may also be {"prompt": text} or {"prompt_token_ids": ids}.

        params: all options, of a list of prompts also a list of as many; keywords, which are the fields of
        SamplingParams, replace them one by one. Without max_tokens at most 256 new tokens come, fewer where the context
        ends. Greedy unless a temperature is given.
        Returns a Completion, or a list of them for a list; with n > 1 (which the types do not tell), a list of n for
        each prompt. Raises ContextLengthError for a prompt beyond max_seq_len, ValueError for an empty one
        or a list of params of another length, NonFiniteError where the model's logits are not numbers.
        """
        batch, is_one = self._batch(prompts)
        every = _params_of_each(params, options, len(batch), None if is_one else "prompts")
        results = self._complete(batch, every)
        return results[0] if is_one else results

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Generator[Chunk, None, None]:
        """Complete a prompt piece by piece; options as in generate. Closing the iterator stops the work."""
        params = _with_options(params, options)
        if not isinstance(prompt, str) and is_list(prompt) and any(map(is_list, prompt)):
            raise TypeError("a stream completes one prompt; generate takes a list of them")
        return self._stream(self._prompt_ids(prompt), params)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        split_reasoning: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        split_reasoning: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> list[Completion]: ...
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        split_reasoning: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """Answer messages [{"role": ..., "content": ...}, ...], or each conversation of a list of them, as one batch.

        The checkpoint's own chat template makes the prompt. tools and template_kwargs go to it (for example
        {"enable_thinking": False}). allow_special_tokens: the text of a special token in a message is that token, and
        no longer mere text. split_reasoning: what the model thinks between <think> and </think> becomes
        `Completion.reasoning`, and `text` is the answer alone. params, options and what is returned are those of
        generate. Raises ChatTemplateError for messages that are malformed, or that the template refuses.
        """
        are_several = are_conversations(messages)
        batch: Sequence[Any] = messages if are_several else [messages]
        every = _params_of_each(params, options, len(batch), "conversations" if are_several else None)
        prompts = []
        for i, conversation in enumerate(batch):
            try:
                prompts.append(
                    self.tokenizer.chat_prompt(conversation, True, tools, template_kwargs, allow_special_tokens)
                )
            except ChatTemplateError as error:
                if not are_several:
                    raise
                raise ChatTemplateError(f"conversations[{i}]: {error}") from error
        answers = self._complete([ids for _, ids in prompts], every)
        if split_reasoning:
            answers = [_split(answer, text) for answer, (text, _) in zip(answers, prompts, strict=True)]
        return answers if are_several else answers[0]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        allow_special_tokens: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> Generator[Chunk, None, None]:
        """chat, piece by piece."""
        params = _with_options(params, options)
        ids = self.tokenizer.encode_chat(
            messages, tools=tools, template_kwargs=template_kwargs, allow_special_tokens=allow_special_tokens
        )
        return self._stream(ids, params)

    def _complete(self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Any]:
        """Of each prompt a Completion, or with n > 1 a list of them."""
        pairs = [
            [self._request(ids, each, i) for i in range(each.n)] for ids, each in zip(prompts, params, strict=True)
        ]
        requests = [request for row in pairs for request, _ in row]
        for _ in self._scheduler.run(requests):
            pass
        for request in requests:
            if request.error is not None:
                raise request.error
        for row in pairs:
            for _, text in row:
                text.finish()
        results = [[completion(request, text.text) for request, text in row] for row in pairs]
        return [row if each.n > 1 else row[0] for row, each in zip(results, params, strict=True)]

    def _stream(self, token_ids: list[int], params: SamplingParams) -> Generator[Chunk, None, None]:
        if params.n != 1:
            raise ValueError(f"n is {params.n}; a stream has one completion")
        request, text = self._request(token_ids, params, 0)
        return chunks(self._scheduler, request, text)

    def _request(self, token_ids: list[int], params: SamplingParams, seed_offset: int) -> tuple[Request, TextStream]:
        room = self.max_seq_len - len(token_ids)
        if room < 0:
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens and the context holds {self.max_seq_len}; shorten the prompt"
                + (" or raise max_seq_len" if self.max_seq_len < self.config.context_length else "")
            )
        wanted = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        endings = {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}
        constraint = None if params.held_to is None else self._grammars.constraint(*params.held_to)
        sampler = Sampler(params, self.config.vocab_size, token_ids, tuple(endings), seed_offset, constraint)
        if self._tokenizer is None and not params.stop:
            text: TextStream = NoText(endings)
        else:
            text = TextStream(self.tokenizer, token_ids, tuple(params.stop), endings)
        speculates = (params.speculate or self._speculate) == "ngram"
        if speculates and self.pool.state_blocks:
            raise ValueError(NO_SPECULATION)
        drafts = Drafts(token_ids) if speculates else None
        request = Request(tuple(token_ids), params, sampler, min(wanted, room), frozenset(endings), text.push, drafts)
        return request, text

    def _batch(self, prompts: Any) -> tuple[list[list[int]], bool]:
        """Token ids of each prompt of a list; or of a single prompt, and True."""
        if is_single(prompts):
            return [self._prompt_ids(prompts)], True
        return [self._prompt_ids(prompt) for prompt in prompts], False

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        prompt = unwrapped(prompt)
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            if not ids and self.config.bos_token_id is not None:
                ids = [self.config.bos_token_id]
            if not ids:
                raise ValueError("the prompt is empty, and this model has no beginning-of-sequence token to start from")
            return ids
        ids = checked_ids(prompt, self.config.vocab_size)
        if not ids:
            raise ValueError("the prompt has no tokens")
        return ids

    # ---------------------------------------------------------------- logits

    @overload
    def logits(self, token_ids: TokenIds) -> Array: ...
    @overload
    def logits(self, token_ids: Sequence[TokenIds]) -> list[Array]: ...
    def logits(self, token_ids: TokenIds | Sequence[TokenIds]) -> Array | list[Array]:
        """Logits at every position, f32 [num_tokens, vocab_size]; for a list of sequences, a list of such arrays.

        The sequences of a list may differ in length; they share steps, and each gets the logits it would get alone.
        """
        batch, is_one = self._batch(token_ids)
        results = loglikelihoods.logits(self._scheduler, batch, self.max_seq_len)
        return results[0] if is_one else results

    # ---------------------------------------------------------------- scoring

    @overload
    def loglikelihood(self, context: Prompt, continuation: Prompt) -> tuple[float, bool]: ...
    @overload
    def loglikelihood(self, context: Sequence[tuple[Prompt, Prompt]]) -> list[tuple[float, bool]]: ...
    def loglikelihood(
        self, context: Prompt | Sequence[tuple[Prompt, Prompt]], continuation: Prompt | None = None
    ) -> tuple[float, bool] | list[tuple[float, bool]]:
        """How probable a continuation is: (sum of the logprobs of its tokens, whether greedy decoding would write it).

        Both are texts, or both lists of token ids. Texts are encoded together and cut where the context's own encoding
        ends; trailing whitespace of the context counts as part of the continuation, and an empty context is the
        model's beginning-of-sequence (else end-of-sequence) token. A list of (context, continuation) pairs gives a
        list, computed as one batch. Raises ContextLengthError where both do not fit the context.
        """
        given: Any = context if continuation is None else [(context, continuation)]
        for pair in given:
            if isinstance(pair, str | bytes) or not is_list(pair) or len(pair) != 2:
                raise TypeError(f"expected a context and a continuation, or a list of such pairs; found {pair!r:.100}")
        pairs = [self._pair(*pair) for pair in given]
        scores = loglikelihoods.loglikelihoods(self._scheduler, pairs, self.max_seq_len)
        return scores if continuation is None else scores[0]

    @property
    def start_token_id(self) -> int | None:
        """The token that stands before a text that nothing precedes: beginning-of-sequence, else end-of-sequence."""
        bos = self.config.bos_token_id
        return bos if bos is not None else next(iter(self.eos_token_ids), None)

    def _pair(self, context: Prompt, continuation: Prompt) -> tuple[Sequence[int], Sequence[int]]:
        context, continuation = unwrapped(context), unwrapped(continuation)
        if isinstance(context, str) and isinstance(continuation, str):
            return loglikelihoods.encode_pair(self.tokenizer, context, continuation, self.start_token_id)
        if isinstance(context, str) or isinstance(continuation, str):
            raise TypeError("context and continuation are both text, or both lists of token ids")
        vocab = self.config.vocab_size
        return checked_ids(context, vocab), checked_ids(continuation, vocab)

    def perplexity(
        self, text: Prompt, *, stride: int | None = None, window: int | None = None, progress: bool = False
    ) -> float:
        """exp of the mean negative logprob of a text's tokens (or of token ids), each given the tokens before it.

        The first token is not predicted; whether it is a beginning-of-sequence token is the tokenizer's rule. The model
        sees up to `window` tokens at a time (None: max_seq_len): the first window scores all of its tokens, each later
        one the next `stride` tokens (None: window). progress: show a bar.
        """
        window = self.max_seq_len if window is None else window
        stride = window if stride is None else stride
        ids = self._prompt_ids(text)
        return loglikelihoods.perplexity(self._scheduler, ids, window, stride, self.max_seq_len, progress)

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: str = "mean", normalize: bool = True
    ) -> NDArray[np.float32]:
        """Vectors of texts (or lists of token ids): f32 [num_texts, hidden_size], of a single one [hidden_size].

        They come from the hidden states after the last norm. pooling: mean (over all positions) | last (the last
        position). normalize: to length 1.
        """
        batch, is_one = self._batch(texts)
        vectors = np.empty((len(batch), self.config.hidden_size), np.float32)
        for i, vector in enumerate(self._embeddings(batch, pooling, normalize)):
            vectors[i] = vector
        return vectors[0] if is_one else vectors

    def _embeddings(self, token_lists: Sequence[list[int]], pooling: str, normalize: bool) -> Results[Array]:
        return loglikelihoods.embeddings(self._scheduler, token_lists, self.max_seq_len, pooling, normalize)


def _split(reply: Any, prompt: str) -> Any:
    """A completion, or a list of them, with what was thought apart from what is answered."""
    if isinstance(reply, list):
        return [_split(each, prompt) for each in reply]
    reasoning, answer = chat_template.split_reasoning(reply.text, opened=prompt.rstrip().endswith("<think>"))
    return replace(reply, text=answer, reasoning=reasoning)


def _params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, options: SamplingOptions, count: int, several: str | None
) -> list[SamplingParams]:
    """Params of `count` prompts. several: what they are called; None for a single one."""
    if not isinstance(params, Sequence):
        return [_with_options(params, options)] * count
    if several is None or len(params) != count:
        wanted = "one prompt takes one" if several is None else f"{count} {several} take as many, or one"
        raise ValueError(f"params is a list of {len(params)}; {wanted}")
    return [_with_options(each, options) for each in params]


def _with_options(params: SamplingParams | None, options: SamplingOptions) -> SamplingParams:
    """params with the given options in place of its fields; an unknown one is a TypeError."""
    if params is not None and not isinstance(params, SamplingParams):
        raise TypeError(f"params is {type(params).__name__}; expected SamplingParams")
    return (params or SamplingParams()).replace(**{name: value for name, value in options.items() if value is not None})


def _check_options(options: LLMOptions, without: str = "") -> None:
    known = [name for name in LLMOptions.__annotations__ if name != without]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r}; known: {', '.join(known)}")


def _memory_bytes() -> int:
    """Of the machine, or of the address space that the process may have."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 4 * KV_CACHE_BYTES
    try:
        import resource
    except ImportError:  # not a Unix system
        return memory
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return memory if limit == resource.RLIM_INFINITY else min(memory, limit)
