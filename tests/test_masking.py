"""Masking with given entities: what is replaced, by what, and that nothing else in the text changes."""

import hashlib
import hmac
import random
import re

import pytest

from fastcore.pii.masking import MaskingRules, mask_text, unmask
from fastcore.pii.spans import Entity


def entity(text: str, start: int, end: int, label: str = "private_person", score: float = 0.9) -> Entity:
    return Entity(label, start, end, text[start:end], score)


def found(text: str, value: str, label: str = "private_person", score: float = 0.9) -> Entity:
    """The first occurrence of a value."""
    return entity(text, text.index(value), text.index(value) + len(value), label, score)


# ---- Operators

TEXT = "Ann Lee wrote to Bob (bob@example.org); Ann Lee waits."
PEOPLE = [
    entity(TEXT, 0, 7),
    entity(TEXT, 17, 20),
    entity(TEXT, 22, 37, "private_email"),
    entity(TEXT, 40, 47),
]


@pytest.mark.parametrize(
    ("operator", "masked"),
    [
        ("replace", "[PRIVATE_PERSON] wrote to [PRIVATE_PERSON] ([PRIVATE_EMAIL]); [PRIVATE_PERSON] waits."),
        (
            "placeholder",
            "[PRIVATE_PERSON_1] wrote to [PRIVATE_PERSON_2] ([PRIVATE_EMAIL_1]); [PRIVATE_PERSON_1] waits.",
        ),
        ("mask", "******* wrote to *** (***************); ******* waits."),
        ("redact", " wrote to  ();  waits."),
        (lambda e: f"<{e.label[8:]} {len(e.text)}>", "<person 7> wrote to <person 3> (<email 15>); <person 7> waits."),
    ],
)
def test_operators(operator, masked):
    assert mask_text(TEXT, PEOPLE, operator).text == masked


def test_hash_is_the_hmac_sha256_under_the_callers_key():
    for key in ("secret", b"secret"):
        masked = mask_text(TEXT, PEOPLE[1:2], "hash", key=key).text
        digest = hmac.new(b"secret", b"Bob", hashlib.sha256).hexdigest()
        assert masked == TEXT.replace("Bob", f"[PRIVATE_PERSON:{digest}]")
    assert mask_text(TEXT, PEOPLE[1:2], "hash", key="other").text != masked


@pytest.mark.parametrize("key", [None, "", b""])
def test_hash_needs_a_key(key):
    for options in ({"operator": "hash"}, {"per_label": {"private_email": "hash"}}):
        with pytest.raises(ValueError, match="needs key="):
            mask_text("", [], key=key, **options)


def test_mask_keeps_some_characters():
    text = "card 4111-1111-1111-1234 pin 1234"
    card, pin = found(text, "4111-1111-1111-1234", "account_number"), entity(text, 29, 33, "secret")
    assert mask_text(text, [card, pin], "mask", keep=4).text == "card ***************1234 pin ****"
    assert mask_text(text, [card, pin], "mask", keep=4, keep_from="start", mask_char="#").text == (
        "card 4111############### pin ####"
    )


def test_mask_keeps_no_half_of_a_character():
    text = "Rene\u0301e\u0301 E\u0301tienne"
    whole = entity(text, 0, len(text))
    assert mask_text(text, [whole], "mask", keep=8).text == "*" * 8 + "E\u0301tienne"
    assert mask_text(text, [whole], "mask", keep=7).text == "*" * 10 + "tienne"
    assert mask_text("e\u0301e\u0301e\u0301", [entity("e\u0301" * 3, 0, 6)], "mask", keep=3).text == "****e\u0301"
    kept = mask_text("e\u0301" * 3, [entity("e\u0301" * 3, 0, 6)], "mask", keep=3, keep_from="start").text
    assert kept == "e\u0301****"


def test_an_operator_for_each_label():
    masked = mask_text(TEXT, PEOPLE, "placeholder", per_label={"private_email": "redact", "secret": None})
    assert masked.text == "[PRIVATE_PERSON_1] wrote to [PRIVATE_PERSON_2] (); [PRIVATE_PERSON_1] waits."
    left = mask_text(TEXT, PEOPLE, per_label={"private_person": None})
    assert left.text == TEXT.replace("bob@example.org", "[PRIVATE_EMAIL]")
    assert [item.label for item in left.items] == ["private_email"]


def test_allow_list_is_exact():
    assert mask_text(TEXT, PEOPLE, allow_list=["Ann Lee", "bob"]).text == (
        "Ann Lee wrote to [PRIVATE_PERSON] ([PRIVATE_EMAIL]); Ann Lee waits."
    )


def test_threshold_includes_its_own_score():
    text = "a b c"
    entities = [entity(text, 0, 1, score=0.49), entity(text, 2, 3, score=0.5), entity(text, 4, 5, score=1.0)]
    assert mask_text(text, entities, "mask", threshold=0.5).text == "a * *"
    assert mask_text(text, entities, "mask").text == "* * *"


def test_what_is_allowed_stays_masked_where_another_entity_overlaps_it():
    text = "Dr. Ann Lee left"
    entities = [found(text, "Ann Lee", score=0.99), found(text, "Dr. Ann", "other_pii", 0.5)]
    assert mask_text(text, entities, allow_list=["Ann Lee"]).text == "[OTHER_PII] Lee left"


def test_labels_become_words():
    masked = mask_text("x", [Entity("card-number [old]", 0, 1, "x", 1.0)], "placeholder")
    assert masked.text == "[CARD_NUMBER__OLD__1]"
    assert masked.unmask() == "x"


# ---- The items


def test_items_hold_both_positions():
    masked = mask_text(TEXT, PEOPLE, "placeholder")
    assert [item.text for item in masked.items] == ["Ann Lee", "Bob", "bob@example.org", "Ann Lee"]
    for item in masked.items:
        assert TEXT[item.start : item.end] == item.text
        assert masked.text[item.masked_start : item.masked_end] == item.replacement
    assert masked.mapping == {
        "[PRIVATE_PERSON_1]": "Ann Lee",
        "[PRIVATE_PERSON_2]": "Bob",
        "[PRIVATE_EMAIL_1]": "bob@example.org",
    }


def test_the_repr_shows_no_original():
    shown = repr(mask_text(TEXT, PEOPLE, "placeholder")) + repr(MaskingRules("hash", key="hunter2"))
    assert not re.search("Ann|Bob|bob|hunter2", shown)


def test_entities_in_any_order_and_none():
    assert mask_text(TEXT, PEOPLE[::-1]) == mask_text(TEXT, PEOPLE)
    assert mask_text(TEXT, iter(PEOPLE)) == mask_text(TEXT, PEOPLE)
    assert mask_text(TEXT, []).text == TEXT
    assert mask_text("", []).text == ""
    assert mask_text("ab", [entity("ab", 1, 1)]).text == "ab"


# ---- Overlaps


@pytest.mark.case("I07")
def test_overlapping_spans_become_disjoint_and_leave_the_rest_intact():
    text = "abcdefghijklmn, ok"
    entities = [entity(text, 0, 12, "a", 0.6), entity(text, 3, 12, "b", 0.9), entity(text, 10, 14, "c", 0.5)]
    masked = mask_text(text, entities)
    assert masked.text == "[A][B][C], ok"
    assert [(item.label, item.start, item.end) for item in masked.items] == [("a", 0, 3), ("b", 3, 12), ("c", 12, 14)]
    assert mask_text(text, entities, "placeholder").unmask() == text


@pytest.mark.case("I07")
@pytest.mark.parametrize(
    ("spans", "pieces"),
    [
        # nested: the inner one wins, the outer one is cut in two
        ([(0, 9, "a", 0.5), (3, 5, "b", 0.9)], [("a", 0, 3), ("b", 3, 5), ("a", 5, 9)]),
        # nested: the outer one wins
        ([(0, 9, "a", 0.9), (3, 5, "b", 0.5)], [("a", 0, 9)]),
        # equal scores: the longer one, then the earlier one
        ([(0, 4, "a", 0.5), (2, 9, "b", 0.5)], [("a", 0, 2), ("b", 2, 9)]),
        ([(0, 4, "a", 0.5), (2, 6, "b", 0.5)], [("a", 0, 4), ("b", 4, 6)]),
        # identical spans: the higher score, else one of them, whatever their order
        ([(2, 5, "a", 0.5), (2, 5, "b", 0.6)], [("b", 2, 5)]),
        ([(2, 5, "b", 0.5), (2, 5, "a", 0.5)], [("a", 2, 5)]),
        # touching spans do not overlap
        ([(0, 3, "a", 0.5), (3, 6, "a", 0.9)], [("a", 0, 3), ("a", 3, 6)]),
        # a chain: the middle one loses at both ends
        ([(0, 4, "a", 0.9), (2, 8, "b", 0.5), (6, 10, "c", 0.7)], [("a", 0, 4), ("b", 4, 6), ("c", 6, 10)]),
    ],
)
def test_how_overlaps_are_divided(spans, pieces):
    text = "abcdefghijkl"
    for ordered in (spans, spans[::-1]):
        masked = mask_text(text, [entity(text, *span) for span in ordered], "placeholder")
        assert [(item.label, item.start, item.end) for item in masked.items] == pieces
        assert masked.unmask() == text


def test_what_an_overlap_leaves_over_is_trimmed_and_shows_nothing():
    text = "Ann Lee Berlin 10115"
    entities = [entity(text, 0, 20, "private_address", 0.5), entity(text, 4, 7, "private_person", 0.9)]
    assert mask_text(text, entities, "mask", keep=2).text == "*** *ee ************"
    only_space_left = [entity(text, 0, 4, "private_address", 0.5), entity(text, 0, 3, "private_person", 0.9)]
    assert mask_text(text, only_space_left).text == "[PRIVATE_PERSON] Lee Berlin 10115"


@pytest.mark.case("I07")
def test_no_covered_character_shows_and_no_other_changes():
    """Random overlapping spans: the masked text is the original with every covered character starred."""
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choice("abcdefgh") for _ in range(30))
        entities = []
        for _ in range(rng.randrange(8)):
            start = rng.randrange(30)
            end = rng.randrange(start, 31)
            entities.append(entity(text, start, end, rng.choice("xyz"), rng.choice([0.2, 0.5, 0.9])))
        covered = {position for e in entities for position in range(e.start, e.end)}
        expected = "".join("*" if i in covered else letter for i, letter in enumerate(text))
        masked = mask_text(text, entities, "mask")
        assert masked.text == expected
        owners = {position: item.label for item in masked.items for position in range(item.start, item.end)}
        for position in covered:
            over = [e for e in entities if e.start <= position < e.end]
            best = max(over, key=lambda e: (e.score, e.end - e.start, -e.start, -ord(e.label)))
            assert owners[position] == best.label


# ---- Undoing


def test_unmask_undoes_placeholders_when_the_text_has_some_of_its_own():
    text = "[PRIVATE_PERSON_1] met Ann, [PRIVATE_PERSON_3] met Bob and [PRIVATE_PERSON_02]."
    masked = mask_text(text, [found(text, "Ann"), found(text, "Bob")], "placeholder")
    assert masked.mapping == {"[PRIVATE_PERSON_2]": "Ann", "[PRIVATE_PERSON_4]": "Bob"}
    assert unmask(masked.text, masked.mapping) == text


def test_unmask_when_a_value_reads_like_a_placeholder():
    text = "x [PRIVATE_PERSON_1] y Ann"
    masked = mask_text(text, [found(text, "[PRIVATE_PERSON_1]"), found(text, "Ann")], "placeholder")
    assert masked.text == "x [PRIVATE_PERSON_2] y [PRIVATE_PERSON_3]"
    assert masked.unmask() == text


def test_unmask_of_random_texts_full_of_brackets():
    rng = random.Random(5)
    parts = ["[", "]", "_", "1", "2", "A", "[A_1]", "[A_2]", "[A_", "[[A_3]]", " ", "é\u0301", "\\1"]
    for _ in range(1000):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 15)))
        entities = []
        for _ in range(rng.randrange(5)):
            start = rng.randrange(len(text))
            end = rng.randrange(start, len(text) + 1)
            entities.append(entity(text, start, end, rng.choice("ab"), rng.random()))
        masked = mask_text(text, entities, "placeholder")
        assert masked.unmask() == text


def test_what_other_operators_leave_is_never_taken_for_a_placeholder():
    text = "Ann [PRIVATE_PERSON_xxx1] Bob"
    entities = [found(text, "xxx", "secret"), found(text, "Ann"), found(text, "Bob")]
    masked = mask_text(text, entities, "placeholder", per_label={"secret": "redact"})
    assert masked.text == "[PRIVATE_PERSON_3] [PRIVATE_PERSON_1] [PRIVATE_PERSON_2]"
    assert masked.unmask() == "Ann [PRIVATE_PERSON_1] Bob"


def test_numbers_go_on_from_an_earlier_mapping():
    first = mask_text("Ann met Bob", [found("Ann met Bob", "Ann"), found("Ann met Bob", "Bob")], "placeholder")
    text = "Bob met Eve"
    second = mask_text(text, [found(text, "Bob"), found(text, "Eve")], "placeholder", mapping=first.mapping)
    assert second.text == "[PRIVATE_PERSON_2] met [PRIVATE_PERSON_3]"
    answer = "[PRIVATE_PERSON_3] and [PRIVATE_PERSON_1], not [PRIVATE_PERSON_4]"
    assert unmask(answer, second.mapping) == "Eve and Ann, not [PRIVATE_PERSON_4]"
    assert first.mapping == {"[PRIVATE_PERSON_1]": "Ann", "[PRIVATE_PERSON_2]": "Bob"}


def test_unmask_without_a_mapping_changes_nothing():
    assert unmask("[PRIVATE_PERSON_1]", {}) == "[PRIVATE_PERSON_1]"


def test_unmask_takes_the_longest_placeholder():
    assert unmask("P1 P10 P1", {"P1": "Ann", "P10": "Bob"}) == "Ann Bob Ann"


# ---- By offsets, and only there


@pytest.mark.case("I09")
def test_only_the_labelled_occurrence_changes():
    text = "Alexandria met Alex; Alex left"
    masked = mask_text(text, [entity(text, 15, 19)])
    assert masked.text == "Alexandria met [PRIVATE_PERSON]; Alex left"


@pytest.mark.case("I01")
def test_emoji_stay_whole():
    text = "📷 Bob ☎ 555-0100 👩\u200d👩\u200d👧 Ann"
    entities = [found(text, "Bob"), found(text, "555-0100", "private_phone"), found(text, "Ann")]
    assert mask_text(text, entities).text == "📷 [PRIVATE_PERSON] ☎ [PRIVATE_PHONE] 👩\u200d👩\u200d👧 [PRIVATE_PERSON]"


@pytest.mark.case("I10")
def test_line_ends_tabs_and_marks_outside_spans_are_never_rewritten():
    text = "\ufeffName:\r\nBob\r\n\tTel 1\x0c\u2028Eve\r\r\n\x00 e\u0301 é ﬁ\n"
    masked = mask_text(text, [found(text, "Bob"), found(text, "Eve")], "mask")
    assert masked.text == "\ufeffName:\r\n***\r\n\tTel 1\x0c\u2028***\r\r\n\x00 e\u0301 é ﬁ\n"


@pytest.mark.case("I02")
def test_every_code_point_of_a_decomposed_name_goes():
    text = "Dear Jose\u0301 Garci\u0301a, e\u0301"
    masked = mask_text(text, [found(text, "Jose\u0301 Garci\u0301a")], "mask")
    assert masked.text == "Dear " + "*" * 13 + ", e\u0301"


# ---- Wrong input


def test_entities_of_another_text_are_refused():
    for wrong in (Entity("x", 0, 9, "abc", 1.0), Entity("x", -1, 2, "ab", 1.0), Entity("x", 2, 1, "", 1.0)):
        with pytest.raises(ValueError, match="outside the text"):
            mask_text("abc", [wrong])
    with pytest.raises(ValueError, match="another text"):
        mask_text("abc", [Entity("x", 0, 2, "bc", 1.0)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operator": "encrypt"}, "replace, placeholder, mask, hash, redact"),
        ({"operator": None}, "operator is None"),
        ({"per_label": {"x": "nothing"}}, "operator is 'nothing'"),
        ({"allow_list": "Ann"}, "allow_list"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"keep": -1}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"keep_from": "middle"}, "keep_from"),
        ({"mask_char": ""}, "mask_char"),
        ({"mask_char": "xx"}, "mask_char"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        mask_text("abc", [], **options)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="opperator"):
        mask_text("abc", [], opperator="mask")


def test_a_callable_must_return_a_string():
    with pytest.raises(TypeError, match="expected a string"):
        mask_text("abc", [entity("abc", 0, 1)], lambda e: None)


# ---- Whole words, and neighbours as one


@pytest.mark.parametrize(
    ("text", "found_at", "masked"),
    [
        ("Alexandria met", (0, 4), "********** met"),
        ("met Alexandria", (8, 11), "met **********"),
        ("Lee-Ann", (0, 2), "***-Ann"),
        ("x Ann, y", (2, 5), "x ***, y"),
        ("snake_case1 x", (2, 3), "*********** x"),
        # an apostrophe between letters is within a word, others are not
        ("O'Brien's", (2, 4), "*********"),
        ("'Ann' Lee\u2019s", (1, 2), "'***' Lee\u2019s"),
        ("'Ann' Lee\u2019s", (6, 7), "'Ann' *****"),
        # marks, decomposed letters, joiners and their words
        ("Jose\u0301\u0302 e\u0301", (0, 2), "****** e\u0301"),
        ("Rene\u0301e\u0301x y", (6, 7), "******** y"),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af x", (0, 3), "****** x"),
        ("\ud55c\uae00\uc740 x", (0, 1), "*** x"),
        ("\u0645\u06cc\u200c\u062e x", (0, 1), "**** x"),
        # emoji are no part of a word; one of several code points is one character
        ("Bob\U0001f469\u200d\U0001f467 x", (0, 2), "***\U0001f469\u200d\U0001f467 x"),
        ("a\U0001f44d\U0001f3fd b", (1, 2), "a** b"),
        # no spaces between words: nothing is added
        ("\u738b\u5c0f\u660e\u4f4f\u5728", (0, 2), "**\u660e\u4f4f\u5728"),
        ("\u0e2a\u0e21\u0e0a\u0e32\u0e22", (0, 2), "**\u0e0a\u0e32\u0e22"),
        ("Tokyo\u6771\u4eac", (0, 2), "*****\u6771\u4eac"),
    ],
)
def test_whole_words(text, found_at, masked):
    found = [entity(text, *found_at)]
    assert mask_text(text, found, "mask", whole_words=True).text == masked
    assert mask_text(text, found, "placeholder", whole_words=True).unmask() == text


def test_what_goes_on_for_long_is_no_word():
    """Else many entities in one long run of letters would each walk along all of it."""
    for length, masked in ((190, "*" * 191), (2000, "*" + "a" * 2000)):
        text = "A" + "a" * length
        assert mask_text(text, [entity(text, 0, 1)], "mask", whole_words=True).text == masked
    text = "Ab, " * 500 + "a" * 5000
    spans = [entity(text, i, i + 2) for i in range(0, 2000, 4)] + [entity(text, i, i + 1) for i in range(2000, 7000, 5)]
    assert mask_text(text, spans, "placeholder", join=2, whole_words=True).unmask() == text


def test_words_are_widened_after_what_is_allowed():
    text = "Alexandria and Alex"
    spans = [entity(text, 0, 4), entity(text, 15, 19)]
    assert mask_text(text, spans, whole_words=True, allow_list=["Alex"]).text == text
    assert mask_text(text, spans, whole_words=True).text == "[PRIVATE_PERSON] and [PRIVATE_PERSON]"
    both = [entity(text, 0, 4), entity(text, 4, 10, "other", 0.5)]
    assert mask_text(text, both, whole_words=True).text == "[PRIVATE_PERSON] and Alex"


@pytest.mark.parametrize(
    ("text", "spans", "join", "masked"),
    [
        ("Ann Lee, Rome", [(0, 3), (4, 7), (9, 13)], None, "[P] [P], [P]"),
        ("Ann Lee, Rome", [(0, 3), (4, 7), (9, 13)], 0, "[P] [P], [P]"),
        ("Ann Lee, Rome", [(0, 3), (4, 7), (9, 13)], 1, "[P], [P]"),
        ("Ann Lee, Rome", [(9, 13), (4, 7), (0, 3)], 2, "[P]"),
        ("AnnLee", [(0, 3), (3, 6)], None, "[P][P]"),
        ("AnnLee", [(0, 3), (3, 6)], 0, "[P]"),
        ("Ann\u2014\u200b\u3000Lee", [(0, 3), (6, 9)], 3, "[P]"),
        ("Ann+Lee", [(0, 3), (4, 7)], 3, "[P]+[P]"),
        ("Ann & Lee", [(0, 3), (6, 9)], 3, "[P]"),
        ("Ann\nLee", [(0, 3), (4, 7)], 3, "[P]\n[P]"),
        ("Ann \u2028Lee", [(0, 3), (5, 8)], 3, "[P] \u2028[P]"),
        ("Ann of Lee", [(0, 3), (7, 10)], 9, "[P] of [P]"),
        ("Ann Lee Rome", [(0, 7), (4, 12)], 0, "[P]"),
        ("\u1112\u1161\u11ab \u1100\u1173\u11af", [(0, 3), (4, 7)], 1, "[P]"),
        ("e\u0301 e\u0301", [(0, 2), (3, 5)], 1, "[P]"),
        ("\U0001f469\u200d\U0001f467-\U0001f44d", [(0, 3), (4, 5)], 1, "[P]"),
    ],
)
def test_neighbours_of_one_label_are_joined(text, spans, join, masked):
    assert mask_text(text, [entity(text, *span, "p") for span in spans], join=join).text == masked


def test_neighbours_of_other_labels_are_not_joined():
    text = "Ann, 555, Lee"
    spans = [entity(text, 0, 3, score=0.9), entity(text, 5, 8, "private_phone"), entity(text, 10, 13, score=0.6)]
    assert mask_text(text, spans, join=9).text == "[PRIVATE_PERSON], [PRIVATE_PHONE], [PRIVATE_PERSON]"
    pair = [spans[0], entity(text, 5, 8, score=0.6)]
    joined = mask_text(text, pair, join=2)
    assert [(item.text, item.score) for item in joined.items] == [("Ann, 555", 0.6)]
    assert mask_text(text, pair, "placeholder", join=2).unmask() == text
    assert mask_text("AnnxLee", [entity("AnnxLee", 0, 2), entity("AnnxLee", 5, 7)], join=0, whole_words=True).text == (
        "[PRIVATE_PERSON]"
    )


@pytest.mark.parametrize("options", [{"join": -1}, {"join": 1.5}, {"join": True}, {"whole_words": 1}])
def test_wrong_options_of_widening_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        mask_text("abc", [], **options)
