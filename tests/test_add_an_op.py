"""An op is the rows, functions and records that CONTRIBUTING.md names: one more, with a kernel and a field."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# lift_squares: dst = src^2 + lift. Of each file what stands there, and what stands there with it.
EDITS = {
    "csrc/fastcore.h": [
        ("    X(GATED_NORM, gated_norm)", "    X(GATED_NORM, gated_norm) X(LIFT_SQUARES, lift_squares)"),
        ("    float low, high;", "    float low, high, lift;"),
    ],
    "csrc/ops_linear.c": [
        (
            "void fc_run_glu(",
            """void fc_run_lift_squares(const team_member *m, const fc_op *op)
{
    ptrdiff_t ld_src, ld_dst;
    const float *src = fc_buffer_rows(m, op->src, &ld_src);
    float *dst = fc_buffer_rows(m, op->dst, &ld_dst);
    range rows = fc_share(m, fc_num_rows(m, op->dst));
    for (int r = rows.begin; r < rows.end; r++) {
        m->run->kernels->lift_squares(src + fc_source_row(m, op, r) * ld_src, op->n, op->lift, dst + r * ld_dst);
    }
}

void fc_run_glu(""",
        )
    ],
    "csrc/kernels.h": [
        (
            "    K(void, softplus,",
            "    K(void, lift_squares, (const float *x, int n, float lift, float *out)) \\\n    K(void, softplus,",
        )
    ],
    "csrc/elementwise_tpl.h": [
        (
            "static void FC_NAME(rms_norm)(",
            """static void FC_NAME(lift_squares)(const float *x, int n, float lift, float *out)
{
    for (int i = 0; i < n; i += 16) {
        p16 v = FC_NAME(load_up_to)(x + i, n - i);
        FC_NAME(store_up_to)(out + i, p16_fma(v, v, p16_set1(lift)), n - i);
    }
}

static void FC_NAME(rms_norm)(""",
        )
    ],
    "csrc/check_elementwise.c": [
        (
            "void fc_check_rms_norm(",
            """void fc_check_lift_squares(fc_check *c)
{
    EACH_SIZE(c, n)
    {
        float *x = floats(c, n, 3.0f), *out = floats(c, n, 1.0f);
        c->kernels->lift_squares(x, (int)n, 0.3f, out);
        add_floats(c, out, n);
    }
}

void fc_check_rms_norm(""",
        )
    ],
    "fastcore/_kernels.pxd": [("        float low, high", "        float low, high, lift")],
    "fastcore/_kernels.pyx": [
        (
            '        op.low, op.high = getattr(record, "low", 0.0)',
            '        op.lift = getattr(record, "lift", 0.0)\n        op.low, op.high = getattr(record, "low", 0.0)',
        )
    ],
    "fastcore/model/ops/linear.py": [
        (
            "@dataclass(frozen=True, eq=False)\nclass Glu(Op):",
            '''@dataclass(frozen=True, eq=False)
class LiftSquares(Op):
    """dst [n] = src^2 + lift."""

    src: int
    dst: int
    n: int
    lift: float
    kind: ClassVar[str] = "lift_squares"

    def check(self, shapes: Shapes) -> None:
        shapes.read("squares", self.src, self.n)
        shapes.write("squares", self.dst, self.n, self.src)


@dataclass(frozen=True, eq=False)
class Glu(Op):''',
        )
    ],
    "fastcore/model/ops/__init__.py": [("Glu, Linear, Norm", "Glu, LiftSquares, Linear, Norm")],
    "fastcore/model/recorder.py": [
        (
            "    def glu(",
            '''    def lift_squares(self, x: Rows, lift: float) -> Rows:
        """x^2 + lift."""
        made = self._rows(x.width, x.rows)
        self.ops.append(ops.LiftSquares(x.number, made.number, x.width, lift))
        return made

    def glu(''',
        )
    ],
    "tests/oracle/ops.py": [
        (
            "def rms_norm(",
            "def lift_squares(x, lift):\n    return x * x + lift\n\n\ndef rms_norm(",
        )
    ],
    "tests/replay.py": [
        (
            "    def _glu(",
            """    def _lift_squares(self, op: ops.LiftSquares) -> None:
        self.held[op.dst] = oracle.lift_squares(self.held[op.src], op.lift)

    def _glu(""",
        )
    ],
}
USE = """
import numpy as np
from replay import Replay

from tiny import make_prompt
import tolerances
from fastcore import _kernels
from fastcore._kernels import Workspace, available_isas
from fastcore.checkpoints.open import open_checkpoint
from fastcore.model.recorder import Recorder
from fastcore.model.weights import Weights

ids = make_prompt(7)
assert len(available_isas()) >= int(EXPECTED_ISAS), available_isas()
with open_checkpoint(FOLDER) as checkpoint:
    config, weights = checkpoint.config(), Weights(checkpoint)
    size, m = config.hidden_size, Recorder()
    hidden = m.embed(weights.linear("model.embed_tokens", config.vocab_size, size))
    norm = weights.vector("model.norm.weight", size)
    hidden += m.lift_squares(m.rms_norm(hidden, norm, 1e-5), -0.5)
    m.output(m.rms_norm(hidden, norm, 1e-5, rows="out"))
    plain = m.finish(lambda linear: linear, fused=False)
    expected = Replay(ids, np.zeros((7, 0)), np.zeros((7, 0))).run(plain.ops)
    program = m.finish(weights.pack)
rows, none = np.arange(7, dtype=np.int32), np.zeros((0, 0), np.float32)
results = []
for isa in available_isas():
    _kernels.use_isa(isa)
    for threads in (1, 3):
        output = np.empty((7, size), np.float32)
        program.run(
            Workspace(), np.array(ids, np.int32), np.array([0, 7], np.int32), np.zeros(1, np.int32),
            np.zeros((1, 1), np.int32), rows, None, none, none, output=output, num_threads=threads,
        )
        results.append(output)
assert np.abs(results[0] - expected).max() <= tolerances.LOGITS_RELATIVE_TO_STD * expected.std()
assert all(np.array_equal(each, results[0]) for each in results)
print("lift_squares" in _kernels.OP_KINDS)
"""


def test_a_new_op_touches_what_is_documented(tmp_path: Path, tiny_folder) -> None:
    """It is compiled, chosen by the self-check, recorded, replayed on the oracle, and gives the oracle's numbers."""
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    left_out = shutil.ignore_patterns("*.so", "_kernels.c", "__pycache__", "data")
    for name in ("csrc", "fastcore", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for name, edits in EDITS.items():
        text = (tmp_path / name).read_text()
        for before, after in edits:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        (tmp_path / name).write_text(text)
    setup = (ROOT / "setup.py").read_text()
    (tmp_path / "setup.py").write_text(setup.replace('"-O3"', '"-O0"').replace('"-O1"', '"-O0"'))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'tests'}"}
    environment.pop("FASTCORE_ISA", None)

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("setup.py", "-q", "build_ext", "--inplace")
    from fastcore._kernels import available_isas

    use = USE.replace("FOLDER", repr(str(tiny_folder("llama")))).replace("EXPECTED_ISAS", repr(len(available_isas())))
    assert run("-c", use).split() == ["True"]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "every_op_of_c", "tests/test_fuse.py")
