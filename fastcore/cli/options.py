"""Options that several commands share: which model, and how it chooses tokens."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcore.checkpoints.checkpoint import Checkpoint
    from fastcore.engine.sampling import SamplingParams
    from fastcore.llm import LLM

__all__ = ["add_model_options", "add_sampling_options", "load_llm", "sampling_params"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--dtype, --threads and --max-seq-len, as `load_llm` reads them; the model's own argument is the command's."""
    group = parser.add_argument_group("model")
    group.add_argument("--dtype", default="auto", help="one that `fastcore info` lists (default: auto, as stored)")
    group.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    group.add_argument(
        "--max-seq-len", type=int, metavar="N", help="longest prompt and output together (default: the model's own)"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """The options of SamplingParams, as `sampling_params` reads them."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="at most this many new tokens (default: 256)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="sample from the K most probable tokens")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from the most probable share P")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below P times the best")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: repeat less")
    group.add_argument("--presence-penalty", type=float, default=0.0, metavar="R", help="off each token that was used")
    group.add_argument("--frequency-penalty", type=float, default=0.0, metavar="R", help="off for each use of a token")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the model's end-of-sequence token")


def load_llm(model: "str | Checkpoint | None", args: argparse.Namespace) -> "LLM":
    from fastcore.llm import LLM

    return LLM(model, dtype=args.dtype, num_threads=args.threads, max_seq_len=args.max_seq_len)


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    from fastcore.engine.sampling import SamplingParams

    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
    )
