"""The `fastcore` command. Each command is a module of this package that translates words into calls of the Python API.

A command module has `configure(parser)`, which adds its arguments, and `run(args)`, which does the work and returns the
exit code. Its docstring is the help text. To add a command: the module, and a row in COMMANDS.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from fastcore import __version__
from fastcore.cli.options import settle_model
from fastcore.errors import Error

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "generate": "complete a prompt",
    "chat": "talk with a model",
    "mask": "find personal data in texts and files, and mask it",
    "serve": "answer over HTTP",
    "ps": "list the servers that run",
    "info": "show this machine, or a model and the memory it needs",
    "pull": "fetch a model into the cache",
    "list": "list the models that were fetched",
    "rm": "delete models that were fetched",
    "bench": "measure speed against the limits of this machine",
    "plan": "say what a corpus will take: memory, time and cost",
    "export": "write a Falcon-H1 model as an FH1W pack",
    "quantize": "write a model as a packed folder in fewer bytes, and measure what is lost",
    "verify": "check that the engine is right about a model, on this machine",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: done. 1: it failed, the reason is on stderr. 2: wrong usage. 130: interrupted. 141: nobody reads the output.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  nobody listens; print(file=None) is stdout
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        if sys.stdin is None:
            sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  a closed input has nothing more to say
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_output()
        return 141
    except FAILURES as error:
        _forget_output()
        print(f"fastcore: {_one_line(error)}", file=sys.stderr)
        return 1


# what can go wrong with what a user gives, or on his machine; anything else is a fault of the program
FAILURES = (Error, ImportError, ValueError, OverflowError, RecursionError, MemoryError, OSError)


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "lists and objects lie too deep in one another"
    message = " ".join(str(error).split())
    return message or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)


def _forget_output() -> None:
    """What is left in the buffer would fail again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        name = arguments[0]
        command = import_module(f"fastcore.cli.{name}")
        parser = argparse.ArgumentParser(
            prog=f"fastcore {name}", description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.configure(parser)
        args = parser.parse_args(arguments[1:])
        settle_model(args)
        code: int = command.run(args)
        return code
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="fastcore",
        usage="fastcore COMMAND ...",
        description="Small language models on the CPU, straight from their published checkpoints.",
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {what}" for name, what in COMMANDS.items())
        + "\n\n`fastcore COMMAND --help` shows the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"fastcore {__version__}")
    if not arguments:
        parser.print_help(sys.stderr)
    else:
        parser.parse_args(arguments[:1])
    return 2
