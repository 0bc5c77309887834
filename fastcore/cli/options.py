"""Options that several commands share: which model, how it is loaded, and how it chooses tokens."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastcore.checkpoints.checkpoint import Checkpoint
    from fastcore.engine.sampling_params import SamplingParams
    from fastcore.llm import LLM

__all__ = [
    "MODEL",
    "add_kv_dtype",
    "add_loading_options",
    "add_model",
    "add_sampling_options",
    "load_llm",
    "sampling_params",
    "settle_model",
]

MODEL = "folder, .gguf or .fh1w file, hub id or named model"


def add_model(parser: argparse.ArgumentParser, *, positional: bool = True, what: str = MODEL) -> None:
    """-m / --model, and the same as an argument without a name; `settle_model` makes one `model` of both."""
    if positional:
        parser.add_argument("model", nargs="?", metavar="MODEL", help=what)
    parser.add_argument(
        "-m", "--model", dest="model_option", metavar="MODEL", help="the same as an option" if positional else what
    )


def settle_model(args: argparse.Namespace) -> None:
    """args.model: what add_model's arguments name, or None. Raises ValueError for two models."""
    if "model_option" not in args:
        return
    given = [name for name in (getattr(args, "model", None), args.model_option) if name is not None]
    if len(given) > 1:
        raise ValueError(f"two models are named, {given[0]} and {given[1]}; name one")
    args.model = given[0] if given else None


def add_loading_options(parser: argparse.ArgumentParser, *, kv_dtype: bool = True) -> None:
    """--dtype, --threads, --max-seq-len, --kv-dtype and --speculate, as `load_llm` reads them."""
    group = parser.add_argument_group("loading")
    group.add_argument("--dtype", default="auto", help="one that `fastcore info` lists (default: auto, as stored)")
    group.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    group.add_argument(
        "--max-seq-len", type=int, metavar="N", help="longest prompt and output together (default: the model's own)"
    )
    if kv_dtype:
        add_kv_dtype(group)
        group.add_argument(
            "--speculate", default="off", choices=["off", "ngram"],
            help="ngram: guess tokens from the text so far; the same tokens, faster where text repeats (default: off)",
        )  # fmt: skip


def add_kv_dtype(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--kv-dtype", default="f32", help="of the KV cache: f32 | f16 | int8 (default: f32)")


def load_llm(model: "str | Checkpoint | None", args: argparse.Namespace) -> "LLM":
    from fastcore.llm import LLM

    return LLM(
        model,
        dtype=args.dtype,
        num_threads=args.threads,
        max_seq_len=args.max_seq_len,
        kv_dtype=args.kv_dtype,
        speculate=args.speculate,
    )


# Each is a field of SamplingParams.
_SAMPLING: dict[str, dict[str, Any]] = {
    "max_tokens": {"type": int, "metavar": "N", "help": "at most this many new tokens (default: 256)"},
    "min_tokens": {"type": int, "metavar": "N", "help": "no end before this many new tokens"},
    "temperature": {"type": float, "metavar": "T", "help": "0 is greedy"},
    "top_k": {"type": int, "metavar": "K", "help": "sample from the K most probable tokens"},
    "top_p": {"type": float, "metavar": "P", "help": "sample from the most probable share P"},
    "min_p": {"type": float, "metavar": "P", "help": "drop tokens below P times the best"},
    "repetition_penalty": {"type": float, "metavar": "R", "help": "above 1: repeat less"},
    "presence_penalty": {"type": float, "metavar": "R", "help": "off each token that was used"},
    "frequency_penalty": {"type": float, "metavar": "R", "help": "off for each use of a token"},
    "seed": {"type": int, "metavar": "N", "help": "the same seed gives the same text"},
    "stop": {"action": "append", "metavar": "TEXT", "help": "end before this text; repeatable"},
    "ignore_eos": {"action": "store_true", "default": None, "help": "go on after the model's end-of-sequence token"},
}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """The options of SamplingParams, as `sampling_params` reads them."""
    group = parser.add_argument_group("sampling")
    for name, options in _SAMPLING.items():
        group.add_argument(f"--{name.replace('_', '-')}", **options)
    group.add_argument(
        "--stop-token-id", action="append", type=int, metavar="ID", dest="stop_token_ids",
        help="end after this token; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--logit-bias", action="append", type=_bias, metavar="ID=B",
        help="add B to a token's logit, -inf bans it; repeatable",
    )  # fmt: skip


def sampling_params(args: argparse.Namespace, defaults: "SamplingParams | None" = None) -> "SamplingParams":
    """What the options say; `defaults` where they say nothing. Raises ValueError."""
    from fastcore.engine.sampling_params import SamplingParams

    names = [*_SAMPLING, "stop_token_ids"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.logit_bias is not None:
        given["logit_bias"] = dict(args.logit_bias)
    return (defaults or SamplingParams()).replace(**given)


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected ID=B, a token id and a number") from None
