"""Texts through the classifier: entities and masks with known labels, packing, windows, many texts, several callers."""

import itertools
import json
import math
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from labelled import labelled_checkpoint
from tiny import write_tokenizer

from fastcore import ContextLengthError, TokenClassifier
from fastcore.classify import TokenScores
from fastcore.engine.scheduler import MAX_ROWS, MAX_RUNNING
from fastcore.pii.masking import MaskingRules, unmask

PERSON, PHONE = "private_person", "private_phone"


@pytest.fixture(scope="module")
def labelled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled_checkpoint(tmp_path_factory.mktemp("labelled"))


@pytest.fixture(scope="module")
def labelled(labelled_folder: Path) -> TokenClassifier:
    return TokenClassifier(labelled_folder, num_threads=1)


@pytest.fixture(scope="module")
def random(tiny_folder: Callable[..., Path]) -> TokenClassifier:
    """A model whose every score depends on the whole window."""
    return TokenClassifier(tiny_folder("pii_masking"), num_threads=2)


def found(pii: TokenClassifier, text: str) -> list[tuple[str, str]]:
    result = pii(text)
    for entity in result.entities:
        assert text[entity.start : entity.end] == entity.text
    return [(entity.label, entity.text) for entity in result.entities]


def words(num_words: int, seed: int = 0) -> str:
    rng = np.random.default_rng([seed, num_words])
    return " ".join(rng.choice(["hello", "my", "name", "is", "Alice", "in", "France", "BOB", "42"], num_words))


def assert_same(one: TokenScores, other: TokenScores) -> None:
    assert one.token_ids == other.token_ids
    assert np.array_equal(one.logits, other.logits)
    assert one.sensitivity_logit == other.sensitivity_logit
    assert one.windows == other.windows


# ---------------------------------------------------------------- entities of one text


def test_a_result_says_all(labelled: TokenClassifier) -> None:
    result = labelled("ring Alice, or 555 to ask")
    assert [(entity.label, entity.start, entity.end, entity.text) for entity in result.entities] == [
        (PERSON, 5, 10, "Alice"),
        (PHONE, 15, 18, "555"),
    ]
    assert all(0.5 < entity.score < 1 for entity in result.entities)
    assert result.sensitivity_logit == 0.25
    assert result.sensitivity == pytest.approx(1 / (1 + math.exp(-0.25)))
    assert (result.num_tokens, result.windows, result.covered) == (len(labelled.tokenizer.encode(result.text)), 1, True)
    assert json.loads(json.dumps(result.to_dict()))["entities"][0] == {
        "label": PERSON, "start": 5, "end": 10, "text": "Alice", "score": result.entities[0].score,
    }  # fmt: skip


def test_the_score_is_the_sigmoid_of_the_mean_chosen_logit(labelled: TokenClassifier) -> None:
    (entity,) = labelled("at 555").entities
    scale = math.sqrt(40)  # a state with one 1 among 40 zeros, normalised
    assert entity.score == pytest.approx(1 / (1 + math.exp(-scale * (3.0 + 3.25 + 3.0) / 3)))


def test_the_repr_of_a_result_does_not_show_the_text(labelled: TokenClassifier) -> None:
    assert "unmistakable" not in repr(labelled("an unmistakable text"))
    assert "unmistakable" not in repr(labelled.score("an unmistakable text"))


@pytest.mark.case("I01")
def test_spans_after_characters_of_several_bytes(labelled: TokenClassifier) -> None:
    text = "\U0001f4f7 BOB \u260e 555-0100 \U0001f469\u200d\U0001f469\u200d\U0001f467 ANN"
    assert found(labelled, text) == [(PERSON, "BOB"), (PHONE, "555"), (PHONE, "0100"), (PERSON, "ANN")]
    masked = labelled.mask(text).text
    assert masked == (
        "\U0001f4f7 [PRIVATE_PERSON] \u260e [PRIVATE_PHONE]-[PRIVATE_PHONE] "
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 [PRIVATE_PERSON]"
    )


@pytest.mark.parametrize("offsets", ["code_points", "utf8", "utf16"])
def test_offsets_in_other_units(labelled: TokenClassifier, offsets: str) -> None:
    text = "\U0001f4f7 é BOB \U0001f469 ANN"
    result = labelled(text)
    encoding, width = {"code_points": ("utf-32-le", 4), "utf8": ("utf-8", 1), "utf16": ("utf-16-le", 2)}[offsets]
    units, spans = text.encode(encoding), result.spans(offsets)
    assert [units[start * width : end * width].decode(encoding) for start, end in spans] == ["BOB", "ANN"]
    assert [(entity["start"], entity["end"]) for entity in result.to_dict(offsets)["entities"]] == spans
    with pytest.raises(ValueError, match="one of code_points, utf8, utf16"):
        result.spans("bytes")


@pytest.mark.case("I02")
def test_combining_marks_belong_to_the_name(labelled: TokenClassifier) -> None:
    text = "for JOSE\u0301 GARCI\u0301A, and A\u0308."
    assert unicodedata.normalize("NFC", text) != text
    assert labelled.mask(text).text == "for [PRIVATE_PERSON] [PRIVATE_PERSON][PRIVATE_PERSON], and [PRIVATE_PERSON]."
    assert [name for _, name in found(labelled, text)] == ["JOSE\u0301", "GARCI\u0301", "A", "A\u0308"]


@pytest.mark.case("I03")
def test_spans_have_no_whitespace_at_their_ends(labelled: TokenClassifier) -> None:
    for text, start in (("call Alice and", 5), ("call  Alice\n", 6), (" Alice ", 1)):
        (entity,) = labelled(text).entities
        assert (entity.start, entity.end) == (start, start + 5)


@pytest.mark.case("I09")
def test_masking_goes_by_offsets(labelled: TokenClassifier) -> None:
    text = "xAlice met Alice; xAlice left"  # only the one with a space before it is the token " Alice"
    (entity,) = [e for e in labelled(text).entities if e.text == "Alice"]
    assert entity.start == 11
    assert "met [PRIVATE_PERSON]; x" in labelled.mask(text).text


@pytest.mark.case("I10")
def test_text_outside_spans_is_never_rewritten(labelled: TokenClassifier) -> None:
    text = "\ufeffname:\r\nBOB\r\n\ttel 1\x0c\u2028 end\r\r\n\x00\x85"
    masked = labelled.mask(text)
    assert masked.text == "\ufeffname:\r\n[PRIVATE_PERSON]\r\n\ttel [PRIVATE_PHONE]\x0c\u2028 end\r\r\n\x00\x85"
    assert [item.text for item in masked.items] == ["BOB", "1"]


def test_lone_surrogates_are_read_over(labelled: TokenClassifier) -> None:
    text = "a \ud800 BOB \udfff"
    assert labelled.mask(text).text == "a \ud800 [PRIVATE_PERSON] \udfff"


def test_placeholders_can_be_undone(labelled: TokenClassifier) -> None:
    text = "BOB and ANN, and BOB 42"
    masked = labelled.mask(text, "placeholder")
    assert masked.text == ("[PRIVATE_PERSON_1] and [PRIVATE_PERSON_2], and [PRIVATE_PERSON_1] [PRIVATE_PHONE_1]")
    assert unmask(masked.text, masked.mapping) == text
    later = labelled.mask("EVE and ANN", "placeholder", mapping=masked.mapping)
    assert later.text == "[PRIVATE_PERSON_3] and [PRIVATE_PERSON_2]"


def test_masking_options_reach_the_rules(labelled: TokenClassifier) -> None:
    text = "BOB 5550100 ANN"
    assert labelled.mask(text, "mask", keep=2).text == "*OB *****00 *NN"
    assert labelled.mask(text, per_label={PHONE: None}, allow_list=["ANN"]).text == "[PRIVATE_PERSON] 5550100 ANN"
    assert labelled.mask(text, lambda entity: entity.text.lower()).text == "bob 5550100 ann"
    assert labelled.mask(text, threshold=1.0).text == text
    with pytest.raises(ValueError, match="operator is 'blur'"):
        labelled.mask(text, "blur")
    with pytest.raises(TypeError):
        labelled.mask(text, colour="red")


def test_operating_points(labelled_folder: Path, labelled: TokenClassifier) -> None:
    assert labelled.operating_point == (-0.5, 0.25)
    assert TokenClassifier(labelled_folder, operating_point="recall").operating_point == (0.5, 1.25)
    never_b = TokenClassifier(labelled_folder, operating_point=(-1000.0, 0.0), num_threads=1)
    assert found(never_b, "at 55") == [(PHONE, "5"), (PHONE, "5")]
    with pytest.raises(ValueError, match="operating_point"):
        TokenClassifier(labelled_folder, operating_point="fast")


# ---------------------------------------------------------------- special tokens


def test_special_tokens_are_read_and_are_never_entities(labelled_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bos"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(labelled_folder / name)
    write_tokenizer(folder, add_bos=True)
    pii = TokenClassifier(folder, num_threads=1)
    scores = pii.score("BOB")
    assert scores.token_ids[0] == pii.tokenizer.bos_token_id
    assert scores.offsets == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert found(pii, "BOB") == [(PERSON, "BOB")]
    assert found(pii, "") == []
    assert pii("").num_tokens == 1


def test_special_tokens_written_in_a_text_are_no_entity(random: TokenClassifier) -> None:
    special = "<|im_end|>"
    for seed in range(20):
        result = random(f"{special}{words(3, seed)}{special} {special} me")
        assert result.entities
        assert not any("<" in entity.text or ">" in entity.text for entity in result.entities)


# ---------------------------------------------------------------- many texts


@pytest.fixture(scope="module")
def mixed_texts() -> list[str]:
    """Empty, short, blank, exactly and more than a step, in no order."""
    short = [words(n, n) for n in range(1, 40)]
    return ["", "a b c", words(3), words(MAX_ROWS), " ", "", *short, words(200), "\n", "x"]


def test_each_text_equals_its_solo_run(random: TokenClassifier, mixed_texts: list[str]) -> None:
    together, results = random.score(mixed_texts), random(mixed_texts)
    assert isinstance(results, list)
    assert len(results) == len(together) == len(mixed_texts)
    for text, scores, result in zip(mixed_texts, together, results, strict=True):
        assert_same(scores, random.score(text))
        assert result == random(text)
        assert np.isfinite(scores.logits).all()
        assert math.isfinite(scores.sensitivity_logit)
        assert 0 <= result.sensitivity <= 1


def test_texts_have_no_neighbours(random: TokenClassifier, mixed_texts: list[str]) -> None:
    """Another order, and other lengths beside it, change no bit of a text's scores."""
    turned = random.score(mixed_texts[::-1])[::-1]
    for scores, expected in zip(turned, random.score(mixed_texts), strict=True):
        assert_same(scores, expected)


def test_threads_of_a_step_change_no_bit(
    tiny_folder: Callable[..., Path], mixed_texts: list[str], random: TokenClassifier
) -> None:
    alone = TokenClassifier(tiny_folder("pii_masking"), num_threads=1)
    for scores, expected in zip(alone.score(mixed_texts), random.score(mixed_texts), strict=True):
        assert_same(scores, expected)


def test_shapes_of_arguments(random: TokenClassifier) -> None:
    assert random([]) == []
    assert random(("a", "b")) == random(["a", "b"]) == list(random(iter(["a", "b"])))
    assert isinstance(random.mask(["a"]), list)
    iterator = random(text for text in ["a"])
    assert isinstance(iterator, Iterator)
    for wrong in (b"abc", {"a": 1}, 7, None):
        with pytest.raises(TypeError):
            random(wrong)
    for wrong in (["a", 7], [None], [["a"]]):
        with pytest.raises(TypeError, match="expected a string"):
            random(wrong)


def test_an_iterator_is_read_as_it_is_consumed(random: TokenClassifier) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for taken in itertools.count(1):
            yield "" if taken % 3 == 0 else f"hello {taken}"

    results = random(endless())
    for given, result in enumerate(itertools.islice(results, 500), start=1):
        assert result.text == ("" if given % 3 == 0 else f"hello {given}")
        assert taken - given <= MAX_RUNNING
    results.close()


def test_masks_and_scores_of_an_iterator(random: TokenClassifier) -> None:
    texts = [words(n) for n in range(1, 9)]
    assert [masked.text for masked in random.mask(iter(texts))] == [random.mask(text).text for text in texts]
    for scores, text in zip(random.score(iter(texts)), texts, strict=True):
        assert_same(scores, random.score(text))


def test_an_abandoned_iterator_leaves_no_work(random: TokenClassifier) -> None:
    results = random(words(30, n) for n in range(100))
    next(results)
    assert random._scheduler.num_requests
    del results
    assert not random._scheduler.num_requests


def test_a_faulty_text_raises_in_its_turn(tiny_folder: Callable[..., Path]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1, max_seq_len=20, long_text="error")
    results = pii(iter(["a", "b", words(40), "c"]))
    assert [next(results).text, next(results).text] == ["a", "b"]
    with pytest.raises(ContextLengthError, match="text 2 has"):
        next(results)
    assert not pii._scheduler.num_requests
    assert pii("c").text == "c"


def test_an_interrupted_step_leaves_everything_as_it_was(
    random: TokenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [words(n) for n in range(1, 60)]
    expected, free = random.score(texts), random._scheduler.pool.free_positions

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    others = random.score(iter(texts))
    first = next(others)
    with monkeypatch.context() as patch:
        patch.setattr("fastcore.engine.scheduler.run_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            random("hello")
    for scores, solo in zip([first, *others], expected, strict=True):
        assert_same(scores, solo)
    assert not random._scheduler.num_requests
    assert random._scheduler.pool.free_positions == free


def test_callers_on_several_threads_get_their_own_results(random: TokenClassifier) -> None:
    texts = [[words(1 + (7 * n + 3 * caller) % 60, n) for n in range(25)] for caller in range(4)]
    expected = [random.score(own) for own in texts]
    results: list[list[TokenScores] | BaseException] = [[]] * 4

    def call(caller: int) -> None:
        try:
            results[caller] = list(random.score(iter(texts[caller])))
        except BaseException as error:
            results[caller] = error

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, reference in zip(results, expected, strict=True):
        assert isinstance(own, list), own
        for scores, solo in zip(own, reference, strict=True):
            assert_same(scores, solo)


# ---------------------------------------------------------------- long texts


@pytest.mark.case("I06")
@pytest.mark.parametrize("overlap", [None, 0, 1, 16, 63])
def test_windows_find_what_one_large_window_finds(
    labelled_folder: Path, labelled: TokenClassifier, overlap: int | None
) -> None:
    small = TokenClassifier(labelled_folder, num_threads=1, max_seq_len=64, overlap=overlap)
    for num_words in (20, 21, 22, 23, 24, 25, 60, 200):
        text = words(num_words)
        whole, parts = labelled(text), small(text)
        assert parts.entities == whole.entities
        assert parts.num_tokens == whole.num_tokens
        assert parts.covered
        assert (parts.windows > 1) == (parts.num_tokens > 64)
        assert whole.windows == 1


@pytest.mark.case("I06")
@pytest.mark.parametrize("overlap", [0, 16, 31])
def test_an_entity_across_windows_is_found_whole(labelled_folder: Path, overlap: int) -> None:
    small = TokenClassifier(labelled_folder, num_threads=1, max_seq_len=32, overlap=overlap)
    for before in range(20, 36):
        text = "x" * before + " " + "8" * 60 + " end"
        assert found(small, text) == [(PHONE, "8" * 60)]
        assert small(text).windows > 1


def test_each_token_is_scored_by_the_window_that_owns_it(tiny_folder: Callable[..., Path]) -> None:
    small = TokenClassifier(tiny_folder("pii_masking"), num_threads=1, max_seq_len=48, overlap=12)
    scores = small.score(words(60))
    parts = [small.logits(scores.token_ids[start:end]) for start, end in scores.windows]
    for token, row in enumerate(scores.logits):
        assert any(
            start <= token < end and np.array_equal(row, logits[token - start])
            for (start, end), (logits, _) in zip(scores.windows, parts, strict=True)
        )
    assert scores.sensitivity_logit == max(sensitivity for _, sensitivity in parts)


@pytest.mark.fault("B5")
def test_a_longer_window_reads_a_text_at_once(tiny_folder: Callable[..., Path], random: TokenClassifier) -> None:
    """max_seq_len can be raised to what the model has positions for; a result says in how many windows it was read."""
    folder = tiny_folder("pii_masking")
    short = TokenClassifier(folder, num_threads=1, max_seq_len=100)
    whole = TokenClassifier(folder, num_threads=1, max_seq_len=short.config.context_length)
    text = words(3 * MAX_ROWS // 4)
    scores = whole.score(text)
    assert 100 < scores.num_tokens <= whole.max_seq_len
    assert (len(scores.windows), whole(text).windows) == (1, 1)
    assert np.array_equal(scores.logits, whole.logits(scores.token_ids)[0])
    parts = short.score(text)
    assert len(parts.windows) == short(text).windows > 1
    assert not np.array_equal(parts.logits, scores.logits)
    with pytest.raises(ValueError, match=f"from 1 to the model's {short.config.context_length}"):
        TokenClassifier(folder, max_seq_len=short.config.context_length + 1)


def test_windows_end_at_message_boundaries(tiny_folder: Callable[..., Path]) -> None:
    pii = TokenClassifier(tiny_folder("pii_masking"), num_threads=1, max_seq_len=40, overlap=4)
    text = "\n".join(["hello my name"] * 12)
    boundaries = [i + 1 for i, character in enumerate(text) if character == "\n"]
    scores = pii.score(text, boundaries=boundaries)
    for window in scores.windows[:-1]:
        start = scores.offsets[window.end][0]
        assert start + len(text[start:]) - len(text[start:].lstrip()) in boundaries
    assert pii(text, boundaries=boundaries).windows == len(scores.windows)
    with pytest.raises(ValueError, match="belong to one text"):
        pii([text], boundaries=boundaries)


@pytest.mark.fault("B3")
def test_a_long_text_can_be_refused_or_truncated(labelled_folder: Path) -> None:
    strict, short = (
        TokenClassifier(labelled_folder, num_threads=1, max_seq_len=16, long_text=mode)
        for mode in ("error", "truncate")
    )
    text = "BOB " * 10
    with pytest.raises(ContextLengthError, match=r"has 40 tokens and the window holds 16; long_text='windows'"):
        strict(text)
    result = short(text)
    assert not result.covered
    assert (result.num_tokens, result.windows, len(result.entities)) == (40, 1, 4)
    for masking in (lambda: short.mask(text), lambda: result.mask(MaskingRules()), result.check_covered):
        with pytest.raises(ContextLengthError, match="the rest would show"):
            masking()
    assert short("BOB").covered


def test_wrong_arguments_are_refused_at_once(labelled_folder: Path) -> None:
    for arguments, message in (
        ({"long_text": "cut"}, "long_text is 'cut'"),
        ({"overlap": -1}, "overlap is -1"),
        ({"overlap": 16, "max_seq_len": 16}, "overlap is 16"),
        ({"max_seq_len": 0}, "max_seq_len is 0"),
        ({"max_seq_len": 4097}, "max_seq_len is 4097"),
        ({"num_threads": 0}, "num_threads is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenClassifier(labelled_folder, **arguments)
    with pytest.raises(TypeError):
        TokenClassifier(labelled_folder, windows=3)
