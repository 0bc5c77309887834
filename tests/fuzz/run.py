"""Run a reader over many cases. The bounds: SECONDS for one case, BYTES of growth of resident memory in all.

A finding is any other exception than the ones that are promised, a case beyond a bound, or a crash (the case is on disk
before it is read when --crashes is given). Cases run in processes of LIFE cases each, one after the other, as the
tokenizers library keeps half a kilobyte of each tokenizer that has encoded something.
"""

import argparse
import faulthandler
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fastcore.errors import Error
from fuzz.reader import Reader
from fuzz.readers import READERS

SECONDS = 1.0  # of the processor, for one case of a few kilobytes
LOOK = 32  # cases between two looks at the memory, which take as long as a case
BYTES = 64 << 20  # by which resident memory may grow over a run in one process
LIFE = 50_000  # cases


class SlowCaseError(BaseException):
    """Not an Exception: no reader may swallow it."""


@dataclass
class Result:
    cases: int = 0
    accepted: int = 0
    seconds: float = 0.0
    growth: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)  # what went wrong, and the first case that did


def run(reader: Reader, cases: int, seed: int | str, limit: float = SECONDS, crash_file: Path | None = None) -> Result:
    """Feed `cases` cases, which depend on the seed alone. Findings of one place count once."""
    result = Result()
    rng = random.Random(seed)
    before = peak_bytes()
    start = time.perf_counter()
    # an interrupt ends the run with the result so far
    with suppress(KeyboardInterrupt), _alarm(limit) as arm, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(cases):
            case = reader.make(rng)
            if crash_file is not None:
                crash_file.write_bytes(case)
            result.cases += 1
            try:
                arm(True)
                reader.read(case)
                result.accepted += 1
            except (Error, *reader.allowed):
                pass
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                result.findings.setdefault(_place(error), case)
            finally:
                arm(False)
            if result.cases % LOOK and result.cases < cases:
                continue
            grown = peak_bytes() - before
            if grown > BYTES:
                result.findings.setdefault(f"memory grew by {grown >> 20} MB", case)
                before += grown
            result.growth = max(result.growth, grown)
    result.seconds = time.perf_counter() - start
    return result


def run_apart(name: str, cases: int, seed: int, crash_file: Path | None = None) -> Result:
    """The same in processes of LIFE cases. One that ends without a result, crashed, is a finding."""
    total, fork = Result(), get_context("fork")
    for part, start in enumerate(range(0, cases, LIFE)):
        count = min(LIFE, cases - start)
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=_part, args=(there, name, count, f"{seed}/{part}" if part else seed, crash_file))
        process.start()
        there.close()
        try:
            result = here.recv()
        except KeyboardInterrupt:
            process.terminate()  # an interrupt there too, if it is not under way
            result = here.recv()
        except EOFError:
            process.join()
            result = Result(cases=count, findings={f"the process ended with {process.exitcode}": b"see --crashes"})
        process.join()
        total.cases += result.cases
        total.accepted += result.accepted
        total.seconds += result.seconds
        total.growth = max(total.growth, result.growth)
        total.findings = result.findings | total.findings
        if result.cases < count:
            break
    return total


def _part(result_to: Connection, name: str, cases: int, seed: int | str, crash_file: Path | None) -> None:
    result = run(READERS[name], cases, seed, crash_file=crash_file)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    result_to.send(result)


def peak_bytes() -> int:
    """The largest resident memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@contextmanager
def _alarm(seconds: float) -> Iterator:
    def ring(number: int, frame: FrameType | None) -> None:
        raise SlowCaseError(f"more than {seconds:g} s")

    def arm(on: bool) -> None:
        # time of the processor: a busy machine makes no case slow
        signal.setitimer(signal.ITIMER_PROF, seconds if on else 0)

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield arm
    finally:
        arm(False)
        signal.signal(signal.SIGPROF, before)


def _place(error: BaseException) -> str:
    """The kind of error and the innermost lines of ours that it passed, without values."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/" not in f.filename]
    lines = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[-3:][::-1])
    return f"{type(error).__name__} at {lines or 'the reader itself'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", nargs="?", help=f"one of {', '.join(READERS)}; or all")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the cases that were found")
    parser.add_argument("--crashes", action="store_true", help="keep each case in OUT while it runs, for crashes in C")
    args = parser.parse_args()
    if args.reader is None:
        print("\n".join(READERS))
        return 0
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell has let them be ignored
        signal.signal(number, signal.default_int_handler)
    os.environ["RUST_BACKTRACE"] = "0"  # of panics in the tokenizers library: symbols take 50 MB
    found = 0
    for name in READERS if args.reader == "all" else [args.reader]:
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
        crash_file = args.out / f"{name}.running" if args.out and args.crashes else None
        # a panic in the tokenizers library writes to the process's own stderr
        quiet, kept = os.open(os.devnull, os.O_WRONLY), os.dup(2)
        os.dup2(quiet, 2)
        try:
            result = run_apart(name, args.cases, args.seed, crash_file)
        finally:
            os.dup2(kept, 2)
        print(
            f"{name}: {result.cases} cases, seed {args.seed}, {result.cases / result.seconds:.0f} a second, "
            f"{result.accepted / result.cases:.1%} accepted, resident memory +{result.growth / 1e6:.1f} MB, "
            f"{len(result.findings)} findings",
            flush=True,
        )
        for number, (what, case) in enumerate(result.findings.items()):
            print(f"  {what}: {case[:80]!r}")
            if args.out:
                (args.out / f"{name}-{args.seed}-{number}").write_bytes(case)
        found += len(result.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
