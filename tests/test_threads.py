"""How many threads run by default: affinity, container quotas, the environment and worker processes."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fastcore
from fastcore.threads import default_num_threads, resolve_num_threads, thread_limits

CPUS = 16


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 CPUs, with nothing asked for in the environment."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CPUS)), raising=False)
    monkeypatch.delenv("FASTCORE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.case("P01")
@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("200000 100000", 2),
        ("765000 100000", 7),
        ("50000 100000", 1),
        ("max 100000", CPUS),
        ("9900000 100000", CPUS),
        ("garbage", CPUS),
        ("100000 0", CPUS),
        ("", CPUS),
    ],
)
def test_quota_is_rounded_down(cpu_max: str, expected: int, tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": cpu_max + "\n"})
    assert default_num_threads(root) == expected


@pytest.mark.case("P01")
@pytest.mark.parametrize(
    ("own", "parent", "expected"), [("max", "300000", 3), ("600000", "300000", 3), ("200000", "300000", 2)]
)
def test_the_tightest_quota_on_the_way_up_counts(own: str, parent: str, expected: int, tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/pod/container\n",
            "sys/fs/cgroup/slice/cpu.max": f"{parent} 100000\n",
            "sys/fs/cgroup/slice/pod/container/cpu.max": f"{own} 100000\n",
        },
    )
    assert default_num_threads(root) == expected


@pytest.mark.case("P01")
@pytest.mark.parametrize(("quota", "expected"), [("-1", CPUS), ("0", CPUS), ("400000", 4), ("350000", 3)])
@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_quota_of_cgroups_version_1(quota: str, expected: int, folder: str, tmp_path: Path) -> None:
    """The process sees its path in the host; the container's own files are at the mount point."""
    place = f"sys/fs/cgroup/{folder}"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n",
            f"{place}/cpu.cfs_quota_us": quota + "\n",
            f"{place}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert default_num_threads(root) == expected


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert default_num_threads(tmp_path) == CPUS


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = write(tmp_path, {topology.format(cpu): f"{cpu % 8},{cpu % 8 + 8}\n" for cpu in range(CPUS)})
    limits = thread_limits(root)
    assert (limits.cpus, limits.cores, limits.num_threads) == (16, 8, 8)
    assert limits.reason == "8 physical cores among the 16 CPUs that the process may use"


@pytest.mark.case("P01")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"OMP_NUM_THREADS": ""}, 6),
        ({"FASTCORE_NUM_THREADS": "4", "OMP_NUM_THREADS": "3"}, 4),
        ({"FASTCORE_NUM_THREADS": "99"}, 6),
    ],
)
def test_the_environment_asks_within_the_limits(
    variables: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "650000 100000\n"})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_num_threads(root) == expected


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
@pytest.mark.parametrize("name", ["FASTCORE_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_wrong_environment_is_an_error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name} is '{value}'"):
        default_num_threads()


def test_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"})
    assert thread_limits(root).reason == "the container's quota of 2.5 CPUs"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert thread_limits(root).reason == "OMP_NUM_THREADS=1"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert thread_limits(root).reason == "the container's quota of 2.5 CPUs"


def test_an_explicit_number_is_taken_as_it_is() -> None:
    assert resolve_num_threads(CPUS + 1) == CPUS + 1
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match=r"^num_threads is "):
            resolve_num_threads(wrong)  # type: ignore[arg-type]


@pytest.mark.case("P01")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_an_affinity_mask_of_one_cpu_gives_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from fastcore.threads import default_num_threads; print(default_num_threads())"
    )
    done = python("-c", code)
    assert done.stdout == "1\n", done.stderr


WORKERS = """
import json, multiprocessing, sys
from fastcore import LLM

def generate(folder):
    llm = LLM(folder)
    return llm.num_threads, llm.generate(list(range(10, 40)), max_tokens=8).token_ids

if __name__ == "__main__":
    method, folder = sys.argv[1:]
    alone = LLM(folder, num_threads=2).generate(list(range(10, 40)), max_tokens=8).token_ids
    with multiprocessing.get_context(method).Pool(4) as pool:
        print(json.dumps([alone, pool.map(generate, [folder] * 8)]))
"""


@pytest.mark.case("X4")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes_take_one_thread_each_and_agree(
    method: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Siblings cannot be counted from inside a worker; any more than one thread each may be too many in all."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system does not {method}")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = python(str(script), method, str(tiny_folder("qwen2")))
    assert done.returncode == 0, done.stderr
    alone, outcomes = json.loads(done.stdout)
    assert outcomes == [[1, alone]] * 8


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(Path(fastcore.__file__).parent.parent)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.fault("C6")
def test_many_more_threads_than_cpus_are_warned_of() -> None:
    assert resolve_num_threads(4 * CPUS) == 4 * CPUS
    with pytest.warns(RuntimeWarning, match="num_threads is 1000, and this process may use 16 CPUs"):
        assert resolve_num_threads(1000) == 1000


LIMITED = """
import resource
import sys
from pathlib import Path

import numpy as np
from steps import OpList, normal, packed, run_rows

kind, room = sys.argv[1], int(sys.argv[2])
weight, x = normal(300, 97), normal(9, 97, seed=1)
recorder = OpList()
src, dst = recorder.buffer(97), recorder.buffer(300)
recorder.linear(src, dst, packed(weight))
expected = run_rows(recorder, {src: x}, num_threads=1)[dst].copy()
if kind == "memory":
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + room,) * 2)
else:
    __import__("os").setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (room, room))
for num_threads in (8, 3, 8):
    assert np.array_equal(run_rows(recorder, {src: x}, num_threads=num_threads)[dst], expected)
print("the same with", len(list(Path("/proc/self/task").iterdir())) - 1, "more threads")
"""


@pytest.mark.fault("C6")
@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux")
@pytest.mark.parametrize(
    ("kind", "room"),
    [("threads", 1), ("threads", 3), *(("memory", megabytes << 20) for megabytes in (9, 13, 18, 27, 40, 80))],
)
def test_threads_that_cannot_start_are_done_without(kind: str, room: int) -> None:
    if kind == "threads" and os.geteuid():
        pytest.skip("the limit counts every process of this user: needs root, to become a user that has none")
    tests = str(Path(__file__).parent)
    path = os.pathsep.join([str(Path(fastcore.__file__).parents[1]), tests])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, kind, str(room)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the same with")


def test_the_bound_of_threads_is_the_kernels() -> None:
    from fastcore import _kernels, threads

    assert threads.MAX_THREADS == _kernels.MAX_THREADS
