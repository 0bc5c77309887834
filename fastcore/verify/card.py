"""Is the engine right about this model, on this machine? A card of checks, each with what it compared and how close."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastcore.errors import Error
from fastcore.sources.resolve import resolve
from fastcore.threads import resolve_num_threads
from fastcore.verify.classifier import Classifier
from fastcore.verify.language_model import LanguageModel
from fastcore.verify.outcome import Outcome
from fastcore.verify.subject import Subject

__all__ = ["Check", "verify"]


@dataclass(frozen=True)
class Check:
    """One line of the card. passed: None where the check could not be made, for the reason in `detail`."""

    name: str
    passed: bool | None
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def verify(
    model: str | Path | None,
    *,
    golden: str | Path | None = None,
    num_threads: int | None = None,
    report: Callable[[Check], None] | None = None,
) -> list[Check]:
    """Check a model folder, file or name, with its weights as stored.

    golden: a folder with the case.json and logits.npy of this model, to compare with instead of transformers. report:
    called with each check as it is done. A failure is a Check, not an exception; ModelNotFoundError is raised.
    """
    path, threads = resolve(model), resolve_num_threads(num_threads)
    subject = _open(path, threads)
    checks: list[Check] = []

    def run(name: str, check: Callable[[], Outcome]) -> None:
        try:
            passed, detail, figures = check()
        except (Error, ValueError) as error:
            passed, detail, figures = False, str(error), {}
        checks.append(Check(name, passed, detail, figures))
        if report is not None:
            report(checks[-1])

    run("config fields", subject.config_fields)
    run("tensors", subject.tensors)
    run("token ids", subject.token_ids)
    run("chat template", subject.chat_template)
    if not checks[1].passed:
        return checks
    for name, check in subject.against(None if golden is None else Path(golden)):
        run(name, check)
    for name, check in subject.laws():
        run(name, check)
    return checks


def _open(path: Path, num_threads: int) -> Subject:
    subject = LanguageModel(path, num_threads)
    try:
        is_classifier = subject.config.is_token_classifier
    except Error:  # its own check says what is wrong
        is_classifier = False
    return Classifier(path, num_threads) if is_classifier else subject
