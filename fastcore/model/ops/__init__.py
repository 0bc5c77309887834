"""The ops that programs are made of, a frozen record each.

src, src2, gate and dst are numbers of buffers, [rows, width] f32, where a buffer holds all rows of a step or those that
are asked for; OUTPUT is the caller's array of the rows asked for. An op computes every row of its dst, so from a src of
all rows to a dst of those asked for it picks rows out. Vectors are f32. The fields go into C under the same names:
fc_op in csrc/fastcore.h.
"""

from fastcore.model.ops.attention import Attention, CacheWrite, FinishHeads, HeadNorm, Heads, Rope
from fastcore.model.ops.linear import Add, Argmax, Embed, Glu, Linear, Norm
from fastcore.model.ops.mamba import Conv, GatedNorm, Scan, TimeSteps
from fastcore.model.ops.record import OUTPUT, Buffer, LinearWeights, Op, RowSet, Shapes, Vector

__all__ = [
    "OUTPUT", "Add", "Argmax", "Attention", "Buffer", "CacheWrite", "Conv", "Embed", "FinishHeads", "GatedNorm", "Glu",
    "HeadNorm", "Heads", "Linear", "LinearWeights", "Norm", "Op", "Rope", "RowSet", "Scan", "Shapes", "TimeSteps",
    "Vector",
]  # fmt: skip
