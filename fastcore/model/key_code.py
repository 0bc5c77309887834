"""How keys lie in a cache of int8: less their center, in units that differ by feature.

Some models have biases in their keys a hundred times as large as what the text adds: quantised with it, the text would
be lost. Most of such a bias sits in pairs that turn slowly, and its mean over the rotations can be left out, as the
softmax does not see it. What is left of the others widens the range of its group of 32 features. So features are
stored in units: an error of key i costs |query i| times that, so that all cost alike where unit^2 goes with the size
of the keys over that of the queries.
"""

import numpy as np

from fastcore.model.config import ModelConfig
from fastcore.model.ops import Vector
from fastcore.model.rope import rotated_mean

__all__ = ["key_code"]

POSITIONS = 512  # over which the center is taken: early tokens have the fewest others beside them
KEYS, QUERIES = 1.5, 2.0  # what the text adds to a key, and to a query's pair, root mean square, by order of magnitude


def key_code(config: ModelConfig, q_bias: Vector, k_bias: Vector) -> tuple[Vector, Vector]:
    """key_center and key_unit [num_kv_heads * head_dim] of keys with a bias [num_kv_heads * head_dim].

    q_bias: [num_heads * head_dim]. Units are powers of two, and centers multiples of 1/64, so that both are the same
    bits on every machine.
    """
    keys = k_bias.astype(np.float64).reshape(config.num_key_value_heads, config.head_dim)
    queries = q_bias.astype(np.float64).reshape(config.num_key_value_heads, -1, config.head_dim)
    center = np.rint(rotated_mean(config.rope, keys, POSITIONS) * 64) / 64
    rest = (_pairs(keys**2) - _pairs(center**2)).clip(0) / 2  # mean square of what is left, in each of a pair
    sizes = np.sqrt((rest + KEYS**2) / (_pairs((queries**2).mean(axis=1)) + QUERIES**2))
    unit = np.exp2(np.rint(np.log2(sizes) / 2))
    return center.astype(np.float32).reshape(-1), unit.astype(np.float32).reshape(-1)


def _pairs(squares: np.ndarray) -> np.ndarray:
    """Each feature's and that of the one it turns with, together: [heads, head_dim]."""
    return squares + np.roll(squares, squares.shape[1] // 2, axis=1)
