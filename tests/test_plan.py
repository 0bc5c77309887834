"""`fastcore plan`: what a corpus takes is what was measured, times its size, over its cores."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fastcore.cli import main
from fastcore.cli.plan import Measured, project

MEASURED = Measured("mask", texts=100, seconds=5.0, load_seconds=2.0, threads=2, weight_bytes=600, process_bytes=50)


def test_time_memory_and_cost_follow_from_the_rate() -> None:
    assert MEASURED.rate == 10.0  # 100 texts / 5 s / 2 threads
    plan = project(MEASURED, 144_000, cores=4, nodes=2, jobs=3, cost_per_core_hour=0.5)
    assert plan.seconds == 2 + 144_000 / 80
    assert plan.core_hours == 1802 * 8 / 3600
    assert plan.cost == plan.core_hours / 2
    assert plan.memory_bytes == 600 + 3 * 50
    assert project(MEASURED, 144_000, cores=4, nodes=2, jobs=1, cost_per_core_hour=None).cost is None


@pytest.mark.parametrize(
    ("model_type", "options", "work"),
    [("pii_masking", [], "mask"), ("qwen2", [], "embed"), ("qwen2", ["--output-tokens", "4"], "generate")],
)
def test_a_plan_of_a_model(
    tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str], model_type: str, options: list[str], work: str
) -> None:
    asked = [str(tiny_folder(model_type)), "--texts", "1e6", "--tokens", "20", "--seconds", "1", "--threads", "1"]
    cluster = ["--cores", "8", "--nodes", "3", "--jobs", "2", "--cost-per-core-hour", "0.04"]
    assert main(["plan", *asked, *cluster, *options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    machine = facts["measured"].pop("machine")
    measured = Measured(**facts["measured"])
    assert machine
    assert measured.work == work
    assert measured.threads == 1
    assert measured.weight_bytes > 0
    plan = project(measured, 1e6, cores=8, nodes=3, jobs=2, cost_per_core_hour=0.04)
    assert facts["projection"]["seconds"] == plan.seconds
    assert facts["projection"]["memory_bytes"] == plan.memory_bytes
    assert main(["plan", *asked, *cluster, *options]) == 0
    out = capsys.readouterr().out
    assert "1,000,000 such texts on 3 nodes of 8 cores" in out
    assert "\ncost " in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "0"], "--tokens is 0; expected a number from 1"),
        (["--tokens", "600"], "the context holds 512"),
        (["--tokens", "5", "--nodes", "0"], "--nodes is 0"),
        (["--tokens", "5", "--cost-per-core-hour", "-1"], "--cost-per-core-hour is -1"),
    ],
)
def test_what_cannot_be_planned(
    tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["plan", str(tiny_folder("qwen2")), "--texts", "10", *options]) == 1
    assert message in capsys.readouterr().err


def test_a_classifier_has_no_output_tokens(
    tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny_folder("pii_masking"))
    assert main(["plan", folder, "--texts", "1", "--tokens", "5", "--output-tokens", "2"]) == 1
    assert "this one classifies tokens" in capsys.readouterr().err
