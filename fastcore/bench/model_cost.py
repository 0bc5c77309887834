"""What a model costs: weights, and multiplications for a workload."""

from math import prod

from fastcore._kernels import PackedLinear
from fastcore.bench.workload import Workload
from fastcore.models import Model

__all__ = ["flops_of", "linear_weights", "num_parameters"]


def linear_weights(model: Model) -> list[PackedLinear]:
    """Weights of the linear maps in the order that a step meets them; the head is the last."""
    program = model.program
    return [
        weights for op, weights in zip(program.ops, program.weights, strict=True) if op.kind == "linear" and weights
    ]


def flops_of(model: Model, workload: Workload) -> int:
    """Two for each weight and token, the head only for a sequence's last token of a step; and those of attention."""
    *layers, head = [weights.out_features * weights.in_features for weights in linear_weights(model)]
    config = model.config
    attention_layers = model.program.max_layer + 1
    pairs = workload.batch * sum(range(workload.depth + 1, workload.positions + 1))  # of a token and one it sees
    attention = 2 * attention_layers * config.num_attention_heads * config.head_dim * pairs  # scores, weighted sum
    return 2 * (workload.tokens * sum(layers) + workload.batch * workload.steps * head + attention)


def num_parameters(model: Model) -> int:
    """Weights of the distinct linear maps; the vectors are less than a thousandth."""
    distinct = {id(weights): weights for weights in model.program.weights if weights is not None}
    return sum(prod((weights.out_features, weights.in_features)) for weights in distinct.values())
