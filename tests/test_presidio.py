"""The recognizer for Presidio, where Presidio is installed; without it, the extra is named."""

import sys
from pathlib import Path

import pytest
from labelled import labelled_checkpoint

from fastcore import ContextLengthError, MissingPackageError, TokenClassifier

TEXT = "\U0001f4f7 ring BOB at 555"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> TokenClassifier:
    return TokenClassifier(labelled_checkpoint(tmp_path_factory.mktemp("labelled")), num_threads=1)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fastcore.presidio", raising=False)
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'fastcore-engine\[presidio\]'"):
        import fastcore.presidio  # noqa: F401


def test_entities_under_presidios_names(classifier: TokenClassifier) -> None:
    pytest.importorskip("presidio_analyzer")
    from fastcore.presidio import TokenClassifierRecognizer

    recognizer = TokenClassifierRecognizer(classifier)
    assert recognizer.supported_entities[:3] == ["PERSON", "EMAIL_ADDRESS", "PHONE_NUMBER"]
    assert recognizer.supported_entities[-3:] == ["ACCOUNT_NUMBER", "SECRET", "OTHER_PII"]
    found = recognizer.analyze(TEXT, entities=None)
    assert [(result.entity_type, TEXT[result.start : result.end]) for result in found] == [
        ("PERSON", "BOB"),
        ("PHONE_NUMBER", "555"),
    ]
    assert [result.score for result in found] == [entity.score for entity in classifier(TEXT).entities]
    assert [result.entity_type for result in recognizer.analyze(TEXT, ["PHONE_NUMBER", "URL"])] == ["PHONE_NUMBER"]
    renamed = TokenClassifierRecognizer(classifier, entity_names={"private_person": "NAME"}, language="de")
    assert renamed.supported_language == "de"
    assert [result.entity_type for result in renamed.analyze(TEXT, None)] == ["NAME", "PHONE_NUMBER"]
    with pytest.raises(ValueError, match="entity_names has 'person'"):
        TokenClassifierRecognizer(classifier, entity_names={"person": "NAME"})


@pytest.mark.fault("B3")
def test_a_text_that_is_not_read_to_its_end_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("presidio_analyzer")
    from fastcore.presidio import TokenClassifierRecognizer

    folder = labelled_checkpoint(tmp_path / "labelled")
    recognizer = TokenClassifierRecognizer(TokenClassifier(folder, max_seq_len=8, long_text="truncate"))
    assert len(recognizer.analyze("BOB", None)) == 1
    with pytest.raises(ContextLengthError, match="not all of them were read"):
        recognizer.analyze("nobody " * 20 + "BOB", None)


def test_in_an_analyzer(classifier: TokenClassifier) -> None:
    presidio = pytest.importorskip("presidio_analyzer")
    from presidio_analyzer.nlp_engine import NlpArtifacts, NlpEngine

    from fastcore.presidio import TokenClassifierRecognizer

    class NoWords(NlpEngine):
        """An engine without a language model: the classifier needs none."""

        engine_name = "none"
        is_available = True

        def load(self) -> None: ...
        def is_loaded(self) -> bool:
            return True

        def process_text(self, text: str, language: str) -> NlpArtifacts:
            return NlpArtifacts([], [], [], [], self, language)

        def process_batch(self, texts, language, **options):
            return ((text, self.process_text(text, language)) for text in texts)

        def is_stopword(self, word: str, language: str) -> bool:
            return False

        def is_punct(self, word: str, language: str) -> bool:
            return False

        def get_supported_entities(self) -> list[str]:
            return []

        def get_supported_languages(self) -> list[str]:
            return ["en"]

    registry = presidio.RecognizerRegistry([TokenClassifierRecognizer(classifier)])
    analyzer = presidio.AnalyzerEngine(registry=registry, nlp_engine=NoWords())
    results = analyzer.analyze(TEXT, language="en", entities=["PERSON", "PHONE_NUMBER"])
    assert sorted(TEXT[result.start : result.end] for result in results) == ["555", "BOB"]
