"""What is measured: tokens that sequences take in, step by step."""

from dataclasses import dataclass

__all__ = ["Workload", "standard_workloads"]

PLOTTED_ROWS = (16, 64, 256, 1024)
PLOTTED_BATCHES = (2, 4, 8)


@dataclass(frozen=True)
class Workload:
    """`steps` steps that each append `rows` tokens to each of `batch` sequences, which hold `depth` tokens before."""

    rows: int = 1
    depth: int = 0
    batch: int = 1
    steps: int = 1

    def __post_init__(self) -> None:
        for name, least in {"rows": 1, "depth": 0, "batch": 1, "steps": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")

    @property
    def name(self) -> str:
        """`prefill 512`, `decode at 128`, `decode 8 sequences at 128`."""
        what = "decode" if self.rows == 1 else f"prefill {self.rows}"
        many = f" {self.batch} sequences" if self.batch > 1 else ""
        return what + many + (f" at {self.depth}" if self.depth else "")

    @property
    def tokens(self) -> int:
        """Tokens that the steps append, of all sequences."""
        return self.batch * self.rows * self.steps

    @property
    def positions(self) -> int:
        """Of each sequence at the end."""
        return self.depth + self.rows * self.steps


def standard_workloads(prompt_tokens: int, new_tokens: int, plot: bool = False) -> list[Workload]:
    """A prompt and the decoding that follows it; for the picture also prompts and batches of several sizes."""
    workloads = [Workload(rows=prompt_tokens), Workload(depth=prompt_tokens, steps=new_tokens)]
    if plot:
        workloads += [Workload(rows=rows) for rows in PLOTTED_ROWS]
        workloads += [Workload(depth=64, batch=batch, steps=min(16, new_tokens)) for batch in PLOTTED_BATCHES]
    return list(dict.fromkeys(workloads))
