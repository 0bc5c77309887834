"""Every fault once found, and every case that comparable engines met, has a test that carries its id as a marker."""

import ast
from functools import cache
from pathlib import Path

IDS = {
    "fault": "A1 A2 A3 A4 A5 A6 A7 A8 A9 B1 B2 B3 B4 B5 C1 C2 C3 C4 C5 C6 C7 C8 C9 C10 D1 D2 E1 E2 E3 E4 "
    "H1 H2 H3 H4 H5 H6",
    "case": "L01 L04 L05 L08 L09 L12 L13 C01 C04 C05 C09 C10 C11 C13 T01 T03 T05 T07 T10 T11 T12 "
    "N02 N03 N04 N08 N11 N13 G01 G03 G05 G06 G09 S01 S05 P01 P03 P05 I01 I02 I03 I06 I07 I09 I10 X1 X2 X3 X4 X5",
}
ALSO = "F1 F2 F3 F4 F5"  # faults found by reading the code


@cache
def marked(kind: str) -> dict[str, list[str]]:
    """The ids of `pytest.mark.<kind>(...)` in the tests, and the places of each as file:line."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{kind}":
                for argument in node.args:
                    found.setdefault(ast.literal_eval(argument), []).append(f"{path.name}:{node.lineno}")
    return found


def unknown() -> list[str]:
    return [
        f"{kind}({name!r}) at {', '.join(places)}"
        for kind, ids in IDS.items()
        for name, places in marked(kind).items()
        if name not in f"{ids} {ALSO}".split()
    ]


def missing() -> list[str]:
    return [f"{kind}({name!r})" for kind, ids in IDS.items() for name in ids.split() if name not in marked(kind)]


def test_no_marker_has_a_mistyped_id() -> None:
    assert not unknown()


def test_every_id_has_a_test() -> None:
    assert not missing()


if __name__ == "__main__":
    print(*missing(), sep="\n")
