"""old_processor.py FOLDER FILE IDS: save the logits of a model; test_cross runs it where there is no AVX, too."""

import sys
from pathlib import Path

import numpy as np

from fastcore import _kernels
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.models import load_model

model = load_model(Path(sys.argv[1]))
token_ids = [int(i) for i in sys.argv[3].split(",")]
logits = np.empty((len(token_ids), model.config.vocab_size), np.float32)
with SequenceState(StatePool(model, 1 << 22)) as sequence:
    run_step(model, [Piece(sequence, token_ids, range(len(token_ids)))], num_threads=2, logits=logits)
np.save(sys.argv[2], logits)
print(*_kernels.available_isas())
