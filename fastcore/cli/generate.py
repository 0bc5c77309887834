"""Complete a prompt. The completion alone goes to stdout as it comes; a line of timings goes to stderr.

Examples:

  fastcore generate --chat "Why is the sky blue?"
  fastcore generate -m FOLDER "The capital of France is" --max-tokens 32
  fastcore generate --json - < prompt.txt
  fastcore generate -m FOLDER --input questions/ --field question --chat --output answers/ --jobs 4 --resume

Files are JSON lines and Parquet, one by one, in folders or by patterns. Each row gets the fields completion,
completion_finish_reason, completion_tokens and completion_error, which is null or says why the row has no completion;
the exit status is then 1. Inputs are never changed, and an output appears under its name only when it is complete. Of
several files, one that fails does not keep the others; those that an earlier run has finished are left out by --resume.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli import generate_files
from fastcore.cli.options import (
    MODEL,
    add_loading_options,
    add_model,
    add_sampling_options,
    load_llm,
    sampling_params,
)

if TYPE_CHECKING:
    from fastcore.engine.completion import Chunk, Completion

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "prompt", nargs="?", help="the text to complete; - reads it from stdin, without its last line end"
    )
    source.add_argument("-p", "--prompt", dest="prompt_option", metavar="TEXT", help="the same as an option")
    source.add_argument(
        "--input", dest="inputs", nargs="+", type=Path, metavar="FILE", help="files, folders or patterns with prompts"
    )
    add_model(parser, positional=False, what=f"{MODEL} (default: smollm2-135m)")
    parser.add_argument("--chat", action="store_true", help="ask the prompt through the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the question; needs --chat")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and nothing else")
    add_loading_options(parser)
    add_sampling_options(parser)
    generate_files.configure(parser)


def run(args: argparse.Namespace) -> int:
    if args.system is not None and not args.chat:
        raise ValueError("--system needs --chat: a plain prompt has no messages")
    if args.inputs:
        return generate_files.run(args)
    if args.output or args.resume or args.jobs != 1:
        raise ValueError("--output, --resume and --jobs are for --input; a single completion goes to stdout")
    prompt = args.prompt if args.prompt_option is None else args.prompt_option
    if prompt == "-":
        prompt = sys.stdin.read().removesuffix("\n").removesuffix("\r")  # echo and editors end a text with a line end
    params = sampling_params(args)
    start = time.perf_counter()
    llm = load_llm(args.model, args)
    load = time.perf_counter() - start
    chunks: Iterator[Chunk]
    if args.chat:
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        chunks = llm.stream_chat([*system, {"role": "user", "content": prompt}], params)
    else:
        chunks = llm.stream(prompt, params)
    last = None
    for last in chunks:
        if not args.json:
            sys.stdout.write(last.text)
            sys.stdout.flush()
    assert last is not None
    assert last.completion is not None
    if args.json:
        print(json.dumps(_as_json(last.completion, load), ensure_ascii=False))
    else:
        print()
        print(_timings(last.completion, load), file=sys.stderr)
    return 0


def _timings(completion: "Completion", load: float) -> str:
    times = completion.timings
    return (
        f"load {load:.2f} s | prompt {times.prompt_tokens} tokens, {times.prefill_rate:.1f} tok/s | "
        f"new {times.completion_tokens} tokens, {times.decode_rate:.1f} tok/s | {completion.finish_reason}"
    )


def _as_json(completion: "Completion", load: float) -> dict[str, object]:
    times = completion.timings
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": completion.usage.prompt_tokens,
            "completion_tokens": completion.usage.completion_tokens,
            "total_tokens": completion.usage.total_tokens,
        },
        "timings": {
            "load_seconds": load,
            "prefill_seconds": times.prefill,
            "decode_seconds": times.decode,
            "prefill_tokens_per_second": times.prefill_rate,
            "decode_tokens_per_second": times.decode_rate,
        },
    }
