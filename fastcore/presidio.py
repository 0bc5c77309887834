"""A token classifier as a recognizer of Presidio. Needs the extra `presidio`.

analyzer.registry.add_recognizer(TokenClassifierRecognizer(TokenClassifier("pplx-pii")))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastcore.classify import TokenClassifier
from fastcore.errors import MissingPackageError

try:
    from presidio_analyzer import AnalysisExplanation, EntityRecognizer, RecognizerResult
except ImportError as error:
    raise MissingPackageError("Presidio is not installed: pip install 'fastcore-engine[presidio]'") from error

__all__ = ["ENTITY_NAMES", "TokenClassifierRecognizer"]

ENTITY_NAMES = {  # labels of the PII model -> what Presidio calls such an entity; others keep their name, in capitals
    "private_person": "PERSON",
    "private_email": "EMAIL_ADDRESS",
    "private_phone": "PHONE_NUMBER",
    "private_address": "LOCATION",
    "private_url": "URL",
    "private_date": "DATE_TIME",
}


class TokenClassifierRecognizer(EntityRecognizer):  # type: ignore[misc, unused-ignore]
    """Finds what the classifier finds, under Presidio's names.

    entity_names: label -> Presidio entity, in place of ENTITY_NAMES for the labels that it has.
    language: the one that this recognizer is registered for.
    """

    def __init__(
        self,
        classifier: TokenClassifier,
        *,
        entity_names: Mapping[str, str] | None = None,
        language: str = "en",
        name: str = "TokenClassifierRecognizer",
    ) -> None:
        known = classifier.labels.entity_types
        unknown = sorted(set(entity_names or ()) - set(known))
        if unknown:
            raise ValueError(f"entity_names has {unknown[0]!r}; the model's labels are {', '.join(known)}")
        names = ENTITY_NAMES | dict(entity_names or {})
        self.classifier = classifier
        self.entity_names = {label: names.get(label, label.upper()) for label in known}
        super().__init__(
            supported_entities=list(dict.fromkeys(self.entity_names.values())), name=name, supported_language=language
        )

    def load(self) -> None:
        """The classifier is loaded already."""

    def analyze(self, text: str, entities: Sequence[str] | None, nlp_artifacts: Any = None) -> list[RecognizerResult]:
        """The entities of the text that are among the wanted ones; all, if none are named.

        Raises ContextLengthError for a text that the classifier does not read to its end (long_text="truncate").
        """
        wanted = set(entities or self.entity_names.values())
        result = self.classifier(text)
        result.check_covered()
        return [
            RecognizerResult(
                entity_type=self.entity_names[entity.label],
                start=entity.start,
                end=entity.end,
                score=entity.score,
                analysis_explanation=AnalysisExplanation(
                    recognizer=self.name,
                    original_score=entity.score,
                    textual_explanation=f"the token classifier's label {entity.label}",
                ),
                recognition_metadata={
                    RecognizerResult.RECOGNIZER_NAME_KEY: self.name,
                    RecognizerResult.RECOGNIZER_IDENTIFIER_KEY: self.id,
                },
            )
            for entity in result.entities
            if self.entity_names[entity.label] in wanted
        ]
