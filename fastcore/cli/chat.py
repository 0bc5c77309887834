"""Talk with a model. Each message takes the conversation so far with it, and is sampled as the checkpoint recommends.

A message is a line, a paste of several, or what stands between two lines of three quotes (\"\"\").

  /reset    forget the conversation
  /timings  show rates after each answer, or no longer
  /help     show these commands
  /exit     leave, as the end of input (Ctrl-D) does

Ctrl-C stops an answer (what came of it stays in the conversation) and clears a line that is half typed.
"""

import argparse
import os
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli.options import (
    MODEL,
    add_loading_options,
    add_model,
    add_sampling_options,
    load_llm,
    sampling_params,
)
from fastcore.errors import ChatTemplateError, Error

if TYPE_CHECKING:
    from fastcore.engine.completion import Completion
    from fastcore.engine.sampling_params import SamplingParams
    from fastcore.llm import LLM

__all__ = ["configure", "run"]

HELP = (
    '/reset forgets the conversation, /timings shows rates, /exit leaves; """ begins and ends a text of several lines'
)
QUOTES = '"""'
HISTORY_LINES = 1000
Messages = list[dict[str, str]]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, what=f"{MODEL} (default: smollm2-135m)")
    parser.add_argument("--system", metavar="TEXT", help="system message before the conversation")
    parser.add_argument("--timings", action="store_true", help="show rates after each answer, on stderr")
    parser.add_argument(
        "--no-generation-config", action="store_true", help="do not sample as generation_config.json says"
    )
    add_loading_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    from fastcore.engine.sampling_params import SamplingParams
    from fastcore.sources.resolve import DEFAULT_MODEL

    sampling_params(args)  # wrong options are said before the model is loaded
    llm = load_llm(args.model, args)
    if not llm.tokenizer.has_chat_template:
        raise ChatTemplateError(
            "this checkpoint has no chat template: use `fastcore generate`, or add its template as chat_template.jinja"
        )
    recommended = None if args.no_generation_config else SamplingParams.from_generation_config(llm.config.generation)
    params = sampling_params(args, recommended)
    at_terminal = sys.stdin.isatty()
    if not at_terminal:
        return _Chat(llm, params, args).run(at_terminal)
    print(
        f"{args.model or DEFAULT_MODEL} ({llm.config.model_type}, {llm.num_threads} threads). {HELP}", file=sys.stderr
    )
    history = _open_history()
    try:
        return _Chat(llm, params, args).run(at_terminal)
    finally:
        _save_history(history)


class _Chat:
    """One conversation, and how it is shown."""

    def __init__(self, llm: "LLM", params: "SamplingParams", args: argparse.Namespace) -> None:
        self._llm = llm
        self._params = params
        self._timings: bool = args.timings
        self._beginning = [] if args.system is None else [{"role": "system", "content": args.system}]
        self._messages: Messages = list(self._beginning)

    def run(self, at_terminal: bool) -> int:
        while True:
            try:
                text = _read_message(at_terminal)
            except EOFError:
                if at_terminal:
                    print()
                return 0
            except KeyboardInterrupt:
                if not at_terminal:
                    raise
                print()  # the half-typed line is gone
                continue
            if text == "/exit":
                return 0
            if text.startswith("/") and "\n" not in text:
                self._command(text.split()[0])
            elif text:
                self._answer(text)

    def _command(self, name: str) -> None:
        if name == "/reset":
            self._messages = list(self._beginning)
        elif name == "/timings":
            self._timings = not self._timings
        else:
            print(HELP if name == "/help" else f"no command {name}: {HELP}", file=sys.stderr)

    def _answer(self, question: str) -> None:
        """Print the answer and keep both; what could not be asked is not kept."""
        messages = [*self._messages, {"role": "user", "content": question}]
        answer = ""
        completion = None
        try:
            with closing(self._llm.stream_chat(messages, self._params)) as chunks:
                for chunk in chunks:
                    answer += chunk.text
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
                    completion = chunk.completion
        except KeyboardInterrupt:
            pass
        except (Error, ValueError) as error:  # the question is at fault, the conversation goes on
            print(f"fastcore: {error}; /reset starts anew", file=sys.stderr)
            return
        print(flush=True)
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        if self._timings and completion is not None:
            print(_rates(completion), file=sys.stderr)


def _rates(completion: "Completion") -> str:
    times = completion.timings
    return (
        f"prompt {times.prompt_tokens} tokens, {times.prefill_rate:.1f} tok/s | "
        f"new {times.completion_tokens} tokens, {times.decode_rate:.1f} tok/s | {completion.finish_reason}"
    )


def _read_message(at_terminal: bool) -> str:
    """The next message. Raises EOFError at the end of input."""
    line = input(">>> " if at_terminal else "").strip()
    if not line.startswith(QUOTES):
        return line
    lines = [line[len(QUOTES) :]]
    while not lines[-1].rstrip().endswith(QUOTES):
        try:
            lines.append(input("... " if at_terminal else ""))
        except EOFError:  # a text that nobody ended counts, as it would be lost otherwise
            lines.append(QUOTES)
    lines[-1] = lines[-1].rstrip()[: -len(QUOTES)]
    return "\n".join(lines).strip()


def _open_history() -> Path | None:
    """Give input() editing, pastes of several lines and the lines of earlier sessions; where those are kept."""
    try:
        import readline
    except ImportError:
        return None
    from platformdirs import user_state_path

    readline.parse_and_bind("set enable-bracketed-paste on")
    path = user_state_path("fastcore", appauthor=False) / "chat_history"
    with suppress(OSError):
        readline.read_history_file(path)
    return path


def _save_history(path: Path | None) -> None:
    if path is None:
        return
    import readline

    readline.set_history_length(HISTORY_LINES)
    with suppress(OSError):  # a home that cannot be written to keeps none
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # for nobody else's eyes
        readline.write_history_file(path)
