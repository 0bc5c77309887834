"""Serve a model over HTTP.

  fastcore serve FOLDER --port 8000
  curl -s localhost:8000/v1/completions -d '{"prompt": "The capital of France is"}'
  curl -s localhost:8000/v1/pii -d '{"sequences": ["My name is John Smith"]}'

A language model answers as OpenAI's API does: POST /v1/completions and POST /v1/chat/completions, streaming included. A
token classifier answers POST /v1/pii (entities and masked texts) and POST /v1/scoring (token_ids, pruning_scores,
ranking_scores: its numbers token by token). GET /health and GET /v1/models answer for every model.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli.options import MODEL, add_loading_options, add_model, load_llm

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.llm import LLM

__all__ = ["configure", "run"]

KEY_VARIABLE = "FASTCORE_API_KEY"
PII_NAME = "pii-masking-latest"  # what clients of the PII model's scoring service call it


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, what=f"{MODEL} (default: smollm2-135m)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"wanted as `Authorization: Bearer KEY` (better given as {KEY_VARIABLE})"
    )
    parser.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN",
        help="let web pages from this origin call, or from any (*); repeatable (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--served-model-name", action="append", default=[], metavar="NAME",
        help="what requests may call the model; repeatable (default: the folder's name)",
    )  # fmt: skip
    parser.add_argument("--max-body", type=float, default=16, metavar="MB", help="largest request (default: 16)")
    parser.add_argument(
        "--body-seconds", type=float, default=30, metavar="S", help="longest wait for one (default: 30)"
    )
    parser.add_argument(
        "--max-connections", type=int, default=1000, metavar="N",
        help="connections at once; a new one takes the place of the one that has waited longest (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--header-seconds", type=float, default=10, metavar="S", help="longest wait for a request's head (default: 10)"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    add_loading_options(parser)


def run(args: argparse.Namespace) -> int:
    from fastcore.llm import LLM
    from fastcore.server import create_app, run_server
    from fastcore.sources.resolve import resolve

    for name in ("max_body", "body_seconds", "max_connections", "header_seconds"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected more than 0")
    path = resolve(args.model)
    model = _load(path, args)
    names = [_name(args.model, path), *([] if isinstance(model, LLM) else [PII_NAME])]
    app = create_app(
        model,
        args.served_model_name or names,
        api_key=args.api_key or os.environ.get(KEY_VARIABLE) or None,
        cors_origins=args.cors,
        max_body_bytes=int(args.max_body * 1e6),
        body_seconds=args.body_seconds,
    )
    run_server(
        app, args.host, args.port, args.log_level,
        max_connections=args.max_connections, header_seconds=args.header_seconds,
    )  # fmt: skip
    return 0


def _load(path: Path, args: argparse.Namespace) -> "LLM | TokenClassifier":
    from fastcore.checkpoints.open import open_checkpoint
    from fastcore.classify import TokenClassifier

    with open_checkpoint(path) as checkpoint:
        if not checkpoint.config().is_token_classifier:
            return load_llm(checkpoint, args)
        model = TokenClassifier(checkpoint, dtype=args.dtype, num_threads=args.threads, max_seq_len=args.max_seq_len)
        model.tokenizer  # noqa: B018  read now rather than in the first request
        return model


def _name(model: str | None, path: Path) -> str:
    """A hub id or a named model is called what it was called; a folder by its last part."""
    from fastcore.sources.resolve import DEFAULT_MODEL

    if model is None:
        return DEFAULT_MODEL
    return path.resolve().name if Path(model).exists() else model
