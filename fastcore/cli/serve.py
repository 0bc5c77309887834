"""Serve a model over HTTP.

  fastcore serve FOLDER --port 8000
  curl -s localhost:8000/v1/chat/completions --json '{"messages": [{"role": "user", "content": "Why is the sky?"}]}'
  curl -s localhost:8000/v1/pii --json '{"sequences": ["My name is John Smith"]}'

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

LIMITS: dict[str, tuple[type, str]] = {
    "max_requests": (int, "completions under way and waiting; one too many gets 429 (default: 256)"),
    "max_completions": (int, "prompts times n in one request (default: 128)"),
    "max_logprobs": (int, "logprobs and top_logprobs of a request (default: 20)"),
    "max_stop": (int, "stop strings of a request (default: 16)"),
    "max_logit_bias": (int, "entries of logit_bias (default: 1024)"),
    "max_texts": (int, "texts in one request to a classifier (default: 4096)"),
    "max_text_chars": (int, "characters of one text or prompt (default: 4000000)"),
    "max_scored_tokens": (int, "tokens in one answer of /v1/scoring (default: 250000)"),
}
RUNNING: dict[str, tuple[type, str]] = {
    "max_connections": (int, "connections at once; one too many takes the place of an idle one (default: 1000)"),
    "header_seconds": (float, "longest wait for a request's head (default: 10)"),
    "send_seconds": (float, "longest wait for a client to take what is sent (default: 30)"),
    "shutdown_seconds": (float, "for requests under way when the server is to end (default: 8)"),
}


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
        "--cors", "--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="let web pages from this origin call, or from any (*); repeatable (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--served-model-name", action="append", default=[], metavar="NAME",
        help="what requests may call the model; repeatable (default: the folder's name)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST",
        help="a further name that this machine's own address is called by (a proxy's, say); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--no-generation-config", action="store_true", help="do not sample as generation_config.json says"
    )
    parser.add_argument("--max-body", type=float, default=16, metavar="MB", help="largest request (default: 16)")
    parser.add_argument(
        "--body-seconds", type=float, default=30, metavar="S", help="longest wait for one (default: 30)"
    )
    limits = parser.add_argument_group("limits")
    for name, (kind, what) in (LIMITS | RUNNING).items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind is int else "S", help=what)
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    add_loading_options(parser)


def run(args: argparse.Namespace) -> int:
    from fastcore.llm import LLM
    from fastcore.server import RequestLimits, ServerOptions, create_app, run_server
    from fastcore.sources.resolve import resolve

    given = {name: getattr(args, name) for name in (*LIMITS, *RUNNING) if getattr(args, name) is not None}
    for name, value in {"max_body": args.max_body, "body_seconds": args.body_seconds, **given}.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} is {value}; expected a number above 0")
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port is {args.port}; expected a number from 0 to 65535")
    limits = RequestLimits(
        max_body_bytes=int(args.max_body * 1e6),
        body_seconds=args.body_seconds,
        **{name: given[name] for name in LIMITS if name in given},
    )
    path = resolve(args.model)
    model = _load(path, args)
    names = [_name(args.model, path), *([] if isinstance(model, LLM) else [PII_NAME])]
    app = create_app(
        model,
        args.served_model_name or names,
        api_key=args.api_key or os.environ.get(KEY_VARIABLE) or None,
        cors_origins=args.cors,
        allowed_hosts=args.allow_host,
        use_generation_config=not args.no_generation_config,
        limits=limits,
    )
    running = ServerOptions(**{name: given[name] for name in RUNNING if name in given})
    run_server(app, args.host, args.port, args.log_level, running)
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
