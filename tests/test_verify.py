"""The card of checks: what is right passes, and each thing that is wrong fails its own check."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from oracle import falcon_h1, llama, qwen2, qwen3
from oracle.greedy import continue_greedily
from tiny import CHATML, tiny_checkpoint, write_json

from fastcore import ModelNotFoundError, _kernels
from fastcore.cli import main
from fastcore.engine.state import run_step
from fastcore.text.tokenizer import Tokenizer
from fastcore.verify import card, language_model
from fastcore.verify.references import TransformersModel, TransformersTemplate
from fastcore.verify.texts import STRINGS

ORACLES = {"qwen2": qwen2, "llama": llama, "qwen3": qwen3, "falcon_h1": falcon_h1}
LAWS = {"law: threads", "law: chunks", "law: batch", "law: instruction sets"}


def results(checks: list[card.Check]) -> dict[str, bool | None]:
    return {check.name: check.passed for check in checks}


def failed(checks: list[card.Check]) -> set[str]:
    return {check.name for check in checks if check.passed is False}


@pytest.fixture
def golden(data_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_folder / "qwen2-tied", tmp_path / "golden"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "model", "llama", max_position_embeddings=64)


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)


class Reference:
    """Stands for transformers: the oracle, with what a test changes about it."""

    version = "oracle"

    def __init__(self, folder: Path, model_type: str, error: float = 0.0, wrong_token: int | None = None) -> None:
        self._logits: Callable[..., np.ndarray] = lambda ids: ORACLES[model_type].logits(folder, ids)
        self._error, self._wrong_token = error, wrong_token

    def logits(self, ids: list[int]) -> np.ndarray:
        logits = self._logits(ids).astype(np.float32)
        logits[-1, 5] += self._error * logits.std()
        return logits

    def greedy(self, ids: list[int], count: int) -> list[int]:
        tokens = continue_greedily(self._logits, ids, count)
        if self._wrong_token is not None:
            tokens[self._wrong_token] += 1
        return tokens


class Template:
    """Stands for transformers' rendering: jinja2 alone, with what the templates of these tests need."""

    version = "jinja2"

    def __init__(self, source: str) -> None:
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = self._refuse
        plain = re.sub(r"{% (end)?generation %}", "", source)
        self._template = environment.from_string(plain)

    @staticmethod
    def _refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def render(self, messages: Any, add_generation_prompt: bool) -> str | None:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, bos_token="<|endoftext|>"
            )
        except jinja2.TemplateError:
            return None


def use_template(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(TransformersTemplate, "open", lambda path: Template(source))


def use_reference(monkeypatch: pytest.MonkeyPatch, reference: Reference) -> None:
    monkeypatch.setattr(TransformersModel, "open", lambda path: reference)


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("name", ["qwen2-untied-f32", "llama3.2-rope", "llama-dynamic", "qwen3-causal", "falcon-h1"])
def test_goldens_pass(data_folder: Path, name: str) -> None:
    found = results(card.verify(data_folder / name, golden=data_folder / name, num_threads=2))
    greedy = {"greedy tokens"} if name != "llama-dynamic" else set()
    assert {check for check, passed in found.items() if passed} == {
        "config fields",
        "tensors",
        "logits",
        *greedy,
        *LAWS,
    }
    assert {check for check, passed in found.items() if passed is None} == {"token ids", "chat template"}


def test_a_classifier_passes(data_folder: Path, tiny_folder) -> None:
    golden = data_folder / "pii"
    assert failed(card.verify(golden, golden=golden)) == set()
    found = results(card.verify(tiny_folder("pii_masking")))
    assert found["law: batch"]
    assert found["token ids"]
    assert found["logits"] is None


@pytest.mark.parametrize("model_type", ORACLES)
def test_a_model_passes_against_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str) -> None:
    folder = tiny_checkpoint(tmp_path / "model", model_type, max_position_embeddings=64)
    use_reference(monkeypatch, Reference(folder, model_type))
    use_template(monkeypatch, CHATML)
    reported: list[card.Check] = []
    checks = card.verify(folder, report=reported.append)
    assert reported == checks
    assert all(check.passed for check in checks)
    figures = {check.name: check.figures for check in checks}
    assert figures["logits"]["positions"] == 40  # the context without room for the greedy tokens
    assert 0 < figures["logits"]["max_difference"] < figures["logits"]["std"] * figures["logits"]["tolerance"]
    assert figures["greedy tokens"]["equal"] == 24
    assert figures["token ids"]["different"] == []


def test_without_transformers_its_checks_are_not_made(folder: Path, no_transformers: None) -> None:
    found = results(card.verify(folder))
    assert found.pop("logits") is None
    assert found.pop("greedy tokens") is None
    assert found.pop("chat template") is None
    assert all(found.values())


REFUSING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ bos_token }}{{ m | tojson }}{% endif %}{% endfor %}"
)


def check_refusing_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(REFUSING)
    check = next(check for check in card.verify(folder) if check.name == "chat template")
    assert check.passed
    assert check.figures == {"renderings": 12, "different": 0, "refused_by_the_template": 6}


def test_a_template_that_refuses_some_conversations_passes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, no_transformers: None
) -> None:
    use_template(monkeypatch, REFUSING)
    check_refusing_template(folder)


@pytest.mark.filterwarnings("ignore")  # of torch and transformers, as they load
def test_a_template_against_transformers(folder: Path) -> None:
    pytest.importorskip("transformers", reason="transformers comes with the extra `peers`")
    check_refusing_template(folder)


# ---------------------------------------------------------------- what is wrong


def test_an_unknown_config_field_fails(golden: Path) -> None:
    config = json.loads((golden / "config.json").read_text())
    write_json(golden / "config.json", config | {"attention_sink": 4})
    checks = card.verify(golden, golden=golden)
    assert failed(checks) == {"config fields"}
    assert "attention_sink" in checks[0].detail


def test_a_config_that_cannot_be_read_fails(golden: Path) -> None:
    config = json.loads((golden / "config.json").read_text())
    write_json(golden / "config.json", config | {"hidden_act": "gelu"})
    checks = card.verify(golden)
    assert failed(checks) == {"config fields", "tensors"}
    assert "hidden_act" in checks[0].detail
    assert len(checks) == 4


def test_a_tensor_that_is_missing_fails_and_nothing_is_run(golden: Path) -> None:
    config = json.loads((golden / "config.json").read_text())
    write_json(golden / "config.json", config | {"tie_word_embeddings": False})
    checks = card.verify(golden, golden=golden)
    assert failed(checks) == {"tensors"}
    assert "lm_head.weight" in checks[1].detail
    assert not LAWS & set(results(checks))


def test_other_logits_and_other_tokens_fail(golden: Path) -> None:
    logits = np.load(golden / "logits.npy")
    logits[3, 7] += 0.01 * logits.std()
    np.save(golden / "logits.npy", logits)
    assert failed(card.verify(golden, golden=golden)) == {"logits"}
    case = json.loads((golden / "case.json").read_text())
    case["greedy"][20] += 1
    write_json(golden / "case.json", case)
    checks = card.verify(golden, golden=golden)
    assert failed(checks) == {"logits", "greedy tokens"}
    assert next(check for check in checks if check.name == "greedy tokens").detail.startswith("token 20 is ")


@pytest.mark.parametrize(
    ("options", "expected"), [({"error": 1e-3}, {"logits"}), ({"wrong_token": 3}, {"greedy tokens"})]
)
def test_a_reference_that_differs_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: set[str]
) -> None:
    use_reference(monkeypatch, Reference(folder, "llama", **options))
    assert failed(card.verify(folder)) == expected


def test_a_token_that_differs_in_a_tie_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_reference(monkeypatch, Reference(folder, "llama", wrong_token=3))
    monkeypatch.setattr(language_model, "TIE", 1e9)
    check = next(check for check in card.verify(folder) if check.name == "greedy tokens")
    assert check.passed
    assert check.figures["equal"] == 3
    assert "tie" in check.detail


def test_a_golden_of_another_model_fails(data_folder: Path) -> None:
    checks = card.verify(data_folder / "qwen2-tied", golden=data_folder / "pii")
    assert "logits" in failed(checks)


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_golden_that_cannot_be_read_is_an_error(data_folder: Path, golden: Path, content: str) -> None:
    (golden / "case.json").write_text(content)
    with pytest.raises(ValueError, match="golden folder"):
        card.verify(data_folder / "qwen2-tied", golden=golden)


def test_other_token_ids_and_another_template_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch, no_transformers: None
) -> None:
    encode = Tokenizer.encode

    def drops(self: Any, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = encode(self, text, add_special_tokens)
        return ids[:-1] if text.startswith("don't") else ids

    monkeypatch.setattr(Tokenizer, "encode", drops)
    use_template(monkeypatch, CHATML)
    monkeypatch.setattr(Tokenizer, "apply_chat_template", lambda self, messages, add_generation_prompt: "hello")
    checks = card.verify(folder)
    assert failed(checks) == {"token ids", "chat template"}
    assert checks[2].figures["different"] == [STRINGS[5]] * 2


def test_each_law_fails_when_it_is_broken(folder: Path, monkeypatch: pytest.MonkeyPatch, no_transformers: None) -> None:
    """A step whose logits depend on its rows, on the threads, or on the instruction set."""

    def broken_by(key: Callable[[list[Any], int], object]) -> set[str]:
        first: list[object] = []

        def step(model: Any, pieces: list[Any], *, num_threads: int, logits: np.ndarray) -> None:
            run_step(model, pieces, num_threads=num_threads, logits=logits)
            first[:] = first or [key(pieces, num_threads)]
            logits += key(pieces, num_threads) != first[0]

        with monkeypatch.context() as patch:
            patch.setattr(language_model, "run_step", step)
            return failed(card.verify(folder, num_threads=1))

    assert broken_by(lambda pieces, num_threads: 0) == set()
    assert broken_by(lambda pieces, num_threads: num_threads) == {"law: threads"}
    assert broken_by(lambda pieces, num_threads: len(pieces[0].token_ids) == 5) == {"law: chunks"}
    assert broken_by(lambda pieces, num_threads: len(pieces)) == {"law: batch"}
    if len(_kernels.available_isas()) > 1:
        assert broken_by(lambda pieces, num_threads: _kernels.active_isa()) == {"law: instruction sets"}


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        card.verify(tmp_path / "nothing")


# ---------------------------------------------------------------- the command


def test_the_command_prints_the_card_and_exits_with_its_result(
    golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(golden), "--golden", str(golden), "--threads", "2"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert [line.split()[0] for line in lines] == ["ok", "ok", "-", "-", *["ok"] * 6]

    np.save(golden / "logits.npy", np.load(golden / "logits.npy") + 1)
    assert main([*arguments, "--json"]) == 1
    card = json.loads(capsys.readouterr().out)
    assert card["model"] == str(golden)
    assert card["passed"] is False
    assert [check["name"] for check in card["checks"] if check["passed"] is False] == ["logits"]
    assert card["checks"][4]["figures"]["positions"] == 40
    assert card["machine"]["instruction_sets"] == list(_kernels.available_isas())
