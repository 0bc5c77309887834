"""The reference: forward passes in plain NumPy, float64 unless asked otherwise, that share no code with fastcore.

One file per model, each with `logits(folder, token_ids, dtype=np.float64)` and, where the model writes text,
`greedy(folder, token_ids, n)`. Meant to be read beside the model's description, not to be fast: no cache, one sequence.
"""
