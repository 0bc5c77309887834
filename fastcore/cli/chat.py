"""Talk with a model. Each line is a message; the conversation so far goes with it.

  /reset  forget the conversation
  /help   show these commands
  /exit   leave, as the end of input does

Ctrl-C stops an answer (what came of it stays in the conversation); at the prompt it leaves.
"""

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from fastcore.cli.options import add_model_options, add_sampling_options, load_llm, sampling_params
from fastcore.errors import ChatTemplateError, Error

if TYPE_CHECKING:
    from fastcore.engine.sampling import SamplingParams
    from fastcore.llm import LLM

__all__ = ["configure", "run"]

HELP = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer"
Messages = list[dict[str, str]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder, .gguf or .fh1w file, hub id or named model (default: smollm2-135m)")
    parser.add_argument("--system", metavar="TEXT", help="system message before the conversation")
    add_model_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    llm = load_llm(args.model, args)
    if not llm.tokenizer.has_chat_template:
        raise ChatTemplateError(
            "this checkpoint has no chat template: use `fastcore generate`, or add its template as chat_template.jinja"
        )
    beginning = [] if args.system is None else [{"role": "system", "content": args.system}]
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        import readline  # noqa: F401  gives input() editing and history

        print(HELP, file=sys.stderr)
    messages = list(beginning)
    while True:
        try:
            line = input(">>> " if at_terminal else "").strip()
        except EOFError:
            if at_terminal:
                print()
            return 0
        if line == "/exit":
            return 0
        if line == "/reset":
            messages = list(beginning)
        elif line == "/help":
            print(HELP, file=sys.stderr)
        elif line.startswith("/"):
            print(f"no command {line.split()[0]}: {HELP}", file=sys.stderr)
        elif line:
            messages = _answer(llm, [*messages, {"role": "user", "content": line}], params)


def _answer(llm: "LLM", messages: Messages, params: "SamplingParams") -> Messages:
    """Print the answer and return the conversation with it; without the question when it could not be asked."""
    answer = ""
    try:
        with closing(llm.stream_chat(messages, params)) as chunks:
            for chunk in chunks:
                answer += chunk.text
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except (Error, ValueError) as error:  # the question is at fault, the conversation goes on
        print(f"fastcore: {error}; /reset starts anew", file=sys.stderr)
        return messages[:-1]
    print(flush=True)
    return [*messages, {"role": "assistant", "content": answer}]
