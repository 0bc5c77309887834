"""The center and the units of keys in a cache of int8, against what rotated biases do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import tolerances
from tiny import make_prompt

from fastcore import LLM
from fastcore.checkpoints.open import open_checkpoint
from fastcore.model.key_code import POSITIONS, key_code
from fastcore.model.rope import rope_tables, rotated_mean


def test_the_mean_of_rotations_is_that_of_the_tables(tiny_folder: Callable[..., Path]) -> None:
    """Each position's angle stands for the step up to the next, so the two differ by less than one of the positions."""
    with open_checkpoint(tiny_folder("qwen2")) as checkpoint:
        rope = replace(checkpoint.config().rope, rope_theta=1e4)
    heads = np.random.default_rng(0).standard_normal((3, 8))
    cos, sin = (table.astype(np.float64)[:, None] for table in rope_tables(rope, 8, 300))
    low, high = heads[:, :4], heads[:, 4:]
    turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    assert np.abs(rotated_mean(rope, heads, 300) - turned.mean(axis=0)).max() < 2 * np.abs(heads).max() / 300


def test_large_biases_are_left_out_or_stored_in_wide_units(tiny_folder: Callable[..., Path]) -> None:
    with open_checkpoint(tiny_folder("qwen2")) as checkpoint:
        config = checkpoint.config()
    size, half = config.head_dim, config.head_dim // 2
    keys, queries = np.zeros((config.num_key_value_heads, size), np.float32), np.zeros(0, np.float32)
    keys[0, 0], keys[0, half - 1] = 200, 200  # of the fastest pair and of the slowest
    queries = np.zeros(config.num_attention_heads * size, np.float32)
    center, unit = (each.reshape(keys.shape) for each in key_code(config, queries, keys.reshape(-1)))
    assert np.abs(center[0, [0, half]]).max() < 200 * 2 / POSITIONS + 1 / 64  # it turns once in six positions
    assert unit[0, 0] == unit[0, half] > unit[0, 1] == unit[1, 0]
    assert not center[1].any()
    assert np.array_equal(unit, np.exp2(np.rint(np.log2(unit))))
    wide = key_code(config, np.full_like(queries, 100), keys.reshape(-1))[1]
    assert (wide.reshape(keys.shape) < unit).all()  # where queries are large, keys are held more finely


def test_int8_holds_what_a_model_with_large_key_biases_attends_to(tiny_folder: Callable[..., Path]) -> None:
    folder, ids = tiny_folder("qwen2"), make_prompt(70)
    exact = LLM(folder, num_threads=1).logits(ids)
    found = LLM(folder, num_threads=2, kv_dtype="int8").logits(ids)
    error = np.sqrt(np.square(found - exact).mean()) / exact.std()
    assert 0 < error < tolerances.QUANTISED_LOGITS["int8"]
