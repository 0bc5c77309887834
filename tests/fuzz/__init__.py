"""Structure-aware fuzzing of everything that reads what others wrote.

A reader is fed cases made from small valid inputs: each must end in success or in a `fastcore.Error`, within the
bounds of `fuzz.run`. To add one, write a generator of cases and a function that reads one, and list them:

    READERS["name"] = Reader(make, read)

make(rng) -> bytes: one case; `fuzz.mutate` has mutations of JSON values, of bytes and of fields of a binary format.
read(case): reads it as the product does and uses what came out. Keep both cheap: a long run is a million cases.
allowed: exceptions beside fastcore.Error that the reader documents, for example ValueError for a request's text.

Readers stand in `fuzz.checkpoints` and in modules beside it that `fuzz.readers` imports.

    python tests/fuzz/run.py                           names the readers
    python tests/fuzz/run.py safetensors --cases 1000000 --seed 1
"""
