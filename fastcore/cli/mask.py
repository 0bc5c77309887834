"""Find personal data and mask it.

  fastcore mask --model FOLDER < in.txt > out.txt                        each line is a text
  fastcore mask --model FOLDER letter.txt --output masked.txt            the file is a text
  fastcore mask --model FOLDER *.jsonl --field messages.content --output masked/
  fastcore mask --model FOLDER people.csv --field name --field notes --output masked.csv
  fastcore mask --model FOLDER people.parquet --field notes --operator placeholder --mapping map.json --output m.parquet

What is not masked stays as it is, byte for byte: line ends, byte order mark, quoting, invalid bytes. Inputs are never
changed, and an output appears under its name only when it is complete. A summary of what was found goes to stderr.

exit status: 0 done; 1 it failed; 2 wrong usage; 3 something was found, with --fail-on-found
"""

import argparse
import io
import json
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fastcore.cli.options import add_model_options
from fastcore.pii.masking import OPERATORS, MaskingRules
from fastcore.pii.text_files import (
    FieldNames,
    Record,
    csv_records,
    document,
    json_records,
    line_records,
    open_parquet,
    parquet_records,
)

if TYPE_CHECKING:
    from fastcore.classify import Classification, TokenClassifier

__all__ = ["configure", "run"]

FORMATS = {
    ".txt": "text", ".text": "text", ".md": "text", ".log": "text", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
FOUND = 3

Classify = Callable[[Iterable[str]], "Iterator[Classification]"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE", help="files to mask (default: stdin to stdout)")
    parser.add_argument("--model", required=True, help="folder, hub id or named model of a token classifier")
    parser.add_argument("--output", type=Path, metavar="PATH", help="a new file, or a folder for the masked files")
    parser.add_argument("--overwrite", action="store_true", help="replace output files that exist; never an input")
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format", choices=sorted(set(FORMATS.values())), help="default: by the file's name; stdin: text"
    )
    group.add_argument("--lines", action="store_true", help="in text files, too, each line is a text of its own")
    group.add_argument(
        "--field", action="append", default=[], metavar="NAME",
        help="what to mask in jsonl (a.b for nested keys), csv and parquet; repeatable",
    )  # fmt: skip
    group.add_argument("--delimiter", metavar="C", help="of csv (default: comma; of .tsv: tab)")
    group.add_argument("--no-header", action="store_true", help="csv without a header row: fields by number, from 1")
    group.add_argument("--encoding", default="utf-8", help="of text, jsonl and csv, in and out (default: utf-8)")
    group.add_argument(
        "--line-buffered", action="store_true", help="mask and print each line at once, for input that comes slowly"
    )
    group = parser.add_argument_group("masking")
    group.add_argument("--operator", default="replace", choices=OPERATORS, help="default: replace, [PRIVATE_EMAIL]")
    group.add_argument(
        "--label", action="append", default=[], metavar="LABEL=OPERATOR",
        help="another operator for one label; 'leave' leaves it as it is; repeatable",
    )  # fmt: skip
    group.add_argument("--allow", action="append", default=[], metavar="TEXT", help="never mask this; repeatable")
    group.add_argument("--allow-list", type=Path, metavar="FILE", help="never mask the lines of this file")
    group.add_argument("--threshold", type=float, default=0.0, metavar="S", help="leave what scores below S (0 to 1)")
    group.add_argument("--keep", type=int, default=0, metavar="N", help="characters that the operator mask shows")
    group.add_argument("--keep-from", default="end", choices=["start", "end"], help="where it shows them")
    group.add_argument("--mask-char", default="*", metavar="C", help="what it puts for the others (default: *)")
    group.add_argument("--key-file", type=Path, metavar="FILE", help="secret of the operator hash")
    group.add_argument(
        "--mapping", type=Path, metavar="FILE",
        help="number placeholders across all texts, and write a new JSON file to undo them with",
    )  # fmt: skip
    group.add_argument(
        "--operating-point", metavar="P", help="recall | precision | B_BIAS,E_BIAS (default: the model's)"
    )
    group = parser.add_argument_group("running")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with the model (default: 1)")
    group.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    group.add_argument("--fail-on-found", action="store_true", help=f"exit status {FOUND} if anything was found")
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    rules = _rules(args)
    run_ = _Run(rules, mapping={} if args.mapping else None)
    outputs = _outputs(args)
    with _classifier(args, rules) as classify:
        if not args.inputs:
            with _standard_streams(args.encoding) as (source, target):
                _mask_text(args, run_, classify, source, target, args.format or "text", "stdin", by_line=True)
        for path, output in zip(args.inputs, outputs, strict=True):
            _mask_file(args, run_, classify, path, output)
    if args.mapping:
        with _new_file(args.mapping, args.overwrite, 0o600) as temporary:
            temporary.write_text(json.dumps(run_.mapping, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    if not args.quiet:
        print(run_.summary(), file=sys.stderr)
    return FOUND if args.fail_on_found and run_.found else 0


@dataclass
class _Run:
    """The rules, and what has come of them so far."""

    rules: MaskingRules
    mapping: dict[str, str] | None  # across texts; None: placeholders are numbered within each text
    texts: int = 0
    hit: int = 0
    found: Counter[str] = field(default_factory=Counter)

    def mask(self, result: "Classification") -> str:
        masked = self.rules.mask(result.text, result.entities, self.mapping)
        if self.mapping is not None:
            self.mapping = masked.mapping
        self.texts += 1
        self.hit += bool(masked.items)
        self.found.update(item.label for item in masked.items)
        return masked.text

    def summary(self) -> str:
        what = ", ".join(f"{label} {count}" for label, count in self.found.most_common()) or "nothing"
        return f"{self.texts} texts, {self.hit} with something masked: {what}"


# ---- Options


def _check(args: argparse.Namespace) -> None:
    if args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}; expected a number from 1")
    if args.line_buffered and args.jobs > 1:
        raise ValueError("--line-buffered masks each line when it comes; it cannot go with --jobs")
    formats = [_format(args, path) for path in args.inputs] or [args.format or "text"]
    for name in formats:
        if (name == "text") == bool(args.field):
            raise ValueError(
                "text has no --field; give --format" if args.field else f"{name} needs --field: what to mask"
            )
    if not args.inputs and args.format == "parquet":
        raise ValueError("Parquet cannot come from stdin; give a file")
    if not args.inputs and args.output:
        raise ValueError("--output is for files; stdin is masked to stdout")
    if args.mapping and "placeholder" not in (args.operator, *(item.rpartition("=")[2] for item in args.label)):
        raise ValueError("--mapping needs the operator placeholder; others cannot be undone")


def _format(args: argparse.Namespace, path: Path) -> str:
    name: str | None = args.format or FORMATS.get(path.suffix.lower())
    if name is None:
        raise ValueError(f"{path}: what format has it? Give --format; known by their names: {', '.join(FORMATS)}")
    return name


def _rules(args: argparse.Namespace) -> MaskingRules:
    per_label: dict[str, str | None] = {}
    for item in args.label:
        label, _, operator = item.rpartition("=")
        if not label or operator not in (*OPERATORS, "leave"):
            raise ValueError(f"--label {item}: expected LABEL=OPERATOR, the operator leave, {', '.join(OPERATORS)}")
        per_label[label] = None if operator == "leave" else operator
    allowed = {*args.allow, *(_read(args.allow_list).decode().splitlines() if args.allow_list else ())}
    key = _read(args.key_file).strip() if args.key_file else None
    uses_hash = "hash" in (args.operator, *per_label.values())
    if uses_hash and not key:
        raise ValueError("the operator hash needs --key-file, a file with a secret: without one, values can be guessed")
    return MaskingRules(
        operator=args.operator,
        per_label=per_label,
        allow_list=frozenset(allowed - {""}),
        threshold=args.threshold,
        keep=args.keep,
        keep_from=args.keep_from,
        mask_char=args.mask_char,
        key=key,
    )


def _operating_point(text: str | None) -> str | tuple[float, float] | None:
    if text is None or "," not in text:
        return text
    try:
        b_bias, e_bias = map(float, text.split(","))
    except ValueError:
        raise ValueError(
            f"--operating-point {text}: expected recall, precision, or two numbers B_BIAS,E_BIAS"
        ) from None
    return b_bias, e_bias


def _read(path: Path) -> bytes:
    with _named_errors(path):
        return path.read_bytes()


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


# ---- The model


@contextmanager
def _classifier(args: argparse.Namespace, rules: MaskingRules) -> "Iterator[Classify]":
    from fastcore.classify import TokenClassifier
    from fastcore.threads import resolve_num_threads

    threads = args.threads or max(1, resolve_num_threads(None) // args.jobs)
    open_classifier = partial(
        TokenClassifier,
        args.model,
        dtype=args.dtype,
        num_threads=threads,
        max_seq_len=args.max_seq_len,
        operating_point=_operating_point(args.operating_point),
    )
    if args.jobs == 1:
        classifier = open_classifier()
        _check_labels(classifier.labels.entity_types, rules)
        yield partial(_one_by_one, classifier) if args.line_buffered else lambda texts: classifier(iter(texts))
    else:
        from fastcore.model.config import load_config
        from fastcore.pii.processes import classify_in_processes
        from fastcore.pii.spans import Labels
        from fastcore.sources.registry import resolve

        _check_labels(Labels(load_config(resolve(args.model)).token_labels).entity_types, rules)
        yield lambda texts: classify_in_processes(open_classifier, texts, args.jobs)


def _one_by_one(classifier: "TokenClassifier", texts: Iterable[str]) -> "Iterator[Classification]":
    return map(classifier, texts)


def _check_labels(known: tuple[str, ...], rules: MaskingRules) -> None:
    unknown = sorted(set(rules.per_label) - set(known))
    if unknown:
        raise ValueError(f"--label {unknown[0]}: the model has no such label; it has {', '.join(known)}")


# ---- Files


def _outputs(args: argparse.Namespace) -> list[Path | None]:
    """Where each input goes; None is stdout."""
    inputs: list[Path] = args.inputs
    for path in inputs:
        if not path.is_file():
            raise ValueError(f"{path}: {'is a folder; give the files in it' if path.is_dir() else 'no such file'}")
    if args.output is None:
        if len(inputs) > 1 or any(_format(args, path) == "parquet" for path in inputs):
            raise ValueError("--output is needed: several files go into a folder, Parquet into a file")
        return [None] * len(inputs)
    into_folder = len(inputs) > 1 or args.output.is_dir() or str(args.output).endswith(os.sep)
    outputs = [args.output / path.name if into_folder else args.output for path in inputs]
    if len(set(outputs)) < len(outputs):
        raise ValueError("two input files have the same name; mask them into different folders")
    if into_folder:
        with _named_errors(args.output):
            args.output.mkdir(parents=True, exist_ok=True)
    for output in (*outputs, args.mapping):
        if output is not None and output.exists():
            if any(output.samefile(path) for path in inputs):
                raise ValueError(f"{output} is an input; masking in place is not possible, give another --output")
            if not args.overwrite:
                raise ValueError(f"{output} exists; remove it, or give --overwrite")
    return list(outputs)


@contextmanager
def _new_file(path: Path, overwrite: bool, mode: int = 0o666) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its name if all goes well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _named_errors(temporary):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield temporary
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # fails where the name has been taken meanwhile
    finally:
        temporary.unlink(missing_ok=True)


def _mask_file(args: argparse.Namespace, run_: _Run, classify: Classify, path: Path, output: Path | None) -> None:
    name = _format(args, path)
    with ExitStack() as stack:
        temporary = None if output is None else stack.enter_context(_new_file(output, args.overwrite))
        if name == "parquet":
            assert temporary is not None
            _mask_parquet(args, run_, classify, path, temporary)
            return
        with _named_errors(path):
            raw = stack.enter_context(open(path, "rb"))
        if args.encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            _refuse_utf16(raw, path)
        source = stack.enter_context(_text(raw, args.encoding))
        if temporary is None:
            target = stack.enter_context(_standard_output(args.encoding))
        else:
            target = stack.enter_context(_text(stack.enter_context(open(temporary, "wb")), args.encoding))
        _mask_text(args, run_, classify, source, target, name, str(path), by_line=args.lines)


def _text(raw: IO[bytes], encoding: str) -> io.TextIOWrapper:
    """Text without translated newlines; invalid bytes come out as they went in."""
    try:
        return io.TextIOWrapper(raw, encoding, "surrogateescape", newline="\n")
    except LookupError:
        raise ValueError(f"--encoding {encoding}: no such encoding") from None


def _refuse_utf16(raw: IO[bytes], path: Path) -> None:
    if raw.read(2) in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"{path} is UTF-16, which as UTF-8 would be read as nonsense; give --encoding utf-16")
    raw.seek(0)


@contextmanager
def _standard_output(encoding: str) -> Iterator[IO[str]]:
    target = _text(sys.stdout.buffer, encoding)
    try:
        yield target
        target.flush()
    finally:
        target.detach()


@contextmanager
def _standard_streams(encoding: str) -> Iterator[tuple[IO[str], IO[str]]]:
    source = _text(sys.stdin.buffer, encoding)
    try:
        with _standard_output(encoding) as target:
            yield source, target
    finally:
        source.detach()


# ---- Masking


def _mask_text(
    args: argparse.Namespace,
    run_: _Run,
    classify: Classify,
    source: IO[str],
    target: IO[str],
    name: str,
    where: str,
    by_line: bool,
) -> None:
    fields = FieldNames(args.field)
    records: Iterator[Record[str]]
    if name == "text":
        records = line_records(source) if by_line else document(source)
    elif name == "jsonl":
        records = json_records(source, fields)
    else:
        delimiter = args.delimiter or ("\t" if where.lower().endswith(".tsv") else ",")
        records = csv_records(source, fields, delimiter, header=not args.no_header)
    size = Path(where).stat().st_size if where != "stdin" else None
    with _named(where):
        for part in _masked(records, run_, classify, _Progress(where, size, "B", args.quiet)):
            target.write(part)
            if args.line_buffered:
                target.flush()
    fields.check(where)


def _mask_parquet(args: argparse.Namespace, run_: _Run, classify: Classify, path: Path, output: Path) -> None:
    fields = FieldNames(args.field)
    with open_parquet(path) as file:
        import pyarrow.parquet

        metadata = file.metadata
        codec = metadata.row_group(0).column(0).compression if metadata.num_row_groups else "SNAPPY"
        codec = "NONE" if codec == "UNCOMPRESSED" else codec
        progress = _Progress(str(path), metadata.num_rows, " rows", args.quiet)
        with _named(str(path)), pyarrow.parquet.ParquetWriter(output, file.schema_arrow, compression=codec) as writer:
            for table in _masked(parquet_records(file, fields), run_, classify, progress):
                writer.write_table(table, row_group_size=max(1, table.num_rows))


@contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if isinstance(error, UnicodeError):
            raise ValueError(f"{where}: {error}; give its --encoding") from None
        if where in str(error):
            raise
        raise ValueError(f"{where}: {error}") from error


def _masked(records: Iterable[Record[Any]], run_: _Run, classify: Classify, progress: "_Progress") -> Iterator[Any]:
    """The records with their texts masked, in order. The classifier reads ahead."""
    ahead: deque[Record[Any]] = deque()

    def texts() -> Iterator[str]:
        for record in records:
            ahead.append(record)
            yield from record.texts or ("",)  # so that a record without texts waits for its turn as well

    masked: list[str] = []
    with progress:
        for result in classify(texts()):
            if ahead[0].texts:
                masked.append(run_.mask(result))
            if len(masked) == len(ahead[0].texts):
                record = ahead.popleft()
                yield record.render(masked)
                progress.advance(record.size)
                masked = []


class _Progress:
    """A bar on stderr, where that is a terminal."""

    def __init__(self, name: str, total: int | None, unit: str, quiet: bool) -> None:
        self._options = {"desc": name, "total": total, "unit": unit, "unit_scale": True, "disable": quiet or None}

    def __enter__(self) -> "_Progress":
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

        self._bar = tqdm(**self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, size: int) -> None:
        self._bar.update(size)
