"""Show this machine, and with MODEL what it is and the memory it needs. Reads config and headers, not the weights."""

import argparse
import json
from typing import Any

from fastcore.cli.options import add_model

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from fastcore.machine import machine_facts

    facts = {"machine": machine_facts()}
    if args.model is not None:
        facts["model"] = _model(args.model)
    if args.json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        print("\n".join(_lines(facts)))
    return 0


def _model(name: str) -> dict[str, Any]:
    from fastcore.checkpoints.open import open_checkpoint
    from fastcore.engine.scheduler import MAX_ROWS
    from fastcore.models.footprint import plan_model
    from fastcore.sources.resolve import resolve
    from fastcore.text.tokenizer import Tokenizer
    from fastcore.threads import resolve_num_threads

    with open_checkpoint(resolve(name)) as checkpoint:
        plan = plan_model(checkpoint, MAX_ROWS, resolve_num_threads(None))
        tokenizer = Tokenizer.of(checkpoint)
    config = plan.config
    return {
        "path": str(checkpoint.path),
        "model_type": config.model_type,
        "parameters": plan.num_parameters,
        "stored_parameters": plan.stored_parameters,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "context_length": config.context_length,
        "tie_word_embeddings": config.tie_word_embeddings,
        "tokenizer_vocab_size": tokenizer.vocab_size if tokenizer else None,
        "chat_template": tokenizer.has_chat_template if tokenizer else False,
        "weight_bytes": plan.weight_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "recurrent_state_bytes": plan.recurrent_state_bytes,
        "workspace_bytes": plan.workspace_bytes,
    }


def _lines(facts: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for section, values in facts.items():
        lines.append(section)
        for key, value in values.items():
            name = key.replace("weight_bytes", "weights").replace("_bytes", "").replace("_", " ")
            lines.append(f"  {name:24} {_shown(key, value)}")
    return lines


def _shown(key: str, value: Any) -> str:
    """A value for people: sizes in MB or KB, large counts with separators, no for False."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(key, part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return "yes" if value else "no" if value is False else "none"
    if "bytes" in key:
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} KB"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
