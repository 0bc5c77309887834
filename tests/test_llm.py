"""The Python API on tiny models: results against logits and solo runs, limits, refusals, and use after them."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tolerances
from oracle import qwen2
from safetensors.numpy import load_file
from tiny import make_prompt, tiny_checkpoint, write_safetensors

import fastcore
from fastcore import LLM, ContextLengthError, NonFiniteError, SamplingParams
from fastcore.engine.state import SequenceState

FAMILIES = ("qwen2", "llama", "qwen3", "falcon_h1")


@pytest.fixture(scope="module")
def llm(tiny_folder) -> LLM:
    return LLM(tiny_folder("qwen2"), num_threads=2)


def greedy_by_logits(llm: LLM, prompt: list[int], n: int) -> list[int]:
    """The argmax of fresh all-position logits, token by token: nothing is cached."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(llm.logits(ids)[-1].argmax()))
        if ids[-1] in llm.eos_token_ids:
            break
    return ids[len(prompt) :]


# ---------------------------------------------------------------- generation


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_the_argmax_of_the_logits(tiny_folder, family: str) -> None:
    llm = LLM(tiny_folder(family))
    prompt = make_prompt(9)
    assert llm.generate([prompt], max_tokens=12)[0].token_ids == greedy_by_logits(llm, prompt, 12)


@pytest.mark.case("G05")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_gives_each_prompt_its_solo_result(tiny_folder, family: str) -> None:
    """Prompts of 1, 7 and 20 tokens, one with end-of-sequence tokens inside; rows that finish early touch no others."""
    llm = LLM(tiny_folder(family))
    eos = llm.eos_token_ids[0]
    prompts = [make_prompt(1), make_prompt(7), [*make_prompt(10), eos, eos, *make_prompt(8, seed=3)]]
    solo = [llm.generate([prompt], max_tokens=16)[0] for prompt in prompts]
    batch = llm.generate(prompts, max_tokens=16)
    assert [one.token_ids for one in batch] == [one.token_ids for one in solo]
    assert [one.text for one in batch] == [one.text for one in solo]
    sampled = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=12, logprobs=2)
    solo = [llm.generate([prompt], sampled)[0] for prompt in prompts]
    batch = llm.generate(prompts, sampled)
    assert [(one.token_ids, one.logprobs) for one in batch] == [(one.token_ids, one.logprobs) for one in solo]


@pytest.mark.case("G06")
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_that_extend_shorten_and_change_each_other(tiny_folder, family: str) -> None:
    folder = tiny_folder(family)
    shared, base = LLM(folder), make_prompt(19)
    for prompt in ([*base, *make_prompt(6, seed=2)], base, base, [*base[:-1], (base[-1] + 1) % 256]):
        assert (
            shared.generate([prompt], max_tokens=5)[0].token_ids
            == LLM(folder).generate([prompt], max_tokens=5)[0].token_ids
        )


def test_the_stream_is_the_completion_in_pieces(llm: LLM) -> None:
    whole = llm.generate("Hello there", max_tokens=24)
    chunks = list(llm.stream("Hello there", max_tokens=24))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == whole.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    last = chunks[-1].completion
    assert last is not None
    assert (last.text, last.token_ids, last.usage) == (whole.text, whole.token_ids, whole.usage)


def test_a_stop_string_across_tokens_ends_the_text_before_it(llm: LLM) -> None:
    text = llm.generate("Hello there", max_tokens=40).text
    for start in range(2, len(text) - 4, 5):
        stop = text[start : start + 3]
        expected = text[: text.index(stop)]
        done = llm.generate("Hello there", max_tokens=40, stop=["@never@", stop])
        assert (done.text, done.finish_reason) == (expected, "stop")
        assert "".join(chunk.text for chunk in llm.stream("Hello there", max_tokens=40, stop=stop)) == expected


def test_a_stop_string_that_never_completes_is_text_after_all(llm: LLM) -> None:
    text = llm.generate("Hello there", max_tokens=12).text
    done = llm.generate("Hello there", max_tokens=12, stop=[text[-2:] + "@never@"])
    assert (done.text, done.finish_reason) == (text, "length")


@pytest.mark.case("G09")
def test_the_number_of_tokens_is_the_number_asked_for(llm: LLM) -> None:
    prompt = make_prompt(5)
    tokens = llm.generate([prompt], SamplingParams(ignore_eos=True), max_tokens=6)[0].token_ids
    for n in range(7):
        done = llm.generate([prompt], SamplingParams(ignore_eos=True, max_tokens=n))[0]
        assert (done.token_ids, done.finish_reason) == (tokens[:n], "length")
        assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (5, n, 5 + n)
    with pytest.raises(ValueError, match="max_tokens is -1"):
        llm.generate([prompt], max_tokens=-1)
    assert len(llm.generate([prompt], SamplingParams(ignore_eos=True))[0].token_ids) == 256


def test_end_of_sequence_stops_unless_ignored_or_too_early(llm: LLM) -> None:
    prompt = make_prompt(6)
    tokens = llm.generate([prompt], SamplingParams(ignore_eos=True), max_tokens=8)[0].token_ids
    third = tokens[2]
    first = tokens.index(third)
    done = llm.generate([prompt], SamplingParams(stop_token_ids=[third], ignore_eos=True), max_tokens=8)[0]
    assert (done.token_ids, done.finish_reason) == (tokens[: first + 1], "stop")
    later = llm.generate([prompt], SamplingParams(stop_token_ids=[third], ignore_eos=True, min_tokens=5), max_tokens=8)[
        0
    ]
    assert len(later.token_ids) >= 5
    assert third not in later.token_ids[:5]


@pytest.mark.case("G01")
@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-4])
def test_temperatures_near_zero_are_greedy(llm: LLM, temperature: float) -> None:
    greedy = llm.generate("one two", max_tokens=8).token_ids
    assert llm.generate("one two", max_tokens=8, temperature=temperature, seed=5).token_ids == greedy


def test_seeds_repeat_and_completions_of_one_prompt_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=4, max_tokens=12, n=3, ignore_eos=True)
    first, again = llm.generate("one two", params), llm.generate("one two", params)
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    assert len({tuple(one.token_ids) for one in first}) == 3
    alone = llm.generate("one two", params.replace(n=1))
    assert alone.token_ids == first[0].token_ids


def test_logprobs_are_those_of_the_logits(llm: LLM) -> None:
    prompt = make_prompt(7)
    params = SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    done = llm.generate([prompt], params)[0]
    ids = [*prompt, *done.token_ids]
    logits = llm.logits(ids).astype(np.float64)
    expected = (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )
    assert done.logprobs is not None
    assert done.prompt_logprobs is not None
    assert done.prompt_logprobs[0] is None
    found = [*done.prompt_logprobs[1:], *done.logprobs]
    assert len(found) == len(ids) - 1
    for i, one in enumerate(found):
        assert one is not None
        assert one.token_id == ids[i + 1]
        assert one.logprob == pytest.approx(expected[i, ids[i + 1]], abs=tolerances.LOGPROB)
        order = np.argsort(-expected[i], kind="stable")[: len(one.top)]
        assert [token_id for token_id, _ in one.top] == order.tolist()
        assert [value for _, value in one.top] == pytest.approx(expected[i, order].tolist(), abs=tolerances.LOGPROB)


def test_chat_is_the_template_and_nothing_more(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = llm.tokenizer.encode(llm.tokenizer.apply_chat_template(messages), add_special_tokens=False)
    chat, raw = llm.chat(messages, max_tokens=6), llm.generate([ids], max_tokens=6)[0]
    assert chat.token_ids == raw.token_ids
    assert chat.usage.prompt_tokens == len(ids)
    assert "".join(chunk.text for chunk in llm.stream_chat(messages, max_tokens=6)) == chat.text


def test_a_list_of_conversations_gives_each_its_solo_answer(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("hi", "what is the sky?", "no")]
    chats[1].append({"role": "assistant", "content": "blue"})
    params = [SamplingParams(temperature=0.9, seed=seed, max_tokens=6, n=1 + seed // 2) for seed in range(3)]
    solo = [llm.chat(chat, each) for chat, each in zip(chats, params, strict=True)]
    found = llm.chat(chats, params)
    assert [one.token_ids for one in found[:2]] == [one.token_ids for one in solo[:2]]
    assert [one.token_ids for one in found[2]] == [one.token_ids for one in solo[2]]
    greedy = [llm.chat(chat, max_tokens=5, split_reasoning=True) for chat in chats]
    again = llm.chat(tuple(chats), max_tokens=5, split_reasoning=True)
    assert [(one.text, one.reasoning) for one in again] == [(one.text, one.reasoning) for one in greedy]
    assert [type(one) for one in llm.chat(chats[:1], max_tokens=1)] == [fastcore.Completion]
    with pytest.raises(ValueError, match="list of 3; 2 conversations take as many, or one"):
        llm.chat(chats[:2], params)
    with pytest.raises(ValueError, match="list of 1; one prompt takes one"):
        llm.chat(chats[0], params[:1])
    for wrong in ([], [{"role": "user"}], chats[0][0]):
        with pytest.raises(fastcore.ChatTemplateError, match=r"conversations\[1\]: messages"):
            llm.chat([chats[0], wrong])


# ---------------------------------------------------------------- prompts and limits


@pytest.mark.case("T11")
def test_empty_prompts(tiny_folder, tmp_path: Path) -> None:
    """Text without tokens becomes the beginning-of-sequence token where the model has one, else it is refused."""
    llm = LLM(tiny_folder("qwen2"))
    bos = llm.config.bos_token_id
    assert bos is not None
    assert llm.generate("", max_tokens=3).token_ids == llm.generate([[bos]], max_tokens=3)[0].token_ids
    assert llm.generate([]) == []
    for prompt in ([[]], [[1], []]):
        with pytest.raises(ValueError, match="no tokens"):
            llm.generate(prompt)  # type: ignore[arg-type]
    assert [one.usage.prompt_tokens for one in llm.generate(["", "a"], max_tokens=1)] == [1, 1]
    without = LLM(tiny_checkpoint(tmp_path / "m", "qwen2", bos_token_id=None))
    with pytest.raises(ValueError, match="the prompt is empty"):
        without.generate("")
    assert without.generate(" ", max_tokens=1).usage.prompt_tokens >= 1


@pytest.mark.case("T12")
def test_prompts_beyond_the_context(tiny_folder) -> None:
    llm = LLM(tiny_folder("qwen2"), max_seq_len=32)
    with pytest.raises(ContextLengthError, match="33 tokens and the context holds 32"):
        llm.generate([make_prompt(33)])
    full = llm.generate([make_prompt(32)], max_tokens=5)[0]
    assert (full.token_ids, full.finish_reason) == ([], "length")
    nearly = llm.generate([make_prompt(30)], SamplingParams(ignore_eos=True), max_tokens=10)[0]
    assert (len(nearly.token_ids), nearly.finish_reason) == (2, "length")
    fresh = LLM(tiny_folder("qwen2"), max_seq_len=32)
    assert llm.generate("ab", max_tokens=4).token_ids == fresh.generate("ab", max_tokens=4).token_ids
    assert llm.pool.free_positions == fresh.pool.free_positions


@pytest.mark.case("C10")
def test_ids_beyond_the_tokenizer_but_inside_the_head(tmp_path: Path) -> None:
    """The head has more rows than the tokenizer has tokens: such ids go in, come out as no text, and never crash."""
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", vocab_size=400)
    llm = LLM(folder)
    assert llm.tokenizer.vocab_size < 390
    forced = llm.generate("ab", SamplingParams(logit_bias={390: 1e4}, max_tokens=3))
    assert (forced.token_ids, forced.text, forced.finish_reason) == ([390] * 3, "", "length")
    assert llm.generate([[399, 5]], max_tokens=1)[0].usage.prompt_tokens == 2
    for token_id in (400, -1):
        with pytest.raises(ValueError, match=f"token id {token_id} is outside the vocabulary of 400"):
            llm.generate([[token_id]])
        with pytest.raises(ValueError, match=f"token id {token_id} is outside"):
            llm.logits([1, token_id])


@pytest.mark.parametrize("prompt", [None, 5, 1.5, {5: 6}, [None], [["a"]]])
def test_what_is_no_prompt_is_a_type_error(llm: LLM, prompt: object) -> None:
    with pytest.raises(TypeError, match="a prompt is a string or a list of token ids"):
        llm.generate(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["generate", "stream", "chat", "stream_chat"])
def test_unknown_options_are_type_errors(llm: LLM, call: str) -> None:
    with pytest.raises(TypeError, match="max_token"):
        getattr(llm, call)("x", max_token=3)


# ---------------------------------------------------------------- numbers


def test_logits_equal_the_oracles(tiny_folder) -> None:
    folder, ids = tiny_folder("qwen2"), make_prompt(40)
    expected = qwen2.logits(folder, ids)
    assert np.abs(LLM(folder).logits(ids) - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()


@pytest.mark.case("N02")
def test_a_weight_that_is_not_a_number_is_an_error_not_a_token(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", dtype="f32")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"] = tensors["model.layers.0.mlp.down_proj.weight"].copy()
    tensors["model.layers.0.mlp.down_proj.weight"][3, 2] = np.nan
    write_safetensors(folder / "model.safetensors", tensors)
    llm = LLM(folder)
    for params in (SamplingParams(max_tokens=2), SamplingParams(max_tokens=2, temperature=1.0)):
        with pytest.raises(NonFiniteError, match="not finite"):
            llm.generate("abc", params)
    with pytest.raises(NonFiniteError):
        llm.logits([1, 2, 3])


@pytest.mark.case("L01")
def test_a_tied_head_is_the_embedding_without_a_second_copy(tmp_path: Path) -> None:
    tied = tiny_checkpoint(tmp_path / "tied", "qwen2", dtype="f32", tie=True)
    untied = tmp_path / "untied"
    untied.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (untied / name).write_bytes((tied / name).read_bytes())
    config = json.loads((tied / "config.json").read_text()) | {"tie_word_embeddings": False}
    (untied / "config.json").write_text(json.dumps(config))
    tensors = load_file(tied / "model.safetensors")
    matrix = tensors["model.embed_tokens.weight"]
    write_safetensors(untied / "model.safetensors", {**tensors, "lm_head.weight": matrix})
    one, two = LLM(tied), LLM(untied)
    assert np.array_equal(one.logits([1, 2, 3]), two.logits([1, 2, 3]))
    assert two.model.weight_bytes - one.model.weight_bytes == matrix.nbytes


# ---------------------------------------------------------------- sharing and interrupting


def test_a_stream_misses_nothing_of_steps_that_others_run(llm: LLM) -> None:
    options = {"max_tokens": 24, "ignore_eos": True, "logprobs": 1}
    expected = llm.generate("hello", **options)
    chunks = []
    for chunk in llm.stream("hello", **options):
        chunks.append(chunk)
        llm.generate("another", max_tokens=3, ignore_eos=True)  # its steps advance the stream too
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert [i for chunk in chunks for i in chunk.token_ids] == list(expected.token_ids)
    assert [each for chunk in chunks for each in chunk.logprobs] == expected.logprobs
    assert len(chunks) > 2


def test_leaving_a_stream_frees_its_state(llm: LLM) -> None:
    free = llm.pool.free_positions
    stream = llm.stream("abc", SamplingParams(ignore_eos=True), max_tokens=200)
    next(stream)
    assert llm.pool.free_positions < free
    stream.close()
    assert llm.pool.free_positions == free


def test_a_request_waits_for_blocks_that_others_hold(llm: LLM) -> None:
    """Scoring in another thread takes blocks of the same pool."""
    expected = llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids
    found = []
    with SequenceState(llm.pool) as other:
        other.reserve(llm.pool.max_positions)
        thread = threading.Thread(target=lambda: found.append(llm.generate([[5, 6, 7]], max_tokens=3)[0].token_ids))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert found == []
    thread.join()
    assert found == [expected]


def test_threads_share_a_model_and_get_their_own_results(llm: LLM) -> None:
    prompts = [make_prompt(n, seed=n) for n in (3, 40, 11, 25)]
    expected = [llm.generate([prompt], max_tokens=12)[0].token_ids for prompt in prompts]
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        found[i] = llm.generate([prompts[i]], max_tokens=12)[0].token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


# ---------------------------------------------------------------- files and memory


@pytest.mark.case("X2")
def test_a_read_only_folder_is_enough_and_stays_as_it_was(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen2")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert LLM(folder).generate("ab", max_tokens=2).usage.completion_tokens == 2
    finally:
        folder.chmod(0o755)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before


@pytest.mark.case("L13")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak memory is read from /proc")
@pytest.mark.parametrize("dtype", ["auto", "f32"])
def test_loading_holds_one_tensor_beside_the_packed_weights(tmp_path: Path, dtype: str) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "vocab_size": 4096}
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", num_attention_heads=16, num_key_value_heads=16, **sizes)
    script = f"""
from pathlib import Path
from fastcore import models
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
model = models.load_model(Path({str(folder)!r}), {dtype!r})
print(peak() - before, model.weight_bytes)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown, weights = map(int, run.stdout.split())
    largest = 4096 * 1024 * 2
    assert weights > (1 if dtype == "auto" else 2) * 150e6
    assert grown <= weights + largest + (64 << 20)


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    prompts = [make_prompt(3), make_prompt(5, seed=1), make_prompt(4, seed=2)]
    params = [
        SamplingParams(max_tokens=4),
        SamplingParams(temperature=0.9, seed=7, max_tokens=9),
        SamplingParams(temperature=0.9, seed=8, max_tokens=6, n=2),
    ]
    solo = [llm.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    both = llm.generate(prompts, params)
    assert [one.token_ids for one in both[:2]] == [one.token_ids for one in solo[:2]]
    assert [one.token_ids for one in both[2]] == [one.token_ids for one in solo[2]]
    assert [len(one.token_ids) <= 2 for one in llm.generate(prompts[:2], params[:2], max_tokens=2)] == [True, True]
    with pytest.raises(ValueError, match="list of 3; 2 prompts take as many, or one"):
        llm.generate(prompts[:2], params)
    with pytest.raises(ValueError, match="list of 1; one prompt takes one"):
        llm.generate(prompts[0], params[:1])
    with pytest.raises(TypeError, match="params is dict"):
        llm.generate(prompts[:1], [{"n": 1}])


def test_a_prompt_may_be_a_mapping(llm: LLM) -> None:
    ids = make_prompt(5)
    text = llm.tokenizer.decode(ids)
    by_ids, by_text = llm.generate(ids, max_tokens=6), llm.generate(text, max_tokens=6)
    assert llm.generate({"prompt_token_ids": ids}, max_tokens=6).token_ids == by_ids.token_ids
    both = llm.generate([{"prompt_token_ids": ids}, {"prompt": text}, text], max_tokens=6)
    assert [one.token_ids for one in both] == [by_ids.token_ids, by_text.token_ids, by_text.token_ids]
    for wrong in ({}, {"prompt": text, "prompt_token_ids": ids}, {"prompt": ids}, {"prompt_token_ids": text}):
        with pytest.raises(TypeError, match="found a mapping of"):
            llm.generate(wrong, max_tokens=1)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        llm.generate({"prompt_token_ids": [10**9]}, max_tokens=1)


def test_public_names() -> None:
    for name in fastcore.__all__:
        assert getattr(fastcore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fastcore.nothing
