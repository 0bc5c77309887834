"""Corpora by several processes, Ray and Spark: the same results as one process, what they cost, and what survives.

    python benchmarks/corpora.py memory FOLDER             # Pss of 1 and of 4 processes on a packed folder
    python benchmarks/corpora.py plan MODEL                # `fastcore plan` beside real runs of two sizes
    python benchmarks/corpora.py ray FOLDER --texts 20000  # 2 actors beside one process with 2 threads
    python benchmarks/corpora.py ray FOLDER --kill         # the same, and an actor is killed in the middle
    python benchmarks/corpora.py spark FOLDER              # 2 tasks at once beside one process with 2 threads
    python benchmarks/corpora.py jobs FOLDER               # `fastcore mask --jobs 2` beside `--jobs 1`

FOLDER is a packed token classifier. Fails where results are not the bytes of one process.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcore import batches

if TYPE_CHECKING:
    import pyarrow

NAMES = ("Anna Berg", "Tom Okafor", "Wei Zhang", "Lucía Ortiz", "Bob", "Dr. Irene Novak")
WORDS = (
    "please",
    "call",
    "about the",
    "invoice",
    "of last week",
    "and send",
    "a copy",
    "to our",
    "office",
    "before noon",
)
PARTS = 8


def short_texts(count: int) -> list[str]:
    rng = random.Random(1)
    return [
        f"{' '.join(rng.choices(WORDS, k=rng.randint(3, 12)))} {rng.choice(NAMES)} {rng.randint(10**6, 10**9)}"
        for _ in range(count)
    ]


def write_parts(folder: Path, count: int) -> None:
    import pyarrow.parquet

    texts, size = short_texts(count), -(-count // PARTS)
    for i in range(PARTS):
        rows = range(i * size, min(count, (i + 1) * size))
        table = pyarrow.table({"id": rows, "text": texts[rows.start : rows.stop]})
        pyarrow.parquet.write_table(table, folder / f"{i}.parquet")


def digest(table: "pyarrow.Table") -> str:
    """Of ids and texts, in order."""
    rows = zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
    return hashlib.sha256("\n".join(f"{i}\t{text}" for i, text in rows).encode()).hexdigest()


def one_process(model: str, folder: Path, threads: int) -> tuple[str, float]:
    """What one process makes of the files, and its seconds without loading."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder)
    runner = batches.Runner(batches.mask("text", model=model), threads)
    runner(["warm"])
    start = time.perf_counter()
    done = runner.arrow(table)
    return digest(done), time.perf_counter() - start


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def compare(what: str, model: str, count: int, run: "Callable[[Path], tuple[pyarrow.Table, float]]") -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_parts(folder, count)
        expected, alone = in_a_process(one_process, model, folder, 2)
        table, seconds = run(folder)
        assert table.num_rows == count
        assert table["text_error"].null_count == count
        assert digest(table) == expected, "the results differ"
        print(f"{count} texts: one process {count / alone:.0f} texts/s, {what} {count / seconds:.0f} texts/s, ", end="")
        print(f"{alone / seconds:.2f} x; the same bytes")


# ---- Ray


def on_ray(model: str, count: int, kill: bool) -> None:
    import pyarrow
    import ray

    import fastcore.ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=300 << 20)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False

    def run(folder: Path) -> "tuple[pyarrow.Table, float]":
        mapped = fastcore.ray.mask(ray.data.read_parquet(str(folder)), "text", model=model, actors=2, threads=1)
        killer = threading.Thread(target=kill_an_actor, daemon=True)
        if kill:
            killer.start()
        start, first, first_rows, parts = time.perf_counter(), 0.0, 0, []
        for batch in mapped.iter_batches(batch_format="pyarrow", batch_size=None):
            parts.append(batch)
            if not first:
                first, first_rows = time.perf_counter(), batch.num_rows
        end = time.perf_counter()
        table = pyarrow.concat_tables(parts)
        print(f"with the start of the actors {end - start:.1f} s")
        # the rate without the start: of the rows after the first block
        return table, (end - first) * count / (count - first_rows)

    try:
        compare("2 actors on Ray" + (", one of them killed," if kill else ""), model, count, run)
    finally:
        ray.shutdown()


def kill_an_actor() -> None:
    """The first worker of the pool, some seconds after it began."""
    while True:
        for entry in Path("/proc").iterdir():
            try:
                name = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            except OSError:
                continue
            if name.startswith(b"ray::") and b"_Actor" in name:
                time.sleep(4)
                os.kill(int(entry.name), signal.SIGKILL)
                print(f"killed {name.rstrip(bytes(1)).decode()}")
                return
        time.sleep(0.05)


# ---- Spark


def on_spark(model: str, count: int) -> None:
    import pyarrow.parquet
    from pyspark.sql import SparkSession

    import fastcore.spark

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "64k")  # these files are small

    def run(folder: Path) -> "tuple[pyarrow.Table, float]":
        rows = spark.read.parquet(str(folder))
        mapped = fastcore.spark.mask(rows, "text", model=model)
        fastcore.spark.mask(rows.limit(1), "text", model=model).collect()  # the JVM and the model are there
        start = time.perf_counter()
        mapped.write.parquet(str(folder / "out"))
        seconds = time.perf_counter() - start
        return pyarrow.parquet.read_table(folder / "out").sort_by("id"), seconds

    try:
        compare("2 tasks on Spark", model, count, run)
    finally:
        spark.stop()


# ---- One machine


def jobs(model: str, count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "in"
        folder.mkdir()
        write_parts(folder, count)
        outputs, seconds = [], []
        for number in (1, 2):
            outputs.append(Path(name) / f"out{number}")
            options = ["--jobs", str(number), "--output", str(outputs[-1])]
            seconds.append(command("mask", "-m", model, str(folder), "--field", "text", *options))
        for part in folder.iterdir():
            one, two = ((out / part.name).read_bytes() for out in outputs)
            assert one == two, f"{part.name} differs"
        print(f"{count} texts: --jobs 1 {seconds[0]:.1f} s, --jobs 2 {seconds[1]:.1f} s; the same bytes")


def command(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fastcore", *arguments, "--quiet"], check=True)
    return time.perf_counter() - start


def plan(model: str, sizes: tuple[int, ...]) -> None:
    from fastcore.checkpoints.open import load_config
    from fastcore.cli.plan import sample_texts
    from fastcore.text.tokenizer import Tokenizer

    new = [] if load_config(model).is_token_classifier else ["--output-tokens", "16"]
    options = [sys.executable, "-m", "fastcore", "plan", model, "--tokens", "40", *new, "--json", "--texts"]
    measured = json.loads(subprocess.run([*options, "1"], check=True, capture_output=True).stdout)["measured"]
    texts = sample_texts(Tokenizer.from_folder(model), 40)
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            source, target = Path(name) / "in.jsonl", Path(name) / "out.jsonl"
            source.write_text("".join(json.dumps({"text": next(texts)}) + "\n" for _ in range(size)))
            if new:
                more = ["--max-tokens", "16", "--ignore-eos"]
                taken = command(
                    "generate", "-m", model, "--input", str(source), "--field", "text", "--output", str(target), *more
                )
            else:
                taken = command("mask", "-m", model, str(source), "--field", "text", "--output", str(target))
        planned = measured["load_seconds"] + size * measured["seconds"] / measured["texts"]
        print(f"{size} texts: planned {planned:.1f} s, took {taken:.1f} s, {taken / planned:.2f} x")


def memory(model: str) -> None:
    sizes = {}
    for number in (1, 4):
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(number), context.Queue()
        processes = [context.Process(target=resident, args=(model, barrier, results)) for _ in range(number)]
        for process in processes:
            process.start()
        sizes[number] = sum(results.get() for _ in processes)
        for process in processes:
            process.join()
    print(f"Pss of 1 process {sizes[1] / 1e6:.0f} MB, of 4 {sizes[4] / 1e6:.0f} MB, {sizes[4] / sizes[1]:.2f} x")


def resident(model: str, barrier: Any, results: Any) -> None:
    runner = batches.Runner(batches.mask("text", model=model), 1)
    rng = random.Random(1)
    runner([runner.model.tokenizer.decode(rng.choices(range(100_000), k=50)) for _ in range(20)])
    barrier.wait()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    results.put(1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:")))
    barrier.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "plan", "ray", "spark", "jobs"])
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 400], help="of the runs beside a plan")
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    model = str(Path(args.model).resolve())
    if args.what == "ray":
        on_ray(model, args.texts, args.kill)
    elif args.what == "spark":
        on_spark(model, args.texts)
    elif args.what == "jobs":
        jobs(model, args.texts)
    elif args.what == "plan":
        plan(model, tuple(args.sizes))
    else:
        memory(model)


if __name__ == "__main__":
    main()
