"""The files of a run: which they are, where each goes, which of them an earlier run has finished, and what failed."""

import argparse
import fcntl
import glob
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fastcore.cli.outputs import named_errors, new_file
from fastcore.errors import Error, WorkerError

__all__ = ["Files", "Part", "add_output_options", "check_new", "expected_files", "open_files", "work_through"]

GO_ON = "or give --overwrite, or --resume to go on from a run that was stopped"
HIDDEN = (".", "_")  # names that begin so are no data, as to Spark and pyarrow


@dataclass(frozen=True)
class Part:
    """A file and where its result goes; None is stdout."""

    source: Path
    output: Path | None


def add_output_options(parser: argparse._ActionsContainer) -> None:
    """--output, --overwrite and --resume, as `open_files` reads them."""
    parser.add_argument("--output", type=Path, metavar="PATH", help="a new file, or a folder for the results")
    parser.add_argument("--overwrite", action="store_true", help="replace output files that exist; never an input")
    parser.add_argument(
        "--resume", action="store_true",
        help="leave out the files that an earlier run into this folder has finished; a run can be killed and go on",
    )  # fmt: skip


# ---- Which files


def expected_files(paths: Sequence[Path], suffixes: Collection[str] | None) -> list[tuple[Path, Path]]:
    """Files, and the names of their results below an output folder, which keep the folders of what is searched.

    paths: files, folders, which are searched for files that end in one of `suffixes` (None: for all), and patterns.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = _visible(sorted(path.rglob("*")), path, suffixes)
            if not inside:
                what = "no files" if suffixes is None else f"no files that end in {', '.join(suffixes)}"
                raise ValueError(f"{path}: {what}; of other files, give --format")
            found |= inside
        elif not path.exists() and glob.has_magic(str(path)):
            fixed = Path(*_until_magic(path.parts))
            inside = _visible(sorted(map(Path, glob.glob(str(path), recursive=True))), fixed, None)
            if not inside:
                raise ValueError(f"{path}: no file matches this pattern")
            found |= inside
        elif not path.is_file():
            what = "no regular file; give it as stdin" if path.exists() else "no such file"
            raise ValueError(f"{path}: {what}")
        else:
            found[path] = Path(path.name)
    return list(found.items())


def _visible(paths: Sequence[Path], below: Path, suffixes: Collection[str] | None) -> dict[Path, Path]:
    names = {path: path.relative_to(below) for path in paths}
    return {
        path: name
        for path, name in names.items()
        if path.is_file()
        and not any(part.startswith(HIDDEN) for part in name.parts)
        and (suffixes is None or path.suffix.lower() in suffixes)
    }


def _until_magic(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        if glob.has_magic(part):
            return
        yield part


def check_new(
    inputs: Sequence[Path], path: Path | None, option: str, overwrite: bool, advice: str = "or give --overwrite"
) -> None:
    """That a file can be written there at the end."""
    if path is None or not path.exists():
        return
    if any(path.samefile(each) for each in inputs):
        raise ValueError(f"{option} {path} is an input; working in place is not possible, give another")
    if not path.is_file():
        raise ValueError(f"{option} {path} is no regular file; it cannot be replaced by one")
    if not overwrite:
        raise ValueError(f"{option} {path} exists; remove it, {advice}")


# ---- A run


@dataclass
class Files:
    """Files on their way into a folder, or one into a file or to stdout.

    done: what is known of those that an earlier run has finished, by their names. folder: None where there is none.
    """

    parts: list[Part]
    folder: Path | None
    overwrite: bool
    done: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _journal: "_Journal | None" = None

    @contextmanager
    def appearing(self, part: Part) -> Iterator[Path]:
        """A temporary path, which becomes the part's output if all goes well."""
        assert part.output is not None
        if self._journal is None:
            with new_file(part.output, self.overwrite) as temporary:
                yield temporary
            return
        with named_errors(part.output):
            part.output.parent.mkdir(parents=True, exist_ok=True)
        # Outputs that were there before were refused, or are to be replaced; what a killed run left is this run's own.
        left = part.output.with_name(f".fastcore-{part.output.name}.part")
        left.unlink(missing_ok=True)
        with new_file(part.output, True, temporary=left) as temporary:
            yield temporary

    def finished(self, part: Part, counts: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.write(part, counts)


@contextmanager
def open_files(
    args: argparse.Namespace, found: Sequence[tuple[Path, Path]], command: str, settings: Sequence[Any]
) -> Iterator[Files]:
    """What --output, --overwrite and --resume come to, for the files of `expected_files(args.inputs, ...)`.

    A journal in the output folder says which files are finished; it goes away when all are, unless --resume may want
    it. settings: what the results depend on.
    """
    inputs, output = [source for source, _ in found], args.output
    searched = any(path not in inputs for path in args.inputs)
    if output is None:
        if searched or len(inputs) > 1:
            raise ValueError("--output is needed: several files go into a folder")
        if args.resume:
            raise ValueError("--resume needs --output with a folder")
        yield Files([Part(path, None) for path in inputs], None, args.overwrite)
        return
    if not (searched or len(inputs) > 1 or output.is_dir() or str(output).endswith(os.sep)):
        if args.resume:
            raise ValueError(f"--resume needs a folder as --output; with a / at its end, {output}/ is one")
        check_new(inputs, output, "--output", args.overwrite)
        yield Files([Part(inputs[0], output)], None, args.overwrite)
        return
    parts = [Part(source, output / name) for source, name in found]
    if len({part.output for part in parts}) < len(parts):
        raise ValueError("two input files have the same name; give them different output folders")
    for path in args.inputs:
        if path.is_dir() and path.resolve() in (output.resolve(), *output.resolve().parents):
            raise ValueError(f"--output {output} is inside of {path}, an input; give a folder outside of it")
    if not args.resume:
        for part in parts:
            check_new(inputs, part.output, "--output", args.overwrite, GO_ON)
    with named_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    with _Journal(output, command, settings, args.resume) as journal:
        for part in parts:
            if part.output not in journal.outputs:  # of one that is, no run but this one has written it
                check_new(inputs, part.output, "--output", args.overwrite or journal.goes_on)
        done = {part.source: counts for part in parts if (counts := journal.counts(part)) is not None}
        yield Files(parts, output, args.overwrite, done, journal)
        if not args.resume and journal.num_written == len(parts):
            journal.path.unlink()


class _Journal:
    """What is finished in a folder, a line of JSON for each file, behind one that says under which settings.

    Held by one run at a time. A line that was being written when the run was killed counts as none.
    """

    def __init__(self, folder: Path, command: str, settings: Sequence[Any], resume: bool) -> None:
        self.path = folder / f".fastcore-{command}.jsonl"
        self._digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode()).hexdigest()
        self._resume = resume
        self._known: dict[str, dict[str, Any]] = {}
        self.goes_on = False
        self.num_written = 0

    def __enter__(self) -> "_Journal":
        with named_errors(self.path):
            self._file: IO[bytes] = open(self.path, "ab+")
        try:
            self._take()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{self.path.parent}: another run writes to this folder; wait for its end") from None
        self._file.seek(0)
        lines = [line for line in self._file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        if lines and self._resume:
            if json.loads(lines[0]) != {"settings": self._digest}:
                raise ValueError(
                    f"--resume: {self.path.parent} holds the results of a run with other options; repeat those, or "
                    "give another folder"
                )
            entries = map(json.loads, lines[1:])
            self._known = {entry["file"]: entry for entry in entries}
            self.goes_on = True
            self._file.truncate(sum(map(len, lines)))
            return
        self._file.truncate(0)
        self._file.write(json.dumps({"settings": self._digest}).encode() + b"\n")
        self._file.flush()

    @property
    def outputs(self) -> set[Path]:
        return {self.path.parent / name for name in self._known}

    def counts(self, part: Part) -> dict[str, Any] | None:
        """What was counted in a file that is finished, and the same as it was then."""
        assert part.output is not None
        entry = self._known.get(str(part.output.relative_to(self.path.parent)))
        there = entry is not None and entry["source"] == _state(part.source) and part.output.is_file()
        return entry["counts"] if entry is not None and there else None

    def write(self, part: Part, counts: dict[str, Any]) -> None:
        assert part.output is not None
        name = str(part.output.relative_to(self.path.parent))
        entry = {"file": name, "source": _state(part.source), "counts": counts}
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        self.num_written += 1


def _state(source: Path) -> list[Any]:
    status = source.stat()
    return [str(source.absolute()), status.st_size, status.st_mtime_ns]


# ---- Working through them


def work_through(
    files: Files, work: Callable[[Part], dict[str, Any]], at_once: int, stop: Callable[[], object], quiet: bool
) -> tuple[list[dict[str, Any]], int, str]:
    """`work` for each part that is not finished, by `at_once` threads. Returns counts, failures, and a line of them.

    stop: makes work that is under way fail soon, when all is to end.

    The failure of one of several files is told at once, and the others go on; of a single one it is raised.
    """
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    todo = [part for part in files.parts if part.source not in files.done]
    counts = [files.done[part.source] for part in files.parts if part.source in files.done]
    if len(files.parts) == 1:
        return counts + [work(part) for part in todo], 0, ""
    failed, start, before = 0, time.perf_counter(), len(counts)
    with tqdm(total=len(files.parts), initial=before, unit=" files", disable=quiet or None) as bar:
        for part, done in _worked(todo, work, at_once, stop):
            if isinstance(done, BaseException):
                failed += 1
                bar.write(f"fastcore: {' '.join(str(done).split())}", file=sys.stderr)
            else:
                files.finished(part, done)
                counts.append(done)
            bar.update()
    seconds = time.perf_counter() - start
    texts = sum(each["texts"] for each in counts[before:])
    line = (
        f"{len(todo) - failed} files done in {seconds:.1f} s, {texts / seconds:.1f} texts/s" if todo else "no new files"
    )
    line += f", {before} done before" if before else ""
    return counts, failed, line + (f", {failed} failed" if failed else "")


def _worked(
    parts: Sequence[Part], work: Callable[[Part], dict[str, Any]], at_once: int, stop: Callable[[], object]
) -> Iterator[tuple[Part, dict[str, Any] | BaseException]]:
    def tried(part: Part) -> dict[str, Any] | BaseException:
        try:
            return work(part)
        except (WorkerError, MemoryError, BrokenPipeError):
            raise  # no fault of this file
        except (Error, ValueError, OSError) as error:
            return error

    if at_once == 1:
        yield from ((part, tried(part)) for part in parts)
        return
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(tried, part): part for part in parts}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
