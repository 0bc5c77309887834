"""Batches of rows masked, completed, embedded and scored: the work that Ray, Spark, Dask and the command line share."""

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelled import labelled_checkpoint

from fastcore import LLM, MissingPackageError, SamplingParams, TokenClassifier, batches

TEXTS = ["ring BOB", None, "nobody", "", "at 555 or ANN"] * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capital letters are persons, digits are phone numbers."""
    return labelled_checkpoint(tmp_path_factory.mktemp("labelled"))


@pytest.fixture(autouse=True)
def one_thread_and_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCORE_NUM_THREADS", "1")
    monkeypatch.setattr(batches, "_models", [])


def masked(folder: Path) -> list[str | None]:
    classifier = TokenClassifier(folder)
    return [None if text is None else classifier.mask(text).text for text in TEXTS]


def test_masked_values(folder: Path) -> None:
    task = pickle.loads(pickle.dumps(batches.mask("text", model=str(folder))))
    assert task.columns == {"text": "string", "text_error": "string"}
    columns = batches.Runner(task)(TEXTS)
    assert columns == {"text": masked(folder), "text_error": [None] * len(TEXTS)}
    assert masked(folder)[0] == "ring [PRIVATE_PERSON]"


def test_a_row_that_fails_touches_no_other(tiny_folder: Callable[..., Path]) -> None:
    model = tiny_folder("qwen2")
    values = ["hi", "x" * 600, None, 7, "there", ["no"], "."]
    columns = batches.Runner(batches.generate("prompt", model=model, max_tokens=4))(values)
    llm = LLM(model)
    expected = {i: llm.generate(values[i], max_tokens=4) for i in (0, 4, 6)}
    for i in range(len(values)):
        found = {name: column[i] for name, column in columns.items()}
        if i in expected:
            done = expected[i]
            assert list(found.values()) == [done.text, done.finish_reason, len(done.token_ids), None]
        else:
            assert [found["completion"], found["completion_finish_reason"], found["completion_tokens"]] == [None] * 3
    reasons = columns["completion_error"]
    assert [i for i, reason in enumerate(reasons) if reason] == [1, 3, 5]
    assert "the context holds 512" in reasons[1]
    assert reasons[3] == "expected a text, found int"


def test_embeddings_scores_and_chats_are_those_of_the_model(tiny_folder: Callable[..., Path]) -> None:
    model, texts = tiny_folder("qwen2"), ["one", "two words", None]
    llm = LLM(model)
    vectors = batches.Runner(batches.embed("t", model=model, pooling="last"))(texts)["embedding"]
    assert vectors[2] is None
    assert np.array_equal(np.array(vectors[:2], np.float32), llm.embed(texts[:2], pooling="last"))
    scores = batches.Runner(batches.score("t", model=model, context="say "))(texts)
    expected = llm.loglikelihood([("say ", "one"), ("say ", "two words")])
    assert list(zip(scores["logprob"], scores["logprob_greedy"], strict=True)) == [*expected, (None, None)]
    task = batches.generate("t", model=model, chat=True, system="short", max_tokens=3)
    question = [{"role": "user", "content": "one"}]
    answers = batches.Runner(task)(["one", question])["completion"]
    assert answers == [llm.chat([{"role": "system", "content": "short"}, *question], max_tokens=3).text] * 2


def test_a_model_is_loaded_once_for_tasks_that_share_it(folder: Path, tiny_folder: Callable[..., Path]) -> None:
    first = batches.Runner(batches.mask("a", model=str(folder)))
    second = batches.Runner(batches.mask("b", model=str(folder), operator="redact"))
    assert first.model is second.model
    assert batches.Runner(batches.mask("a", model=str(folder)), 2).model is not first.model
    batches.Runner(batches.generate("p", model=tiny_folder("qwen2")))
    assert len(batches._models) == batches.MODELS_KEPT


def test_arrow_tables_keep_what_they_have(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS, "more": [0.5] * len(TEXTS)})
    done = batches.Runner(batches.mask("text", model=str(folder))).arrow(table)
    assert done.column_names == ["id", "text", "more", "text_error"]
    assert done["text"].to_pylist() == masked(folder)
    assert done.drop_columns(["text", "text_error"]).equals(table.drop_columns(["text"]))
    done = batches.Runner(batches.mask("text", model=str(folder), output="clean")).arrow(table[:0])
    assert done.column_names == ["id", "text", "more", "clean", "clean_error"]
    assert done.num_rows == 0
    with pytest.raises(ValueError, match="no column 'texts'; the columns are 'id', 'text', 'more'"):
        batches.Runner(batches.mask("texts", model=str(folder))).arrow(table)
    with pytest.raises(ValueError, match="a column 'id' is there already"):
        batches.Runner(batches.mask("text", model=str(folder), output="id")).arrow(table)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: batches.embed("t", model="m", output="t"), "the output is the column 't' itself"),
        (lambda: batches.generate("t", model="m", n=2), "a row has one completion"),
        (lambda: batches.generate("t", model="m", system="x"), "needs chat"),
        (lambda: batches.generate("t", model="m", params=SamplingParams(n=3)), "a row has one completion"),
        (lambda: batches.mask("t", model="m", operator="blur"), "operator is 'blur'"),
    ],
)
def test_wrong_tasks_are_refused_when_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------- clusters, where their packages are installed


@pytest.mark.parametrize(("package", "extra"), [("ray", "ray"), ("pyspark.sql", "spark"), ("dask.dataframe", "dask")])
def test_without_its_package_a_module_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    module = importlib.import_module(f"fastcore.{extra}")
    monkeypatch.setitem(sys.modules, package, None)
    for call in (module.mask, module.generate, module.embed, module.score):
        with pytest.raises(MissingPackageError, match=rf"pip install 'fastcore-engine\[{extra}\]'"):
            call(None, "text", model="any")


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("partitions")
    for i in range(3):
        rows = range(i * 100, i * 100 + 100)
        parquet.write_table(pyarrow.table({"id": rows, "text": TEXTS[rows.start : rows.stop]}), folder / f"{i}.parquet")
    return folder


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray(ray: Any, folder: Path, partitions: Path, tiny_folder: Callable[..., Path]) -> None:
    import fastcore.ray

    rows = ray.data.read_parquet(str(partitions))
    done = fastcore.ray.mask(rows, "text", model=str(folder), actors=2, batch_size=50).take_all()
    assert [row["id"] for row in done] == list(range(len(TEXTS)))
    assert [row["text"] for row in done] == masked(folder)
    assert not any(row["text_error"] for row in done)
    prompts = ray.data.from_items([{"p": "hi"}, {"p": "x" * 600}])
    done = fastcore.ray.generate(prompts, "p", model=str(tiny_folder("qwen2")), threads=1, max_tokens=3).take_all()
    assert done[0]["completion"] == LLM(tiny_folder("qwen2")).generate("hi", max_tokens=3).text
    assert "the context holds 512" in done[1]["completion_error"]


@pytest.mark.filterwarnings("ignore")
def test_spark(folder: Path, partitions: Path, tiny_folder: Callable[..., Path]) -> None:
    sql = pytest.importorskip("pyspark.sql")
    import fastcore.spark

    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    try:
        rows = spark.read.parquet(str(partitions))
        done = fastcore.spark.mask(rows, "text", model=str(folder)).orderBy("id").collect()
        assert [row.text for row in done] == masked(folder)
        rows.createOrReplaceTempView("rows")
        spark.udf.register("mask_pii", fastcore.spark.mask_udf(model=str(folder)))
        done = spark.sql("select mask_pii(text) as text from rows order by id").collect()
        assert [row.text for row in done] == masked(folder)
        prompts = spark.createDataFrame([("hi",), ("x" * 600,)], ["p"]).coalesce(1)
        done = fastcore.spark.generate(prompts, "p", model=str(tiny_folder("qwen2")), max_tokens=3).collect()
        assert done[0].completion == LLM(tiny_folder("qwen2")).generate("hi", max_tokens=3).text
        assert "the context holds 512" in done[1].completion_error
        vectors = fastcore.spark.embed(prompts, "p", model=str(tiny_folder("qwen2"))).collect()
        assert vectors[0].embedding == LLM(tiny_folder("qwen2")).embed("hi").tolist()
    finally:
        spark.stop()


@pytest.mark.filterwarnings("ignore")
def test_dask(folder: Path, partitions: Path, tiny_folder: Callable[..., Path]) -> None:
    frames = pytest.importorskip("dask.dataframe")
    import fastcore.dask

    rows = frames.read_parquet(partitions)
    done = fastcore.dask.mask(rows, "text", model=str(folder)).compute()
    assert list(done["id"]) == list(range(len(TEXTS)))
    assert [None if missing else text for text, missing in zip(done["text"], done["text"].isna(), strict=True)] == (
        masked(folder)
    )
    scored = fastcore.dask.score(rows.head(5, compute=False), "text", model=str(tiny_folder("qwen2"))).compute()
    assert scored["logprob"][0] == LLM(tiny_folder("qwen2")).loglikelihood("", "ring BOB")[0]
