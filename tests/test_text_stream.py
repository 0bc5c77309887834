"""Stop strings, hidden tokens and offsets of a growing text: the same however it is cut into tokens and pieces."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from serving import call, serving
from test_decoding import DECODERS, HELD_TO_THE_END, SPECIAL, WORDS, with_decoder
from test_openai import stream as events_of
from tiny import tiny_checkpoint
from tokenizers import AddedToken, decoders, models, normalizers

from fastcore import LLM, SamplingParams
from fastcore.engine.text_stream import TextStream
from fastcore.text.tokenizer import Tokenizer


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    return [tokenizer._backend.token_to_id(token) for token in tokens]


def run(stream: TextStream, ids: list[int]) -> tuple[str, int]:
    """The text, and how many tokens were taken until it ended."""
    taken = 0
    for token_id in ids:
        taken += 1
        if stream.push(token_id):
            break
    stream.finish()
    return stream.text, taken


# ---------------------------------------------------------------- stop strings


@pytest.mark.fault("A6")
def test_a_stop_string_of_byte_tokens_ends_the_text_with_the_token_that_completes_it() -> None:
    tokenizer = with_decoder(DECODERS["llama 2"])
    newlines = ids_of(tokenizer, *["<0x0A>"] * 40)
    for stop, taken, text in (("\n\n", 2, ""), ("\n", 1, ""), ("\n\n\n", 3, ""), ("a", 40, "\n" * 40)):
        assert run(TextStream(tokenizer, [0], [stop]), newlines) == (text, taken)
    euros = ids_of(tokenizer, "▁a", *["<0xE2>", "<0x82>", "<0xAC>"] * 3, "a")
    assert run(TextStream(tokenizer, [0], ["€€"]), euros) == (" a", 7)
    mixed = ids_of(tokenizer, "a", "<0x41>", "b", "<0x0A>", "x")
    assert run(TextStream(tokenizer, [0], ["aAb\nx"]), mixed) == ("", 5)


def text_decoders() -> list[str]:
    return sorted(set(DECODERS) - HELD_TO_THE_END - {"stripped at the end"})


@pytest.mark.fault("A6")
@pytest.mark.parametrize("name", text_decoders())
def test_a_stop_string_ends_the_text_at_its_first_place(name: str) -> None:
    """Wherever it is cut: the text up to it, and the first token with which the text so far holds it."""
    tokenizer, rng = with_decoder(DECODERS[name]), random.Random(name)
    tried = 0
    for _ in range(300):
        prompt, new = ([rng.randrange(len(WORDS) + 3) for _ in range(rng.randint(0, 12))] for _ in range(2))
        decoder, shown = tokenizer.decoder(after=prompt), [""]
        for token_id in new:
            shown.append(shown[-1] + decoder.push(token_id))
        whole = shown[-1] + decoder.finish()
        if not whole:
            continue
        stops = []
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(whole))
            stops.append(whole[start : start + rng.randint(1, 5)] + rng.choice(["", "", "@"]))
        ends = [n for n, text in enumerate(shown) if any(stop in text for stop in stops)]
        text, taken = run(TextStream(tokenizer, prompt, stops), new)
        starts = [whole.index(stop) for stop in stops if stop in (shown[ends[0]] if ends else whole)]
        assert text == (whole[: min(starts)] if starts else whole)
        assert taken == (ends[0] if ends else len(new))
        tried += bool(ends)
    assert tried > 100


@pytest.mark.fault("H4")
def test_a_stop_string_that_is_a_special_token_stops() -> None:
    tokenizer = with_decoder(DECODERS["gemma"])
    ids = ids_of(tokenizer, "a", "<|im_end|>", "b")
    assert run(TextStream(tokenizer, [], ["<|im_end|>"]), ids) == ("a", 2)
    assert run(TextStream(tokenizer, [], ["a<|im_end|>"]), ids) == ("", 2)
    assert run(TextStream(tokenizer, [], ["<|im_end|>b"]), ids) == ("a", 3)
    assert run(TextStream(tokenizer, [], ["<|im_end|>x"]), ids) == ("ab", 3)
    assert run(TextStream(tokenizer, [], ["<|bos|>"]), ids) == ("ab", 3)
    both = ids_of(tokenizer, "a", "<|bos|>", "<|im_end|>", "b")
    assert run(TextStream(tokenizer, [], ["<|bos|><|im_end|>"]), both) == ("a", 3)
    spelled = ids_of(tokenizer, "<pad>", "a")  # a token that is not special is text
    assert run(TextStream(tokenizer, [], ["<pad>"]), spelled) == ("", 1)


@pytest.mark.fault("A4")
def test_a_token_that_ends_the_text_is_not_part_of_it() -> None:
    tokenizer = with_decoder(DECODERS["gemma"])
    a, b = ids_of(tokenizer, "a", "b")
    assert run(TextStream(tokenizer, [], [], {b}), [a, b, a]) == ("a", 2)
    stream = TextStream(tokenizer, [], [], {b})
    assert not stream.push(b, may_stop=False)  # before min_tokens it is a token like others
    assert stream.push(b)
    assert (stream.text, stream.offsets) == ("b", [0, 1])


# ---------------------------------------------------------------- offsets


@pytest.mark.fault("A7")
def test_offsets_count_text_and_nothing_else() -> None:
    """Neither hidden tokens nor parts of characters, and text that waits for a stop string too."""
    tokenizer = with_decoder(DECODERS["byte level"])
    ids = ids_of(tokenizer, "a", "<|bos|>", "ð", "Ł", "ĺ", "Ģ", "b", "<|im_end|>", "Ã", "x")
    expected = [0, 1, 1, 1, 1, 1, 2, 3, 3, 4]
    assert tokenizer.decode(ids) == "a😀b\ufffdx"
    assert tokenizer.text_offsets(ids) == expected
    for stop in ([], ["b@"], ["a😀b\ufffdx@"]):
        stream = TextStream(tokenizer, [], stop)
        assert run(stream, ids) == ("a😀b\ufffdx", len(ids))
        assert stream.offsets == expected


# ---------------------------------------------------------------- models

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "▁", "▁the", "▁def", "▁▁▁", "▁a", "ing"]


def write_sentencepiece(folder: Path) -> None:
    """A tokenizer as Llama 2's: spaces as U+2581, one in front of the text, unknown characters as byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *LETTERS]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:3]])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("sentencepiece") / "m", "llama")
    write_sentencepiece(folder)
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def port(llm: LLM) -> Iterator[int]:
    with serving(llm, ["tiny"]) as port:
        yield port


def spelling(llm: LLM, *tokens: str, n: int) -> dict[str, Any]:
    """Options with which the model writes these tokens alone."""
    return {
        "logit_bias": dict.fromkeys(ids_of(llm.tokenizer, *tokens), 100.0),
        "max_tokens": n,
        "ignore_eos": True,
        "temperature": 1.0,
    }


@pytest.mark.fault("A5")
@pytest.mark.case("T07")
def test_a_models_text_is_the_difference_of_decoded_texts(llm: LLM) -> None:
    decode = llm.tokenizer.decode
    there = llm.generate("hi", SamplingParams(logit_bias={ids_of(llm.tokenizer, "▁the")[0]: 100.0}, max_tokens=2))
    assert there.text == " the the"
    indented = llm.generate("def f():\n", SamplingParams(**spelling(llm, "▁▁▁", n=1)))
    assert indented.text == "   "
    for seed in range(40):
        options = spelling(llm, *LETTERS[-6:], "<0x0A>", "<0xC3>", "<0xA9>", "</s>", "<s>", n=12)
        params = SamplingParams(**options, seed=seed)
        prompt = llm.tokenizer.encode("the ding")
        done = llm.generate([prompt], params)[0]
        before = decode(prompt)
        assert before + done.text == decode([*prompt, *done.token_ids])
        assert "".join(chunk.text for chunk in llm.stream(prompt, params)) == done.text


@pytest.mark.fault("A6")
def test_a_model_that_writes_newlines_for_ever_is_stopped(llm: LLM) -> None:
    options = spelling(llm, "<0x0A>", n=100)
    done = llm.generate("a", SamplingParams(**options, stop="\n\n"))
    assert (done.text, len(done.token_ids), done.finish_reason) == ("", 2, "stop")
    chunks = list(llm.stream("a", SamplingParams(**options)))
    assert len(chunks) >= 99
    assert "".join(chunk.text for chunk in chunks) == "\n" * 100


@pytest.mark.fault("A7")
def test_offsets_are_the_same_streamed_and_whole(llm: LLM, port: int) -> None:
    tokens = ids_of(llm.tokenizer, *LETTERS[-6:], "<0x0A>", "<0xC3>", "<0xA9>", "</s>")
    for seed in range(12):
        body = {
            "prompt": "the ding", "max_tokens": 20, "temperature": 1.0, "seed": seed, "logprobs": 1, "ignore_eos": True,
            "logit_bias": {str(i): 100 for i in tokens}, "stop": ["é\n", "ing the"],
        }  # fmt: skip
        status, answer, _ = call(port, "POST", "/v1/completions", body)
        assert status == 200
        whole = answer["choices"][0]
        pieces = [event["choices"][0] for event in events_of(port, "/v1/completions", **body)]
        assert "".join(piece["text"] for piece in pieces) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert [value for piece in pieces for value in piece["logprobs"][name]] == values
        status, answer, _ = call(port, "POST", "/v1/completions", body | {"echo": True})
        echoed = answer["choices"][0]
        assert echoed["text"] == "the ding" + whole["text"]
        number = len(llm.tokenizer.encode("the ding"))
        before = llm.tokenizer.text_offsets(llm.tokenizer.encode("the ding"))
        offsets = [len("the ding") + offset for offset in whole["logprobs"]["text_offset"]]
        assert echoed["logprobs"]["text_offset"] == [*before, *offsets]
        for token, offset in zip(echoed["logprobs"]["tokens"], [*before, *offsets], strict=True):
            if offset < len(echoed["text"]) and "\\x" not in token and token not in SPECIAL and token != "</s>":
                shown = echoed["text"][offset:]
                assert shown.startswith(token[: len(shown)]) or (offset == 0 and token.startswith(" "))
        assert len(echoed["logprobs"]["top_logprobs"]) == number + len(whole["logprobs"]["tokens"])
        for token, top in zip(echoed["logprobs"]["tokens"][1:], echoed["logprobs"]["top_logprobs"][1:], strict=True):
            assert token in top


@pytest.mark.fault("A7")
def test_offsets_of_characters_in_parts(tiny_folder: Callable[..., Path]) -> None:
    llm = LLM(tiny_folder("qwen2"), num_threads=1)
    with serving(llm, ["tiny"]) as port:
        body = {"prompt": "I am 😀🦙 ok", "echo": True, "logprobs": 1, "max_tokens": 0}
        logprobs = call(port, "POST", "/v1/completions", body)[1]["choices"][0]["logprobs"]
    assert logprobs["text_offset"][-2:] == [7, 9]
    assert logprobs["tokens"][-2:] == [" o", "k"]
    assert logprobs["text_offset"] == llm.tokenizer.text_offsets(llm.tokenizer.encode("I am 😀🦙 ok"))
