"""Label paths, spans with forced labels, and windows; offsets come from the tokenizers library where bytes matter."""

import itertools
import math
import unicodedata

import numpy as np
import pytest
import tolerances
from oracle import viterbi as oracle
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from fastcore._kernels import viterbi
from fastcore.checkpoints.hf_config import PII_LABELS
from fastcore.errors import NonFiniteError, UnsupportedModelError
from fastcore.pii.labels import OPERATING_POINTS, Labels, OperatingPoint, operating_point
from fastcore.pii.spans import Entity, decode_spans, utf8_offsets, utf16_offsets
from fastcore.pii.windows import Window, merge_windows, plan_windows, window_owners

BIES = Labels(PII_LABELS)
BIO = Labels(("O", "B-person", "I-person", "B-phone", "I-phone"))


def best_path(logits, labels=BIES, b_bias=0.0, e_bias=0.0) -> list[int]:
    scores = labels.transition_scores(b_bias, e_bias)
    return viterbi(logits, scores, labels.start_scores, labels.end_scores).tolist()


# ---- Labels


def test_default_labels_are_those_of_the_pii_model():
    assert len(PII_LABELS) == 37
    assert PII_LABELS[:6] == ("O", "B-private_person", "I-private_person", "E-private_person", "S-private_person",
                              "B-private_email")  # fmt: skip
    assert BIES.entity_types == (
        "private_person", "private_email", "private_phone", "private_address", "private_url", "private_date",
        "account_number", "secret", "other_pii",
    )  # fmt: skip


def test_legal_transitions_of_bies_are_the_oracles():
    legal = [[oracle.is_legal(before, after) for after in PII_LABELS] for before in PII_LABELS]
    assert BIES.legal_transitions.tolist() == legal
    assert BIES.may_start.tolist() == [name[0] in "OBS" for name in PII_LABELS]
    assert BIES.may_end.tolist() == [name[0] in "OES" for name in PII_LABELS]


def test_legal_transitions_of_bio():
    #                     O  B-pe I-pe B-ph I-ph
    assert BIO.legal_transitions.astype(int).tolist() == [
        [1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]  # fmt: skip
    assert BIO.may_start.tolist() == [True, True, False, True, False]
    assert BIO.may_end.all()


def test_a_type_without_b_labels_may_begin_with_i():
    labels = Labels(("O", "I-name", "B-city", "I-city"))
    assert labels.may_start.tolist() == [True, True, True, False]
    assert labels.legal_transitions.astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_types_with_dashes_and_labels_out_of_order():
    labels = Labels(("I-card-number", "B-card-number", "O"))
    assert labels.entity_types == ("card-number",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("O", "B-x", "SENSITIVITY"), "label 2 is 'SENSITIVITY'"),
        (("O", "LABEL_1"), "label 1 is 'LABEL_1'"),
        (("O", "B-"), "label 1 is 'B-'"),
        (("B-x", "I-x"), "none of the 2 labels is 'O'"),
        (("O", "B-x", "B-x"), "labels occur twice: B-x"),
    ],
)
def test_labels_that_are_not_bio_or_bies_are_refused(names, message):
    with pytest.raises(UnsupportedModelError, match=message):
        Labels(names)


def test_transition_scores_carry_both_biases():
    scores = BIES.transition_scores(-0.5, 0.25)
    assert scores.dtype == np.float32
    assert np.array_equal(scores, oracle.transition_scores(PII_LABELS, -0.5, 0.25, np.float32))
    e_person, b_email, o = (PII_LABELS.index(name) for name in ("E-private_person", "B-private_email", "O"))
    assert (scores[e_person, b_email], scores[e_person, o], scores[o, b_email]) == (-0.25, 0.25, -0.5)


def test_a_checkpoints_own_mask_replaces_the_legal_transitions():
    none_out_of_o = BIO.legal_transitions.copy()
    none_out_of_o[0, 1:] = False
    scores = BIO.transition_scores(legal=none_out_of_o)
    assert np.array_equal(np.isfinite(scores), none_out_of_o)


def test_operating_points():
    shipped = OperatingPoint(-0.5, 0.25)
    assert operating_point(None, shipped) == operating_point("default", shipped) == shipped
    recall, precision = (operating_point(name, shipped) for name in ("recall", "precision"))
    assert precision.b_bias < shipped.b_bias < recall.b_bias
    assert precision.e_bias < shipped.e_bias < recall.e_bias
    assert operating_point((1, 2.5), shipped) == OperatingPoint(1.0, 2.5)
    with pytest.raises(ValueError, match="one of default, recall, precision"):
        operating_point("fast", shipped)
    for wrong in ((1.0,), (1.0, math.nan)):
        with pytest.raises(ValueError, match="two finite biases"):
            operating_point(wrong, shipped)
    assert set(OPERATING_POINTS) == {"default", "recall", "precision"}


# ---- The best path


@pytest.mark.parametrize("labels", [BIES, BIO, Labels(("O",))], ids=["BIES", "BIO", "O"])
def test_the_path_is_the_best_of_all_legal_ones(labels):
    rng = np.random.default_rng(0)
    few = Labels(labels.names[:5])
    size = len(few.names)
    for num_tokens in (1, 2, 3, 4):
        for _ in range(10):
            # Multiples of 1/4: sums are exact in any order, and ties do occur.
            logits = np.round(rng.normal(size=(num_tokens, size)) * 8) / 4
            steps = few.transition_scores(-0.25, 0.5).astype(float)
            scores = {
                path: few.start_scores[path[0]] + few.end_scores[path[-1]]
                + sum(logits[t, label] for t, label in enumerate(path))
                + sum(steps[a, b] for a, b in itertools.pairwise(path))
                for path in itertools.product(range(size), repeat=num_tokens)
            }  # fmt: skip
            highest = max(scores.values())
            tied = [path for path, score in scores.items() if score == highest]
            chosen = tuple(best_path(logits.astype(np.float32), few, -0.25, 0.5))
            assert chosen == min(tied, key=lambda path: path[::-1])  # ties: the lowest label, from the last token back


def test_paths_equal_the_oracles():
    rng = np.random.default_rng(1)
    for num_tokens in (1, 2, 7, 64, 300):
        logits = (rng.normal(size=(num_tokens, 37)) * 3).astype(np.float32)
        path = best_path(logits, BIES, -0.5, 0.25)
        _, best_score = oracle.best_path(logits, PII_LABELS, -0.5, 0.25)
        score = oracle.path_score(path, logits, PII_LABELS, -0.5, 0.25)
        assert score == pytest.approx(best_score, rel=tolerances.VITERBI_SCORE)


@pytest.mark.parametrize("labels", [BIES, BIO, Labels(("O",))], ids=["BIES", "BIO", "O"])
@pytest.mark.parametrize("step", [0.25, 1e-3, 1e30])
def test_paths_equal_the_f32_reference_exactly(labels, step):
    """Coarse steps make ties, fine ones rounding, and huge ones sums that overflow to forbidden."""
    rng = np.random.default_rng(2)
    scores = labels.transition_scores(-0.5, 0.25), labels.start_scores, labels.end_scores
    for num_tokens in (0, 1, 2, 3, 17, 64, 300):
        logits = (np.round(rng.normal(size=(num_tokens, len(labels.names))) * 8) * step).astype(np.float32)
        assert viterbi(logits, *scores).tolist() == oracle.best_path_f32(logits, *scores)


def test_a_long_text_loses_no_precision():
    """Two labels a hundredth apart, after sums whose float32 spacing is coarser than that."""
    labels = Labels(("O", "S-x"))
    logits = np.full((200_000, 2), 50.0, np.float32)
    logits[:, 1] += np.where(np.arange(200_000) % 2 == 0, np.float32(0.01), np.float32(-0.01))
    assert best_path(logits, labels) == [1, 0] * 100_000


def test_an_empty_text_has_an_empty_path():
    assert best_path(np.zeros((0, 37), np.float32)) == []


def test_a_single_token_cannot_be_the_beginning_of_an_entity():
    logits = np.zeros((1, 37), np.float32)
    logits[0, PII_LABELS.index("B-secret")] = 9
    logits[0, PII_LABELS.index("S-private_url")] = 1
    assert best_path(logits) == [PII_LABELS.index("S-private_url")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_label_logits_raise(bad):
    logits = np.zeros((3, 37), np.float32)
    logits[1, 4] = bad
    with pytest.raises(NonFiniteError):
        best_path(logits)


def test_no_legal_path_is_an_error():
    nothing = np.full(5, -np.inf, np.float32)
    with pytest.raises(ValueError, match="no path"):
        viterbi(np.zeros((2, 5), np.float32), BIO.transition_scores(), nothing, BIO.end_scores)


def test_a_higher_operating_point_finds_more():
    logits = np.zeros((2, 37), np.float32)
    logits[0, 0] = logits[1, 0] = 1.0  # O, by a total of 2 - 1.2
    logits[0, PII_LABELS.index("B-secret")] = logits[1, PII_LABELS.index("E-secret")] = 0.6
    padded = np.concatenate([logits[:1] * [[1.0] + [0.0] * 36], logits, logits[:1] * [[1.0] + [0.0] * 36]])
    padded = padded.astype(np.float32)
    assert best_path(padded) == [0, 0, 0, 0]
    found = best_path(padded, BIES, *operating_point("recall", OperatingPoint(0, 0)))
    assert [PII_LABELS[label] for label in found] == ["O", "B-secret", "E-secret", "O"]


# ---- Spans


def byte_offsets(text: str, normalizer=None) -> list[tuple[int, int]]:
    """The offsets of a byte-level tokenizer without merges: one token a UTF-8 byte, of the normalised text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer.encode(text).offsets


def forced(offsets, *entities: tuple[int, int, str], labels=BIES) -> list[int]:
    """The path that labels exactly the tokens which touch the given (start, end, type) spans of characters."""
    path = [labels.names.index("O")] * len(offsets)
    for start, end, kind in entities:
        tokens = [t for t, (s, e) in enumerate(offsets) if s < end and e > start]
        tags = ["S"] if len(tokens) == 1 else ["B", *"I" * (len(tokens) - 2), "E"]
        for token, tag in zip(tokens, tags, strict=True):
            path[token] = labels.names.index(f"{tag}-{kind}")
    return path


def spans(path, offsets, text, labels=BIES, **options) -> list[Entity]:
    logits = np.zeros((len(path), len(labels.names)), np.float32)
    found = decode_spans(path, logits, offsets, text, labels, **options)
    for entity in found:
        assert text[entity.start : entity.end] == entity.text
    return found


def texts(entities) -> list[str]:
    return [entity.text for entity in entities]


@pytest.mark.case("I01")
def test_spans_after_emoji_and_multi_byte_characters():
    text = "📷 Bob ☎ 555-0100 👩\u200d👩\u200d👧 Ann"
    offsets = byte_offsets(text)
    wanted = [(2, 5, "private_person"), (8, 16, "private_phone"), (23, 26, "private_person")]
    found = spans(forced(offsets, *wanted), offsets, text)
    assert [(e.start, e.end, e.label) for e in found] == wanted
    assert texts(found) == ["Bob", "555-0100", "Ann"]


@pytest.mark.case("I01")
def test_a_character_split_over_tokens_is_covered_whole():
    text = "a é b"
    offsets = byte_offsets(text)
    assert offsets[2] == offsets[3] == (2, 3)  # the two bytes of é
    for byte in (2, 3):
        path = [0] * len(offsets)
        path[byte] = PII_LABELS.index("S-secret")
        assert [(e.start, e.end) for e in spans(path, offsets, text)] == [(2, 3)]
    both = [0, 0, PII_LABELS.index("S-secret"), PII_LABELS.index("S-private_url"), 0, 0]
    assert [(e.start, e.end, e.label) for e in spans(both, offsets, text)] == [(2, 3, "secret")]


NAMES = {
    "decomposed Latin": "Jose\u0301 Garci\u0301a",
    "decomposed Hangul": unicodedata.normalize("NFD", "김철수"),
    "ligature": "ﬁnn",
    "Arabic with vowel marks": "مُحَمَّد",
    "Devanagari with vowel signs": "प्रिया",
    "mark at the end": "Ann\u0301\u0323",
    "variation selector": "葛\U000e0100",
    "half-width kana with voicing": "ﾀﾞﾝ",
}


@pytest.mark.case("I02")
@pytest.mark.parametrize("normalizer", [None, "NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_no_letter_or_mark_of_a_name_stays_outside_its_span(name, normalizer):
    for before, after in (("Dear ", ", hello"), ("", ""), ("(", ")")):
        text = before + name + after
        offsets = byte_offsets(text, normalizer and getattr(normalizers, normalizer)())
        path = forced(offsets, (len(before), len(before) + len(name), "private_person"))
        (entity,) = spans(path, offsets, text)
        assert (entity.start, entity.end) == (len(before), len(before) + len(name))


@pytest.mark.case("I02")
def test_a_span_of_only_a_mark_takes_its_base_along():
    text = "x e\u0301 y"
    offsets = byte_offsets(text)
    assert texts(spans(forced(offsets, (3, 4, "secret")), offsets, text)) == ["e\u0301"]
    assert texts(spans(forced(offsets, (2, 3, "secret")), offsets, text)) == ["e\u0301"]


@pytest.mark.case("I01")
@pytest.mark.parametrize(
    "emoji", ["👩\u200d👩\u200d👧", "👍🏽", "❤\ufe0f", "🇩🇪", "🏴\U000e0067\U000e0062\U000e007f", "🧑🏿\u200d🚀"]
)
def test_an_emoji_sequence_is_covered_whole(emoji):
    text = f"🇫🇷🇫🇷{emoji}🇫🇷"
    for position in range(4, 4 + len(emoji)):
        offsets = byte_offsets(text)
        (entity,) = spans(forced(offsets, (position, position + 1, "other_pii")), offsets, text)
        assert entity.text == emoji


def test_spans_stay_disjoint_when_the_second_begins_with_the_firsts_mark():
    text = "Ze\u0301X"
    path = [PII_LABELS.index(name) for name in ("B-secret", "E-secret", "B-private_url", "E-private_url")]
    found = spans(path, [(0, 1), (1, 2), (2, 3), (3, 4)], text)
    assert [(e.start, e.end) for e in found] == [(0, 3), (3, 4)]


@pytest.mark.case("I03")
@pytest.mark.parametrize(
    ("text", "tokens", "span"),
    [
        ("Contact Alice now", [(0, 7), (7, 13), (13, 17)], (8, 13)),
        ("  Alice", [(0, 1), (1, 7)], (2, 7)),
        ("x Alice\n", [(0, 1), (1, 8)], (2, 7)),
        ("x\u2028Alice\r\n\t", [(0, 1), (1, 10)], (2, 7)),
    ],
)
def test_whitespace_is_trimmed_unless_asked_otherwise(text, tokens, span):
    path = [0, PII_LABELS.index("S-private_person"), 0][: len(tokens)]
    (entity,) = spans(path, tokens, text)
    assert (entity.start, entity.end) == span
    (entity,) = spans(path, tokens, text, trim=False)
    assert (entity.start, entity.end) == tokens[1]


@pytest.mark.case("I03")
def test_spans_of_only_whitespace_or_nothing_are_dropped():
    text = "a  b"
    path = [0, PII_LABELS.index("S-secret"), PII_LABELS.index("S-secret"), 0]
    assert spans(path, [(0, 1), (1, 3), (3, 3), (3, 4)], text) == []


@pytest.mark.case("I10")
def test_line_ends_and_controls_do_not_shift_spans():
    text = "\ufeffName:\r\nBob\r\n\tTel 1\x0c\u2028Eve"
    offsets = byte_offsets(text)
    bob, eve = text.index("Bob"), text.index("Eve")
    found = spans(forced(offsets, (bob, bob + 3, "private_person"), (eve, eve + 3, "private_person")), offsets, text)
    assert [(e.start, e.text) for e in found] == [(bob, "Bob"), (eve, "Eve")]


def test_entities_follow_the_labels():
    text = "abcdefgh"
    offsets = [(i, i + 1) for i in range(8)]
    names = ["B-secret", "E-secret", "S-secret", "S-secret", "B-secret", "I-secret", "E-secret", "O"]
    assert texts(spans([PII_LABELS.index(n) for n in names], offsets, text)) == ["ab", "c", "d", "efg"]
    names = ["B-person", "I-person", "B-person", "O", "B-phone", "I-phone", "B-person", "I-person"]
    found = spans([BIO.names.index(n) for n in names], offsets, text, BIO)
    assert [(e.text, e.label) for e in found] == [("ab", "person"), ("c", "person"), ("ef", "phone"), ("gh", "person")]


def test_a_path_that_is_not_legal_still_gives_disjoint_spans():
    text = "abcdef"
    offsets = [(i, i + 1) for i in range(6)]
    names = ["I-secret", "E-secret", "E-secret", "B-secret", "I-private_url", "O"]
    found = spans([PII_LABELS.index(n) for n in names], offsets, text)
    assert [(e.text, e.label) for e in found] == [
        ("ab", "secret"), ("c", "secret"), ("d", "secret"), ("e", "private_url"),
    ]  # fmt: skip


def test_the_score_is_the_sigmoid_of_the_mean_chosen_logit():
    path = [PII_LABELS.index(name) for name in ("B-secret", "I-secret", "E-secret", "S-secret")]
    logits = np.full((4, 37), 7.0, np.float32)
    for token, value in enumerate((1.0, -2.0, 4.0, -800.0)):
        logits[token, path[token]] = value
    first, second = decode_spans(path, logits, [(0, 1), (1, 2), (2, 3), (3, 4)], "abcd", BIES)
    assert first.score == pytest.approx(1 / (1 + math.exp(-1.0)), rel=tolerances.DOUBLE)
    assert second.score == 0.0


def test_offsets_in_utf8_and_utf16():
    text = "aé📷\ud800z"
    spans = [(4, 5), (0, 1), (1, 3), (2, 3), (0, 5), (5, 5)]
    assert utf8_offsets(text, spans) == [(10, 11), (0, 1), (1, 7), (3, 7), (0, 11), (11, 11)]
    assert utf16_offsets(text, spans) == [(5, 6), (0, 1), (1, 4), (2, 4), (0, 6), (6, 6)]


# ---- Windows


def word_tokens(text: str) -> list[tuple[int, int]]:
    """Tokens of at most three characters, the space before a word with its first token, as byte-level BPE has it."""
    offsets = []
    start = 0
    for position in range(1, len(text) + 1):
        if position == len(text) or text[position].isspace() or position - start == 3:
            offsets.append((start, position))
            start = position
    return offsets


def prose(num_words: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    return " ".join("abcdefghijkl"[: rng.integers(1, 9)] for _ in range(num_words))


def context_model(token_ids: np.ndarray, reach: int) -> np.ndarray:
    """Stand-in for a classifier: logits [num_tokens, 5] that depend on the `reach` tokens on either side."""
    padded = np.pad(token_ids.astype(np.float64), reach)
    window = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    mixed = window @ np.arange(1.0, 2 * reach + 2)
    return np.stack([np.cos(mixed * (label + 1)) for label in range(5)], axis=1).astype(np.float32)


@pytest.mark.parametrize(("max_tokens", "overlap"), [(50, 12), (50, 0), (50, 49), (50, 48), (50, 25), (1, 0), (2, 1)])
@pytest.mark.parametrize("text", [prose(120), "x" * 500, prose(17) + " " * 200 + prose(17)])
def test_windows_cover_everything_within_the_limit(text, max_tokens, overlap):
    offsets = word_tokens(text)
    windows = plan_windows(offsets, text, max_tokens, overlap)
    assert windows[0].start == 0
    assert windows[-1].end == len(offsets)
    assert all(0 < end - start <= max_tokens for start, end in windows)
    for before, after in itertools.pairwise(windows):
        assert before.start < after.start
        assert before.end < after.end
        assert before.end - after.start >= overlap


@pytest.mark.case("I06")
def test_windows_are_cut_where_words_begin():
    text = prose(400)
    offsets = word_tokens(text)
    windows = plan_windows(offsets, text, 64, 16)
    assert len(windows) > 5
    for cut in {window.start for window in windows} | {window.end for window in windows[:-1]}:
        assert cut == 0 or text[offsets[cut][0]] == " "


def test_windows_prefer_the_beginning_of_a_message():
    messages = [prose(20, seed) + "\n" for seed in range(12)]
    text = "".join(messages)
    starts = [0, *itertools.accumulate(len(message) for message in messages)]
    offsets = word_tokens(text)
    longest = max(len(word_tokens(message)) for message in messages)
    windows = plan_windows(offsets, text, 4 * longest, 1, boundaries=starts)
    assert len(windows) >= 3
    for window in windows[:-1]:
        start, _ = offsets[window.end]
        assert len(text) - len(text[start:].lstrip()) in starts


def test_text_that_fits_is_one_window_and_no_text_none():
    offsets = word_tokens("abc def")
    assert plan_windows(offsets, "abc def", 3, 1) == [Window(0, 3)]
    assert plan_windows([], "", 3, 1) == []


@pytest.mark.parametrize(("max_tokens", "overlap"), [(0, 0), (5, 5), (5, -1)])
def test_impossible_windows_are_refused(max_tokens, overlap):
    with pytest.raises(ValueError, match="overlap"):
        plan_windows(word_tokens("abc"), "abc", max_tokens, overlap)


def test_a_token_belongs_to_the_window_that_sees_most_around_it():
    assert window_owners([Window(0, 8), Window(4, 12)]).tolist() == [0] * 6 + [1] * 6
    assert window_owners([Window(0, 8), Window(3, 12)]).tolist() == [0] * 6 + [1] * 6
    assert window_owners([Window(0, 5), Window(5, 9)]).tolist() == [0] * 5 + [1] * 4
    assert window_owners([Window(0, 5), Window(1, 6), Window(2, 7)]).tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert window_owners([]).tolist() == []


@pytest.mark.case("I06")
@pytest.mark.parametrize(("max_tokens", "overlap", "reach"), [(40, 12, 6), (40, 39, 15), (40, 21, 10), (101, 100, 30)])
def test_merged_windows_equal_one_large_window(max_tokens, overlap, reach):
    """Exactly, where the overlap holds the context that the model uses on both sides."""
    text = prose(60, seed=3)
    offsets = word_tokens(text)
    token_ids = np.random.default_rng(4).integers(0, 50, len(offsets))
    windows = plan_windows(offsets, text, max_tokens, overlap)
    assert len(windows) > 1
    merged = merge_windows(windows, [context_model(token_ids[start:end], reach) for start, end in windows])
    assert np.array_equal(merged, context_model(token_ids, reach))


@pytest.mark.case("I06")
@pytest.mark.parametrize("overlap", [0, 8, 31])
def test_an_entity_across_a_border_is_found_once_and_whole(overlap):
    text = prose(60, seed=5)
    offsets = word_tokens(text)
    windows = plan_windows(offsets, text, 32, overlap)
    border = windows[0].end
    path = [0] * len(offsets)
    path[border - 6 : border + 6] = [PII_LABELS.index(f"{tag}-private_address") for tag in "BIIIIIIIIIIE"]
    logits = np.zeros((len(offsets), 37), np.float32)
    logits[np.arange(len(offsets)), path] = 4.0
    merged = merge_windows(windows, [logits[start:end] for start, end in windows])
    found = decode_spans(best_path(merged), merged, offsets, text, BIES)
    begin, end = offsets[border - 6][0], offsets[border + 5][1]
    assert texts(found) == [text[begin:end].strip()]


def test_merging_needs_logits_for_every_window():
    with pytest.raises(ValueError, match="1 arrays of logits for 2 windows"):
        merge_windows([Window(0, 2), Window(1, 3)], [np.zeros((2, 5), np.float32)])
