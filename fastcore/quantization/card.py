"""What is said about a packed folder in it: quantization.json for programs, README.md for people."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["figure_lines", "write_card"]

_ROWS = {
    "mean_kl": ("mean KL divergence from the source", "{:.5f}"),
    "p99_kl": ("99th percentile of it", "{:.4f}"),
    "top1_agreement": ("same best token", "{:.2%}"),
    "label_agreement": ("same label", "{:.2%}"),
    "span_agreement": ("same spans (F1)", "{:.2%}"),
}
_PAIRS = {
    "perplexity": ("perplexity", "{:.3f}"),
    "weight_bytes": ("bytes of the weights", "{:,}"),
    "prefill_rate": ("prefill, tokens per second", "{:.1f}"),
    "decode_rate": ("decode, tokens per second", "{:.1f}"),
}


def figure_lines(figures: Mapping[str, Any]) -> list[str]:
    """A table of what was measured, a line each: of the source and of what was written."""
    lines = [f"{'':36} {'source':>14} {'written':>14}"]
    for name, (label, form) in _PAIRS.items():
        if figures[name] is not None:
            source, written = figures[name]
            lines.append(f"{label:36} {form.format(source):>14} {form.format(written):>14}")
    for name, (label, form) in _ROWS.items():
        if figures[name] is not None:
            lines.append(f"{label:36} {'':14} {form.format(figures[name]):>14}")
    return lines


def write_card(folder: Path, facts: Mapping[str, Any]) -> None:
    """facts: ready for JSON; `figures` among them, as asdict gives them."""
    from fastcore.machine import machine_facts

    facts = {**facts, "machine": machine_facts()}
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (folder / "quantization.json").write_text(text, encoding="utf-8")
    kinds = Counter(facts["maps"].values())
    of = ", ".join(f"{count} in {kind}" for kind, count in kinds.most_common())
    lines = [
        f"# {facts['source']}, packed as {facts['dtype']}",
        "",
        f"Written by `fastcore quantize` {facts['machine']['fastcore']}, and run straight from this folder.",
        f"Linear maps: {of}. Measured on {facts['figures']['num_tokens']} tokens of {facts['figures']['text']}, on",
        f"{facts['machine']['cpu']} with {facts['machine']['threads']} threads:",
        "",
        "```",
        *(line.rstrip() for line in figure_lines(facts["figures"])),
        "```",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
