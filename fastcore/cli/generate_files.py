"""`fastcore generate --input`: the prompts of files, completed by one process or by several."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcore.cli.files import Files, Part, add_output_options, expected_files, open_files, work_through
from fastcore.cli.options import sampling_params
from fastcore.cli.outputs import named_errors

if TYPE_CHECKING:
    from fastcore.batches import Generate
    from fastcore.cli.rows import Rows

__all__ = ["configure", "run"]

Complete = Callable[[Iterator["Rows"]], Iterator[tuple["Rows", dict[str, list[Any]]]]]


def configure(parser: argparse.ArgumentParser) -> None:
    """The options that go with --input."""
    group = parser.add_argument_group("files")
    add_output_options(group)
    group.add_argument("--field", metavar="NAME", default="prompt", help="where the prompts are (default: prompt)")
    group.add_argument(
        "--into", metavar="NAME", default="completion", help="where the completions go (default: completion)"
    )
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that share the model (default: 1)")
    group.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def run(args: argparse.Namespace) -> int:
    from fastcore.batches import Generate
    from fastcore.cli.rows import FORMATS

    if args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}; expected a number from 1")
    if args.output is None:
        raise ValueError("--input needs --output: a file, or a folder for several files")
    found = expected_files(args.inputs, FORMATS)
    for source, _ in found:
        if source.suffix.lower() not in FORMATS:
            raise ValueError(f"{source}: what format has it? Known by their names: {', '.join(FORMATS)}")
    task = Generate(
        args.model, args.field, args.into, _loading(args), sampling_params(args), chat=args.chat, system=args.system
    )
    settings = [task.model, task.column, task.output, args.dtype, args.kv_dtype, args.max_seq_len, task.chat]
    with (
        open_files(args, found, "generate", [*settings, task.system, repr(task.params)]) as files,
        _completer(args, task) as (complete, stop),
    ):
        work = partial(_complete_file, files, task, complete)
        counts, failed, line = work_through(files, work, args.jobs, stop, args.quiet)
    total = {name: sum(each[name] for each in counts) for name in ("texts", "failed", "tokens")}
    if not args.quiet:
        print(f"{total['texts']} prompts, {total['failed']} failed; {total['tokens']} new tokens", file=sys.stderr)
        if line:
            print(line, file=sys.stderr)
    return 1 if failed or total["failed"] else 0


def _loading(args: argparse.Namespace) -> dict[str, Any]:
    from fastcore.threads import resolve_num_threads

    return {
        "dtype": args.dtype,
        "num_threads": args.threads or max(1, resolve_num_threads(None) // args.jobs),
        "max_seq_len": args.max_seq_len,
        "kv_dtype": args.kv_dtype,
        "speculate": args.speculate,
    }


@contextmanager
def _completer(args: argparse.Namespace, task: "Generate") -> Iterator[tuple[Complete, Callable[[], object]]]:
    """What completes batches, in order, and what makes it stop. Several processes share one packed folder."""
    from dataclasses import replace

    from fastcore.batches import Runner
    from fastcore.cli.processes import Processes
    from fastcore.quantization.quantize import packed_copy

    if args.jobs == 1:
        runner = Runner(task)
        yield lambda batches: ((batch, runner(batch.values)) for batch in batches), lambda: None
        return
    with packed_copy(args.model, args.dtype) as folder:
        task = replace(task, model=str(folder), loading={**task.loading, "dtype": "auto"})
        with Processes(partial(Runner, task), args.jobs) as processes:
            yield lambda batches: processes.map(batches, lambda batch: batch.values), processes.stop


def _complete_file(files: Files, task: "Generate", complete: Complete, part: Part) -> dict[str, Any]:
    from fastcore.cli.rows import open_rows

    counts = {"texts": 0, "failed": 0, "tokens": 0}
    with files.appearing(part) as temporary, _named(part.source):
        with named_errors(part.source):
            file = open_rows(part.source, temporary, task)
        with file:
            for batch, columns in complete(file.batches()):
                file.write(batch.rows, columns)
                counts["texts"] += len(batch.values)
                counts["failed"] += sum(error is not None for error in columns[f"{task.output}_error"])
                counts["tokens"] += sum(filter(None, columns[f"{task.output}_tokens"]))
    return counts


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors about the contents of a file begin with its name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}") from None
