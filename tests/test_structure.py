"""The shape of the package, read from its imports: arrows point one way, floors are few, files are short."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES = 500
# The rooms of the package (its folders, and the files beside them) from the ground up. A room imports from rooms of
# lower floors alone.
FLOORS = (
    "errors threads",
    "locks huge_pages",
    "_kernels",
    "model pii",
    "checkpoints",
    "engine models sources text",
    "llm classify machine running",
    "async_llm server live lm_eval presidio bench verify quantization batches",
    "cli ray spark dask",
    "__main__",
)


@cache
def modules() -> dict[str, Path]:
    """Dotted names of the package's modules, the compiled one among them, and their files."""
    folder = ROOT / "fastcore"
    files = [*folder.rglob("*.py"), *folder.glob("*.pyx")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports of the package, inside functions too; not what only types need."""
    return {name: {*_imported(path)} - {name} for name, path in modules().items()}


def _imported(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        yield from re.findall(r"^(?:from|import) (fastcore[\w.]*)", source, flags=re.MULTILINE)
        return
    tree = ast.parse(source)
    types = {id(node) for guard in ast.walk(tree) if _is_type_guard(guard) for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            assert not node.level, f"{path.relative_to(ROOT)}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def _is_type_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def room(module: str) -> str:
    """The wing that a module lies in, or the file in the package's own folder; "" is the package itself."""
    return module.partition(".")[2].partition(".")[0]


def test_no_module_imports_itself_by_a_circle() -> None:
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names the circle


def test_there_are_at_most_ten_floors() -> None:
    assert len(FLOORS) <= 10


def test_every_room_stands_on_a_floor() -> None:
    assert sorted(" ".join(FLOORS).split()) == sorted({room(module) for module in modules()} - {""})


def test_arrows_run_down() -> None:
    """The package's own __init__ is below all: it imports its modules at their first use only."""
    floor = {name: i for i, names in enumerate(FLOORS) for name in names.split()} | {"": -1}
    wrong = {
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if room(target) != room(module) and floor[room(target)] >= floor[room(module)]
    }
    assert not wrong


def test_files_are_short() -> None:
    files = [path for folder in ("fastcore", "csrc") for path in (ROOT / folder).rglob("*.*")]
    lines = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for path in files
        if path.suffix in {".py", ".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h"} and path.name != "_kernels.c"
    }
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}
