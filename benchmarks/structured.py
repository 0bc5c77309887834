"""Texts held to JSON schemas: how many are valid, what the masks cost, and what a suite of schemas says of soundness.

    python benchmarks/structured.py FOLDER --samples 500             # texts of a model at temperature 1
    python benchmarks/structured.py FOLDER --suite DRAFT_FOLDER      # tests/draft2020-12 of JSON-Schema-Test-Suite

FOLDER is a model's. The first needs the package jsonschema, which judges the texts. A text that max_tokens cut
is counted apart. The second asks of every schema that is taken whether the grammar lets the suite's valid values
through, and no other; narrower is allowed (the order of keys is the schema's), wider is not.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastcore import LLM, SamplingParams
from fastcore._kernels import mask_logits
from fastcore.errors import GrammarError
from fastcore.text.grammars import Constraint

STRING = {"type": "string", "maxLength": 12}


def record(**properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with these keys and no other."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "record": record(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "enums": record(mood={"enum": ["good", "bad", None]}, sure={"type": "boolean"}),
    "numbers": {
        "type": "array",
        "items": {"type": "number", "minimum": -1, "exclusiveMaximum": 10, "multipleOf": 0.5},
        "minItems": 1,
        "maxItems": 4,
    },
    "formats": record(
        day={"type": "string", "format": "date"}, code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}
    ),
    "nested": {
        "$defs": {"point": record(x={"type": "integer", "minimum": 0, "maximum": 9}, y={"type": ["integer", "null"]})},
        **record(at={"$ref": "#/$defs/point"}, to={"anyOf": [{"$ref": "#/$defs/point"}, {"const": "nowhere"}]}),
    },
    "open": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": {"type": "integer", "maximum": 999},
        "maxProperties": 3,
    },
}


def samples(llm: LLM, count: int, max_tokens: int, names: Sequence[str]) -> None:
    from jsonschema import Draft202012Validator, FormatChecker

    print(f"{'schema':10} {'texts':>6} {'whole':>6} {'valid':>6} {'distinct':>8} {'tokens/s':>8}")
    for name in names:
        schema = SCHEMAS[name]
        judge = Draft202012Validator(schema, format_checker=FormatChecker())
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, json_schema=schema, seed=1)
        prompt = llm.tokenizer.encode_chat([{"role": "user", "content": f"Write JSON of: {', '.join(schema)}."}])
        begun = time.perf_counter()
        replies = []
        for first in range(0, count, 100):
            rest = min(100, count - first)
            replies += llm.generate([prompt], params.replace(n=rest, seed=first))[0]
        seconds = time.perf_counter() - begun
        whole = [reply.text for reply in replies if reply.finish_reason == "stop"]
        valid = sum(judge.is_valid(json.loads(text)) for text in whole)
        rate = sum(len(reply.token_ids) for reply in replies) / seconds
        print(f"{name:10} {count:6} {len(whole):6} {valid:6} {len(set(whole)):8} {rate:8.0f}", flush=True)


def cost(llm: LLM, rounds: int = 20) -> None:
    """Microseconds a token to work out a mask, take the token, and mask the logits."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["name"],
    }
    text = (
        '{"name": "Ada Lovelace of London", "tags": ["one", "two words", "é"], "age": 36, "more": {"a": [2.5, null]}}'
    )
    ids = llm.tokenizer.encode(text, add_special_tokens=False)
    logits = np.random.default_rng(0).standard_normal(llm.config.vocab_size).astype(np.float32)
    out = np.empty_like(logits)
    masks, applied = [], []
    for _ in range(rounds):
        constraint = llm._grammars.constraint("json_schema", json.dumps(schema))
        for token_id in ids:
            start = time.perf_counter()
            allowed = constraint.allowed()
            middle = time.perf_counter()
            mask_logits(logits, allowed, out)
            end = time.perf_counter()
            constraint.accept(token_id)
            masks.append(middle - start + time.perf_counter() - end)
            applied.append(end - middle)
    for what, seconds in (("mask", masks), ("apply", applied), ("both", np.add(masks, applied))):
        values = 1e6 * np.asarray(seconds)
        low, mean, high = np.median(values), values.mean(), np.quantile(values, 0.99)
        print(f"{what:6} median {low:6.1f}  mean {mean:6.1f}  99 % {high:6.1f} us")


def suite(llm: LLM, folder: Path) -> None:
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            if isinstance(group["schema"], bool):
                continue
            schema = json.dumps(group["schema"])
            try:
                llm._grammars.constraint("json_schema", schema)
            except GrammarError:
                counts["schemas refused"] += 1
                continue
            counts["schemas taken"] += 1
            for test in group["tests"]:
                is_taken = accepts(llm, llm._grammars.constraint("json_schema", schema), test["data"])
                counts[f"{'valid' if test['valid'] else 'invalid'} values {'taken' if is_taken else 'refused'}"] += 1
                if is_taken and not test["valid"]:
                    print(f"too wide: {path.name}: {group['description']}: {test['description']}")
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")


def accepts(llm: LLM, constraint: Constraint, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    for token_id in [*llm.tokenizer.encode(text, add_special_tokens=False), llm.eos_token_ids[0]]:
        if not constraint.allowed()[token_id // 32] >> np.uint32(token_id % 32) & 1:
            return False
        constraint.accept(token_id)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--only", nargs="*", choices=SCHEMAS, default=[*SCHEMAS], help="schemas to sample")
    parser.add_argument("--suite", type=Path)
    args = parser.parse_args()
    llm = LLM(args.model)
    cost(llm)
    if args.samples:
        samples(llm, args.samples, args.max_tokens, args.only)
    if args.suite:
        suite(llm, args.suite)


if __name__ == "__main__":
    main()
