"""Serve models over HTTP.

  fastcore serve FOLDER --port 8000
  fastcore serve smollm2-135m small=OTHER_FOLDER --max-weights 2
  curl -s localhost:8000/v1/chat/completions --json '{"messages": [{"role": "user", "content": "Why is the sky?"}]}'
  curl -s localhost:8000/v1/pii --json '{"sequences": ["My name is John Smith"]}'

A language model answers as OpenAI's API does: POST /v1/completions and POST /v1/chat/completions, streaming included. A
token classifier answers POST /v1/pii (entities and masked texts) and POST /v1/scoring (token_ids, pruning_scores,
ranking_scores: its numbers token by token). Every model answers GET /v1/models, POST /tokenize and /detokenize.

Of several models each request names one. The first is loaded at once, the others when a request needs them.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli.options import MODEL, add_loading_options, load_llm

if TYPE_CHECKING:
    from fastcore.classify import TokenClassifier
    from fastcore.llm import LLM
    from fastcore.server import ServedModel

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
    "max_text_chars": (int, "characters of one text or prompt (default: 1000000)"),
    "max_scored_tokens": (int, "tokens in one answer of /v1/scoring (default: 250000)"),
}
RUNNING: dict[str, tuple[type, str]] = {
    "max_connections": (int, "connections at once; one too many takes the place of an idle one (default: 1000)"),
    "header_seconds": (float, "longest wait for a request's head (default: 10)"),
    "send_seconds": (float, "longest wait for a client to take what is sent (default: 30)"),
    "shutdown_seconds": (float, "for requests under way when the server is to end (default: 8)"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL",
        help=f"{MODEL}, or NAME=MODEL, which requests call NAME; several may be served (default: smollm2-135m)",
    )  # fmt: skip
    parser.add_argument(
        "-m", "--model", action="append", default=[], dest="more_models", metavar="MODEL", help="the same as an option"
    )
    parser.add_argument(
        "--max-weights", type=float, metavar="GB",
        help="of all models that are loaded at once; the one unused for longest makes room (default: no bound)",
    )  # fmt: skip
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
        help="what requests may call a single model; repeatable (default: the folder's name)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST",
        help="a further name that this machine's own address is called by (a proxy's, say); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--pii-guard", action="store_true",
        help="mask personal data of every chat by the classifier that is served too, and put it back in the answer",
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
    parser.add_argument("--log-format", default="text", choices=["text", "json"], help="json: an object a line")
    add_loading_options(parser)


def run(args: argparse.Namespace) -> int:
    from fastcore.server import RequestLimits, ServerOptions, bound, create_app, run_server

    given = {name: getattr(args, name) for name in (*LIMITS, *RUNNING) if getattr(args, name) is not None}
    checked = {"max_body": args.max_body, "body_seconds": args.body_seconds, **given}
    if args.max_weights is not None:
        checked["max_weights"] = args.max_weights
    for name, value in checked.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} is {value}; expected a number above 0")
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port is {args.port}; expected a number from 0 to 65535")
    limits = RequestLimits(
        max_body_bytes=int(args.max_body * 1e6),
        body_seconds=args.body_seconds,
        **{name: given[name] for name in LIMITS if name in given},
    )
    running = {name: given[name] for name in RUNNING if name in given}
    options = ServerOptions(log_level=args.log_level, log_format=args.log_format, **running)
    with bound(args.host, args.port) as sockets:  # before a model is loaded, as it may fail
        app = create_app(
            _models(args),
            api_key=args.api_key or os.environ.get(KEY_VARIABLE) or None,
            cors_origins=args.cors,
            allowed_hosts=args.allow_host,
            use_generation_config=not args.no_generation_config,
            limits=limits,
            max_weight_bytes=None if args.max_weights is None else int(args.max_weights * 1e9),
            pii_guard=args.pii_guard,
        )
        run_server(app, sockets, options)
    return 0


def _models(args: argparse.Namespace) -> "list[ServedModel]":
    from fastcore.sources.resolve import DEFAULT_MODEL

    named = [*args.models, *args.more_models] or [DEFAULT_MODEL]
    if args.served_model_name and len(named) > 1:
        raise ValueError("--served-model-name is for one model; name each of several as NAME=MODEL")
    models = [_served(text, args) for text in named]
    classifiers = [model for model in models if model.is_classifier]
    if args.served_model_name:
        models[0].names = args.served_model_name
    elif classifiers:
        classifiers[0].names = [*classifiers[0].names, PII_NAME]
    models[0].at_once = True
    return models


def _served(text: str, args: argparse.Namespace) -> "ServedModel":
    """What MODEL or NAME=MODEL names, not loaded yet. A hub id or a named model is called so; a folder by its name."""
    from fastcore.checkpoints.open import open_checkpoint
    from fastcore.engine.scheduler import MAX_ROWS
    from fastcore.models.footprint import plan_model
    from fastcore.server import ServedModel
    from fastcore.sources.resolve import resolve

    name, _, given = text.rpartition("=")
    if not name or "/" in name or Path(text).exists():
        name, given = "", text
    path = resolve(given)
    weight_bytes = 0
    with open_checkpoint(path) as checkpoint:
        is_classifier = checkpoint.config().is_token_classifier
        if args.max_weights is not None:
            weight_bytes = plan_model(checkpoint, MAX_ROWS, 1).weight_bytes[args.dtype]
    name = name or (path.resolve().name if Path(given).exists() else given)
    return ServedModel([name], lambda: _load(path, args), is_classifier, weight_bytes)


def _load(path: Path, args: argparse.Namespace) -> "LLM | TokenClassifier":
    from fastcore.checkpoints.open import open_checkpoint
    from fastcore.classify import TokenClassifier

    with open_checkpoint(path) as checkpoint:
        if not checkpoint.config().is_token_classifier:
            return load_llm(checkpoint, args)
        model = TokenClassifier(checkpoint, dtype=args.dtype, num_threads=args.threads, max_seq_len=args.max_seq_len)
        model.tokenizer  # noqa: B018  read now rather than in the first request
        return model
