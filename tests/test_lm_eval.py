"""The model that lm-eval drives: its own harness where it is installed, and stand-ins of what it hands over always."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import tolerances
from tiny import tiny_checkpoint, write_tokenizer

from fastcore import LLM, MissingPackageError, SamplingParams


class Instance(NamedTuple):
    args: tuple[Any, ...]


class StandInLM:
    """The base class of the harness, with its hook for cached answers."""

    def __init__(self) -> None:
        self.cache_hook = self
        self.cached: list[tuple[str, Any, Any]] = []

    def add_partial(self, kind: str, arguments: Any, answer: Any) -> None:
        self.cached.append((kind, arguments, answer))


def rolling_windows(
    token_list: list[int], prefix_token: int, max_seq_len: int, context_len: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Windows of inputs and the tokens to predict, each token once; the last window is as full as the others."""
    assert context_len == 1
    ids = [prefix_token, *token_list]
    for end in [*range(max_seq_len, len(token_list), max_seq_len), len(token_list)]:
        count = min(max_seq_len, len(token_list), (end - 1) % max_seq_len + 1)
        yield ids[max(0, end - max_seq_len) : end], token_list[end - count : end]


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """fastcore.lm_eval over the harness, or over the stand-ins where that is not installed."""
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError:
        contents: dict[str, dict[str, Any]] = {
            "lm_eval": {},
            "lm_eval.api": {},
            "lm_eval.api.model": {"LM": StandInLM},
            "lm_eval.api.registry": {"MODEL_REGISTRY": {}, "register_model": lambda name: None},
            "lm_eval.utils": {
                "get_rolling_token_windows": rolling_windows,
                "make_disjoint_window": lambda pair: (pair[0][: len(pair[0]) - len(pair[1]) + 1], pair[1]),
            },
        }
        for name, values in contents.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "fastcore.lm_eval", raising=False)
    import fastcore.lm_eval

    yield fastcore.lm_eval
    monkeypatch.delitem(sys.modules, "fastcore.lm_eval")


@pytest.fixture
def folder(tiny_folder) -> Path:
    return tiny_folder("llama", max_position_embeddings=64)


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(folder)


def requests(*arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(each) for each in arguments]


def test_loglikelihoods_are_those_of_the_python_api(adapter: ModuleType, folder: Path, llm: LLM) -> None:
    model = adapter.FastcoreLM(str(folder), num_threads=2, batch_size=1, max_batch_size=None, device="cuda:0")
    pairs = [
        ("The cat sat", " on the mat"),
        ("The cat sat ", "down"),
        ("", "abc"),
        *[("a", f" {i}") for i in range(70)],
    ]
    found = model.loglikelihood(requests(*pairs), disable_tqdm=True)
    assert found == llm.loglikelihood(pairs)
    assert found[0] == llm.loglikelihood("The cat sat", " on the mat")


def test_a_context_that_is_too_long_is_cut_on_the_left(adapter: ModuleType, folder: Path, llm: LLM) -> None:
    model = adapter.FastcoreLM(str(folder))
    context, continuation = "z" * 100, "yyy"
    ids = llm.tokenizer.encode(context + continuation)
    assert len(ids) == 103
    found = model.loglikelihood(requests((context, continuation)), disable_tqdm=True)
    assert found == [llm.loglikelihood(ids[-65:-3], ids[-3:])]
    assert found != [llm.loglikelihood(ids[-60:-3], ids[-3:])]
    with pytest.raises(ValueError, match="a continuation of 70 tokens exceeds the context of 64"):
        model.loglikelihood(requests(("a", "y" * 70)), disable_tqdm=True)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 150])
def test_a_rolling_score_predicts_each_token_once(adapter: ModuleType, folder: Path, llm: LLM, count: int) -> None:
    model = adapter.FastcoreLM(str(folder))
    text = "".join(chr(ord("a") + i * i % 26) + " " for i in range(count))[:count]
    ids = llm.tokenizer.encode(text)
    expected = 0.0
    done = 0
    while done < len(ids):
        new = min(64, len(ids) - done)
        inputs = [llm.start_token_id, *ids][max(0, done + new - 64) : done + new]
        assert len(inputs) >= new
        expected += llm.loglikelihood(inputs[: len(inputs) - new + 1], ids[done : done + new])[0]
        done += new
    (found,) = model.loglikelihood_rolling(requests((text,)), disable_tqdm=True)
    assert found == pytest.approx(expected, abs=tolerances.LOGPROB)
    assert model.loglikelihood_rolling(requests(("ab",), (text,)), disable_tqdm=True)[1] == found


def test_text_is_written_until_a_stop_string(adapter: ModuleType, folder: Path, llm: LLM) -> None:
    model = adapter.FastcoreLM(str(folder), max_gen_toks=9)
    prompts = ["one two", "three", "q" * 90]
    plain = model.generate_until(requests(*[(prompt, {}) for prompt in prompts]), disable_tqdm=True)
    assert plain[:2] == [llm.generate(prompt, max_tokens=9).text for prompt in prompts[:2]]
    assert plain[2] == llm.generate(llm.tokenizer.encode(prompts[2])[-55:], max_tokens=9).text
    stop = plain[0][3:5]
    options = [
        {"until": stop, "do_sample": False, "temperature": 0.7, "max_gen_toks": 5},
        {"until": [stop, ""], "max_new_tokens": 5},
        {"until": [], "do_sample": True, "top_p": 0.9, "seed": 3},
    ]
    found = model.generate_until(requests(*[(prompts[0], each) for each in options]), disable_tqdm=True)
    cut = llm.generate(prompts[0], max_tokens=5, stop=stop).text
    sampled = SamplingParams(max_tokens=9, temperature=1.0, top_p=0.9, seed=3)
    assert found == [cut, cut, llm.generate(prompts[0], sampled).text]
    with pytest.raises(TypeError, match="num_beams"):
        model.generate_until(requests(("a", {"num_beams": 4})), disable_tqdm=True)
    with pytest.raises(ValueError, match="64 new tokens leave no room"):
        model.generate_until(requests(("a", {"max_gen_toks": 64})), disable_tqdm=True)


def test_a_templates_own_first_token_is_not_doubled(adapter: ModuleType, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}!{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    write_tokenizer(folder, add_bos=True, chat_template=template)
    model, llm = adapter.FastcoreLM(str(folder)), LLM(folder)
    history = [{"role": "user", "content": " hi "}]
    prompt = model.apply_chat_template(history)
    assert prompt == "<|endoftext|>user:  hi !>"
    assert model.apply_chat_template(history, add_generation_prompt=False) == "<|endoftext|>user:  hi"
    encode = llm.tokenizer.encode
    bos = llm.start_token_id
    assert encode("hi")[0] == bos
    ids = encode(prompt, add_special_tokens=False)
    assert ids.count(bos) == 1
    (found,) = model.loglikelihood(requests((prompt, "yes")), disable_tqdm=True)
    whole = encode(prompt + "yes", add_special_tokens=False)
    assert found == llm.loglikelihood(whole[: len(ids)], whole[len(ids) :])
    assert model.chat_template(True) == template
    assert model.chat_template(False) is None
    assert "/" not in model.tokenizer_name


def test_answers_are_handed_to_the_cache(adapter: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapter.FastcoreLM(str(folder), max_gen_toks=2)
    hook = StandInLM()
    model.cache_hook = hook
    answers = model.loglikelihood(requests(("a", "b")), disable_tqdm=True)
    answers += model.loglikelihood_rolling(requests(("abc",)), disable_tqdm=True)
    answers += model.generate_until(requests(("a", {"until": "x"})), disable_tqdm=True)
    assert hook.cached == [
        ("loglikelihood", ("a", "b"), answers[0]),
        ("loglikelihood_rolling", ("abc",), answers[1]),
        ("generate_until", ("a", {"until": "x"}), answers[2]),
    ]


def test_without_the_harness_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for name in ("lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry", "lm_eval.utils", "fastcore.lm_eval"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingPackageError, match=r"fastcore-engine\[eval\]"):
        import fastcore.lm_eval  # noqa: F401


@pytest.mark.filterwarnings("ignore")  # the harness's own
def test_the_harness_runs_a_task_file(
    folder: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    pytest.importorskip("datasets", reason="datasets is not installed")
    from fastcore.lm_eval import FastcoreLM

    root = data_folder.parent.parent
    monkeypatch.chdir(root)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    from lm_eval.tasks import TaskManager

    names = ["capitals", "capitals_written"]
    tasks = TaskManager(include_path=str(root / "docs" / "lm_eval"))
    model = FastcoreLM(str(folder))
    results = lm_eval.simple_evaluate(model=model, tasks=names, task_manager=tasks, bootstrap_iters=0)["results"]
    assert 0 <= results["capitals"]["acc,none"] <= 1
    assert results["capitals_written"]["exact_match,stripped"] == 0
