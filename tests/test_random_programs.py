"""Random valid programs at awkward sizes, run in random steps: the same bits as one sequence at a time on one thread.

python tests/test_random_programs.py 10000     # seeds 0 to 9999
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from sizes import AWKWARD_SIZES
from steps import OpList, run_rows

from fastcore import _kernels
from fastcore._kernels import BLOCK_TOKENS, DTYPES, KV_DTYPES, SEGMENT_TOKENS, KVBlocks, PackedLinear, Workspace
from fastcore.model import ops
from fastcore.model.ops import OUTPUT, Heads

HEAD_DIMS = (2, 6, 14, 16, 18, 30, 32, 48, 64)
LENGTHS = (1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 64, 70, 97)
EPS = 1e-5


class RandomProgram:
    """A program that draws its sizes, its formats of weights and its choice of ops, plain or fused, from rng."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.list = OpList()
        self.hidden = self.size()
        self.vocab = self.size()
        self.num_kv_heads = int(rng.integers(1, 4))
        self.num_heads = self.num_kv_heads * int(rng.choice((1, 2, 3, 7)))
        self.head_dim = int(rng.choice(HEAD_DIMS))
        self.causal = bool(rng.random() < 0.8)
        self.num_layers = int(rng.integers(1, 4))
        self.residual = self.list.buffer(self.hidden)
        self.list.embed(self.map(self.vocab, self.hidden), self.residual, self.scale())
        for layer in range(self.num_layers):
            parts: list[Callable[[int], None]] = [self.attention, self.gated]
            if self.causal:
                parts.append(self.mixer)
            for part in (parts[i] for i in rng.permutation(len(parts))):
                part(layer)
        self.head()

    # ---- what it draws

    def size(self) -> int:
        return int(self.rng.choice(AWKWARD_SIZES))

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def scale(self) -> float:
        return float(self.rng.choice((1.0, 0.5, 1.25)))

    def vector(self, size: int) -> np.ndarray:
        return self.rng.uniform(-1, 1, size).astype(np.float32)

    def maybe(self, size: int) -> np.ndarray | None:
        return self.vector(size) if self.chance() else None

    def map(self, out_features: int, in_features: int) -> PackedLinear:
        weights = PackedLinear(out_features, in_features, str(self.rng.choice(list(DTYPES))))
        values = self.rng.uniform(-1, 1, (out_features, in_features)) / np.sqrt(in_features)
        weights.pack(values.astype(np.float32), "f32", num_threads=2)
        return weights

    # ---- what it is made of

    def source(self) -> tuple[int, dict]:
        """The residual, normalised: by an op of its own, or by the maps that read it."""
        norm = self.vector(self.hidden)
        if self.chance():
            return self.residual, {"norm": norm, "eps": EPS}
        normed = self.list.buffer(self.hidden)
        self.list.norm(self.residual, normed, norm, EPS)
        return normed, {}

    def linear(self, src: int, out_features: int, in_features: int, options: dict) -> int:
        dst = self.list.buffer(out_features)
        weights = self.map(out_features, in_features)
        self.list.linear(
            src, dst, weights, bias=self.maybe(out_features), column_scale=self.maybe(out_features), **options
        )
        return dst

    def onto_residual(self, src: int, in_features: int) -> None:
        if self.chance():
            self.list.linear(src, self.residual, self.map(self.hidden, in_features), add=True, scale=self.scale())
        else:
            step = self.linear(src, self.hidden, in_features, {})
            self.list.append(ops.Add(step, self.residual, self.hidden, self.scale()))

    def attention(self, layer: int) -> None:
        heads, kv_heads, head_dim = self.num_heads, self.num_kv_heads, self.head_dim
        src, options = self.source()
        if self.chance():
            shape = Heads(
                heads, kv_heads, head_dim, layer, self.maybe(head_dim), self.maybe(head_dim), float(self.scale())
            )
            q = self.list.buffer(shape.width)
            fused = head_dim % 16 == 0 and self.chance()
            weights, bias = self.map(shape.width, self.hidden), self.maybe(shape.width)
            self.list.linear(src, q, weights, bias=bias, heads=shape if fused else None, **{"eps": EPS, **options})
            if not fused:
                self.list.append(ops.FinishHeads(q, shape, EPS))
        else:
            q, k, v = (self.linear(src, n * head_dim, self.hidden, options) for n in (heads, kv_heads, kv_heads))
            for buffer, count in ((q, heads), (k, kv_heads)):
                if self.chance():
                    self.list.append(ops.HeadNorm(buffer, count, head_dim, self.vector(head_dim), EPS, self.scale()))
                self.list.append(ops.Rope(buffer, count, head_dim))
            self.list.append(ops.CacheWrite(k, v, kv_heads, head_dim, layer))
        mixed = self.list.buffer(heads * head_dim)
        shape_of = heads, kv_heads, head_dim, layer
        self.list.append(ops.Attention(q, mixed, *shape_of, head_dim**-0.5, self.causal))
        self.onto_residual(mixed, heads * head_dim)

    def gated(self, layer: int) -> None:
        inner = self.size()
        src, options = self.source()
        activation = self.list.buffer(inner)
        if self.chance():
            rows = 2 * -(-inner // 16) * 16
            self.list.swiglu(
                src, activation, self.map(rows, self.hidden), bias=self.maybe(rows), gate_scale=self.scale(), **options
            )
        else:
            gate, up = (self.linear(src, inner, self.hidden, options) for _ in range(2))
            self.list.append(ops.Glu(gate, up, activation, inner, self.scale()))
        self.onto_residual(activation, inner)

    def mixer(self, layer: int) -> None:
        """A Mamba-2 mixer: gate | x | B | C | dt in one projection."""
        groups = int(self.rng.integers(1, 4))
        heads, head_dim = groups * int(self.rng.integers(1, 4)), int(self.rng.choice((1, 3, 8, 16, 17, 33)))
        d_state, d_conv = int(self.rng.choice((1, 3, 8, 16, 17))), int(self.rng.integers(1, 5))
        features = heads * head_dim
        channels = features + 2 * groups * d_state
        src, options = self.source()
        projected = self.linear(src, features + channels + heads, self.hidden, options)
        convolved, steps = self.list.buffer(channels), self.list.buffer(2 * heads)
        scanned = self.list.buffer(features)
        weight = self.rng.uniform(-1, 1, (d_conv, channels)).astype(np.float32)
        self.list.conv(projected, features, convolved, weight, self.maybe(channels))
        rate = -np.exp(self.vector(heads))
        self.list.time_steps(projected, features + channels, steps, self.vector(heads), rate, (0.0, 10.0))
        gate = projected if self.chance() else None
        self.list.scan(
            convolved,
            steps,
            scanned,
            self.vector(heads),
            head_dim=head_dim,
            num_groups=groups,
            d_state=d_state,
            gate=gate,
        )
        if self.chance():
            self.list.gated_norm(
                scanned,
                projected,
                scanned,
                self.vector(features),
                EPS,
                num_groups=groups,
                norm_before_gate=self.chance(),
            )
        self.onto_residual(scanned, features)

    def head(self) -> None:
        norm, weights = self.vector(self.hidden), self.map(self.vocab, self.hidden)
        if self.chance():
            self.list.linear(self.residual, OUTPUT, weights, norm=norm, eps=EPS)
        else:
            normed = self.list.buffer(self.hidden, "out")
            self.list.norm(self.residual, normed, norm, EPS)
            self.list.linear(normed, OUTPUT, weights, bias=self.maybe(self.vocab))
        self.list.argmax()


@dataclass
class Prompt:
    token_ids: np.ndarray
    blocks: np.ndarray  # of the cache, in order
    state_block: int
    length: int = 0  # that has been run


class Runner:
    """Sequences of a program over one cache, each with blocks of its own in random places."""

    def __init__(self, random: RandomProgram, prompts: Sequence[np.ndarray], kv_dtype: str) -> None:
        self.list, self.rng = random.list, random.rng
        self.program = self.list.program
        positions = max(map(len, prompts))
        angles = np.outer(np.arange(positions), self.rng.uniform(0, 1, random.head_dim // 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        shape = random.num_layers, random.num_kv_heads, random.head_dim, kv_dtype
        block_bytes = KVBlocks(*shape, 1).block_bytes
        state = -(-self.program.state_bytes // block_bytes)
        table = -(-positions // BLOCK_TOKENS)
        self.kv = KVBlocks(*shape, len(prompts) * (table + state))
        self.kv.memory[:] = 0xFF  # NaN: must not be read into a result
        places = self.rng.permutation(len(prompts) * table).astype(np.int32).reshape(len(prompts), table)
        self.prompts = [
            Prompt(ids, blocks, len(prompts) * table + i * state)
            for i, (ids, blocks) in enumerate(zip(prompts, places, strict=True))
        ]
        self.workspace = Workspace()

    def step(self, counts: Sequence[tuple[Prompt, int]], num_threads: int) -> list[np.ndarray]:
        """Run so many further tokens of each; the outputs of all their rows, with argmax as a last column."""
        lengths = [count for _, count in counts]
        rows = sum(lengths)
        output = np.full((rows, self.program.output_width), np.nan, np.float32)
        best = np.full(rows, -9, np.int32)
        at = np.concatenate([np.arange(prompt.length, prompt.length + count) for prompt, count in counts])
        ids = np.concatenate([prompt.token_ids[prompt.length : prompt.length + count] for prompt, count in counts])
        run_rows(
            self.list,
            {},
            token_ids=ids,
            lengths=lengths,
            positions=[prompt.length for prompt, _ in counts],
            blocks=np.stack([prompt.blocks for prompt, _ in counts]),
            out_rows=np.arange(rows),
            kv=self.kv,
            cos=self.cos[at],
            sin=self.sin[at],
            output=output,
            argmax=best,
            num_threads=num_threads,
            state_blocks=[prompt.state_block for prompt, _ in counts] if self.program.state_bytes else None,
            workspace=self.workspace,
        )
        for prompt, count in counts:
            prompt.length += count
        result = np.concatenate([output, best[:, None].view(np.float32)], axis=1)
        return np.split(result, np.cumsum(lengths)[:-1])


def check(seed: int) -> None:
    """AssertionError where random steps, on random threads, give other bits than each sequence alone on one."""
    rng = np.random.default_rng(seed)
    random = RandomProgram(rng)
    kv_dtype = str(rng.choice(KV_DTYPES))
    lengths = [int(rng.choice(LENGTHS)) for _ in range(rng.integers(1, 5))]
    if rng.random() < 0.2:
        lengths[0] = SEGMENT_TOKENS + int(rng.choice((1, 31, 90)))  # contexts that threads share
    prompts = [rng.integers(0, random.vocab, length).astype(np.int32) for length in lengths]
    alone = [Runner(random, [prompt], kv_dtype) for prompt in prompts]
    together = Runner(random, prompts, kv_dtype)
    for runner in alone:
        runner.cos, runner.sin = together.cos, together.sin
    expected = [
        runner.step([(runner.prompts[0], len(prompt))], 1)[0] for runner, prompt in zip(alone, prompts, strict=True)
    ]
    found: list[list[np.ndarray]] = [[] for _ in prompts]
    while pending := [i for i, s in enumerate(together.prompts) if s.length < len(s.token_ids)]:
        chosen = [i for i in pending if rng.random() < 0.7] or pending[:1]
        counts = []
        for i in chosen:
            left = len(prompts[i]) - together.prompts[i].length
            piece = left if not random.causal else int(min(left, rng.choice((1, 1, 2, 7, 19, 64, 600))))
            counts.append((together.prompts[i], piece))
        for i, rows in zip(chosen, together.step(counts, int(rng.integers(1, 6))), strict=True):
            found[i].append(rows)
    for i, rows in enumerate(found):
        assert np.isfinite(expected[i][:, :-1]).all(), f"seed {seed}, sequence {i} is not finite"
        assert np.concatenate(rows).tobytes() == expected[i].tobytes(), f"seed {seed}, sequence {i} differs"


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(isa: str, seed: int) -> None:
    check(seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        isas = _kernels.available_isas()
        _kernels.use_isa(isas[number % len(isas)])
        check(number)
