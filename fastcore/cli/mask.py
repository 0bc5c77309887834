"""Find personal data and mask it.

  fastcore mask --model FOLDER < in.txt > out.txt                        each line is a text
  fastcore mask --model FOLDER letter.txt --output masked.txt            the file is a text
  fastcore mask --model FOLDER *.jsonl --field messages.content --output masked/
  fastcore mask --model FOLDER people.csv --field name --field notes --output masked.csv
  fastcore mask --model FOLDER people.parquet --field notes --operator placeholder --mapping map.json --output m.parquet
  fastcore mask --model FOLDER corpus/ --field text --output masked/ --jobs 8 --resume

What is not masked stays as it is, byte for byte: line ends, byte order mark, quoting, invalid bytes. Inputs are never
changed, and an output appears under its name only when it is complete. A summary of what was found goes to stderr. Of
several files, one that fails does not keep the others; those that an earlier run has finished are left out by --resume.

exit status: 0 done; 1 it failed; 2 wrong usage; 3 something was found, with --fail-on-found
"""

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from fastcore.cli.files import Files, Part, add_output_options, check_new, expected_files, open_files, work_through
from fastcore.cli.options import add_loading_options
from fastcore.cli.outputs import StandardOutput, named_errors, new_file
from fastcore.errors import MaskingError
from fastcore.pii.csv_cells import csv_records
from fastcore.pii.json_lines import json_records
from fastcore.pii.masking import OPERATORS, MaskingRules
from fastcore.pii.parquet_columns import ParquetColumns
from fastcore.pii.record_masking import Classify, RecordMasker
from fastcore.pii.text_files import FieldNames, Record, TextFile, document, line_records

if TYPE_CHECKING:
    from fastcore.classify import Classification, TokenClassifier

__all__ = ["configure", "run"]

FORMATS = {
    ".txt": "text", ".text": "text", ".md": "text", ".log": "text", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip
FOUND = 3


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="*", type=Path, metavar="FILE", help="files, folders or patterns (default: stdin to stdout)"
    )
    parser.add_argument("-m", "--model", required=True, help="folder, hub id or named model of a token classifier")
    add_output_options(parser)
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
    group.add_argument(
        "--join", type=int, metavar="N",
        help="mask as one what has one label and at most N spaces and punctuation marks between (0: nothing between)",
    )  # fmt: skip
    group.add_argument("--whole-words", action="store_true", help="mask the whole of each word that is masked in part")
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
    add_loading_options(parser, kv_dtype=False)


def run(args: argparse.Namespace) -> int:
    found = expected_files(args.inputs, None if args.format else FORMATS)
    _check(args, [source for source, _ in found])
    rules = _rules(args)
    total = RecordMasker(rules, mapping={} if args.mapping else None)
    failed, line = 0, ""
    with open_files(args, found, "mask", _settings(args, rules)) as files:
        _check_mapping(args, files)
        with _classifier(args, rules) as (classify, stop):
            if args.inputs:
                failed, line = _mask_files(args, total, classify, stop, files)
            else:
                _mask_stdin(args, total, classify)
    if not args.quiet:
        print(total.summary(), *filter(None, [line]), sep="\n", file=sys.stderr)
    if failed:
        return 1
    return FOUND if args.fail_on_found and total.found else 0


# ---- Options


def _check(args: argparse.Namespace, inputs: Sequence[Path]) -> None:
    if args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}; expected a number from 1")
    if args.line_buffered and args.jobs > 1:
        raise ValueError("--line-buffered masks each line when it comes; it cannot go with --jobs")
    if args.mapping and args.resume:
        raise ValueError(
            "--mapping numbers placeholders across all texts, so that a run cannot go on; leave --resume out"
        )
    formats = [_format(args, path) for path in inputs] or [args.format or "text"]
    for name in formats:
        if (name == "text") == bool(args.field):
            raise ValueError(
                "text has no --field; give --format" if args.field else f"{name} needs --field: what to mask"
            )
    if not args.inputs and args.format == "parquet":
        raise ValueError("Parquet cannot come from stdin; give a file")
    if args.output is None and "parquet" in formats:
        raise ValueError("--output is needed: Parquet goes into a file")
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
        join=args.join,
        whole_words=args.whole_words,
    )


def _settings(args: argparse.Namespace, rules: MaskingRules) -> list[Any]:
    """What the results depend on, ready for JSON."""
    running = {"inputs", "output", "overwrite", "resume", "jobs", "threads", "quiet", "fail_on_found", "key_file"}
    options = {name: value for name, value in vars(args).items() if name not in running}
    key = hashlib.sha256(rules.key if isinstance(rules.key, bytes) else b"").hexdigest()
    return [options, sorted(rules.allow_list), key]


def _check_mapping(args: argparse.Namespace, files: Files) -> None:
    check_new([part.source for part in files.parts], args.mapping, "--mapping", args.overwrite)
    if args.mapping and not args.mapping.absolute().parent.is_dir():
        raise ValueError(f"--mapping {args.mapping}: there is no folder {args.mapping.parent}")
    if args.mapping in [part.output for part in files.parts] and args.mapping:
        raise ValueError(f"--mapping {args.mapping} is an output, too; expected a file of its own")


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
    with named_errors(path):
        return path.read_bytes()


# ---- The model


@contextmanager
def _classifier(args: argparse.Namespace, rules: MaskingRules) -> "Iterator[tuple[Classify, Callable[[], object]]]":
    """What classifies texts, and what makes it stop. Several processes share one packed folder."""
    from fastcore.classify import TokenClassifier
    from fastcore.threads import resolve_num_threads

    threads = args.threads or max(1, resolve_num_threads(None) // args.jobs)
    options = {
        "num_threads": threads,
        "max_seq_len": args.max_seq_len,
        "operating_point": _operating_point(args.operating_point),
    }
    if args.jobs == 1:
        classifier = TokenClassifier(args.model, dtype=args.dtype, **options)
        _check_labels(classifier.labels.entity_types, rules)
        one_by_one = partial(_one_by_one, classifier)
        yield one_by_one if args.line_buffered else lambda texts: classifier(iter(texts)), lambda: None
        return
    from fastcore.batches import chunked
    from fastcore.checkpoints.open import open_checkpoint
    from fastcore.cli.processes import Processes
    from fastcore.pii.labels import Labels
    from fastcore.quantization.quantize import packed_copy
    from fastcore.sources.resolve import resolve

    with open_checkpoint(resolve(args.model)) as checkpoint:
        labels = Labels(checkpoint.config().token_labels)
    _check_labels(labels.entity_types, rules)
    with (
        packed_copy(args.model, args.dtype) as folder,
        Processes(partial(TokenClassifier, folder, **options), args.jobs) as processes,
    ):

        def classify(texts: Iterable[str]) -> "Iterator[Classification]":
            for _, found in processes.map(chunked(texts, len)):
                yield from found

        yield classify, processes.stop


def _one_by_one(classifier: "TokenClassifier", texts: Iterable[str]) -> "Iterator[Classification]":
    return map(classifier, texts)


def _check_labels(known: tuple[str, ...], rules: MaskingRules) -> None:
    unknown = sorted(set(rules.per_label) - set(known))
    if unknown:
        raise ValueError(f"--label {unknown[0]}: the model has no such label; it has {', '.join(known)}")


# ---- Files


def _mask_stdin(args: argparse.Namespace, masker: RecordMasker, classify: Classify) -> None:
    source = cast(io.BufferedIOBase, sys.stdin.buffer)
    with StandardOutput() as target:
        _mask_text(args, masker, classify, source, target, args.format or "text", "stdin")
        _write_mapping(args, masker)


def _mask_files(
    args: argparse.Namespace, total: RecordMasker, classify: Classify, stop: Callable[[], object], files: Files
) -> tuple[int, str]:
    """How many failed, and a line that sums up; `total` has what was found in all of them."""
    num_written = 0

    def mask_part(part: Part) -> dict[str, Any]:
        nonlocal num_written
        masker = RecordMasker(total.rules, total.mapping)
        _mask_file(args, masker, classify, files, part)
        total.mapping = masker.mapping
        num_written += part.output is not None
        return masker.counts

    at_once = 1 if args.mapping else args.jobs  # numbers of placeholders follow the order of the files
    try:
        counts, failed, line = work_through(files, mask_part, at_once, stop, args.quiet)
    finally:
        if num_written:  # also of files that are done when the next one ends the run
            _write_mapping(args, total)
    for each in counts:
        total.add(each)
    return failed, line


def _write_mapping(args: argparse.Namespace, masker: RecordMasker) -> None:
    if args.mapping:
        with new_file(args.mapping, args.overwrite, 0o600) as temporary, named_errors(args.mapping):
            text = json.dumps(masker.mapping, ensure_ascii=True, indent=2) + "\n"
            temporary.write_text(text, encoding="ascii")


def _mask_file(args: argparse.Namespace, masker: RecordMasker, classify: Classify, files: Files, part: Part) -> None:
    name, path = _format(args, part.source), part.source
    if name == "parquet":
        with files.appearing(part) as temporary:
            _mask_parquet(args, masker, classify, path, temporary, quiet=args.quiet or len(files.parts) > 1)
        return
    with named_errors(path):
        source = open(path, "rb")  # noqa: SIM115
    with source:
        if part.output is None:
            with StandardOutput() as target:
                _mask_text(args, masker, classify, source, target, name, str(path))
                _write_mapping(args, masker)
        else:
            with (
                files.appearing(part) as temporary,
                named_errors(part.output),
                open(temporary, "wb") as written,
            ):
                _mask_text(args, masker, classify, source, written, name, str(path), quiet=len(files.parts) > 1)


# ---- Masking


def _mask_text(
    args: argparse.Namespace,
    masker: RecordMasker,
    classify: Classify,
    source: io.BufferedIOBase,
    target: "IO[bytes] | StandardOutput",
    name: str,
    where: str,
    quiet: bool = False,
) -> None:
    from_stdin = where == "stdin"
    fields = FieldNames(args.field)
    records: Iterator[Record[str]]
    with _named(where):
        file = TextFile(source, args.encoding)
        if name == "text":
            records = line_records(file) if args.lines or from_stdin else document(file)
        elif name == "jsonl":
            records = json_records(file, fields)
        else:
            records = csv_records(file, fields, _delimiter(args, where), header=not args.no_header)
        target.write(file.mark)
        with _Progress(where, None if from_stdin else Path(where).stat().st_size, "B", args.quiet or quiet) as progress:
            for part in masker.masked(records, classify, progress.advance):
                target.write(file.encode(part))
                if args.line_buffered and isinstance(target, StandardOutput) and not fields.missing:
                    target.deliver()
        target.write(file.encode("", final=True))
        fields.check()


def _delimiter(args: argparse.Namespace, where: str) -> str:
    delimiter: str = args.delimiter or ("\t" if where.lower().endswith(".tsv") else ",")
    return "\t" if delimiter == "\\t" else delimiter


def _mask_parquet(
    args: argparse.Namespace, masker: RecordMasker, classify: Classify, path: Path, output: Path, quiet: bool
) -> None:
    fields = FieldNames(args.field)
    with (
        _named(str(path)),
        ParquetColumns(path) as file,
        _Progress(str(path), file.num_rows, " rows", quiet) as progress,
    ):
        file.write(masker.masked(file.records(fields), classify, progress.advance), output)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Errors about the contents of a file begin with its name."""
    try:
        yield
    except MaskingError as error:
        raise MaskingError(f"{where}: {error}") from None


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
