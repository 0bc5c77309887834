"""Makes the golden folders that come from `tiny_checkpoint`; needs torch and transformers, which the tests do not.

    PYTHONPATH=tests python tests/data/make_goldens.py [NAME ...]

Each folder gets config.json and model.safetensors, what transformers computes from them in f32 with eager attention
and no cache (logits.npy), and case.json: the prompt, the greedy tokens that follow and the smallest gap between the two
best logits on the way. A case whose greedy tokens hang on a gap of 1e-3 or less is refused; give it another seed.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny import make_prompt, tiny_checkpoint, write_json
from tolerances import GREEDY_MIN_GAP

HERE = Path(__file__).parent

# name: (what it is for, model type, options of tiny_checkpoint, prompt tokens, greedy tokens)
CASES: dict[str, tuple[str, str, dict[str, Any], int, int]] = {
    "llama-linear-biases": (
        "linear rope scaling; attention and mlp biases; untied; f16",
        "llama",
        {
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "attention_bias": True,
            "mlp_bias": True,
            "tie": False,
            "dtype": "f16",
        },
        41,
        24,
    ),
    "llama-dynamic": (
        "dynamic rope scaling, a prompt past max_position_embeddings; no greedy tokens: the base follows the length",
        "llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32},
        48,
        0,
    ),
    "llama-yarn": (
        "yarn rope scaling with a ramp over several pairs",
        "llama",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 2.0,
                "beta_slow": 0.2,
            },
            "head_dim": 16,
            "max_position_embeddings": 256,
        },
        90,
        24,
    ),
    "llama-yarn-mscale": (
        "yarn rope scaling as DeepSeek writes it: mscale, mscale_all_dim, an untruncated ramp",
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 2.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
            },
            "head_dim": 16,
            "max_position_embeddings": 256,
        },
        70,
        24,
    ),
    "qwen3-biases": (
        "attention biases; rope_parameters spelling; untied; f32",
        "qwen3",
        {
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
            "tie": False,
            "dtype": "f32",
        },
        35,
        24,
    ),
    "falcon-h1-biases": (
        "gated RMSNorm before the gate in two groups; every bias but conv1d's; no mamba_d_ssm; clamped steps; tied",
        "falcon_h1",
        {
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": True,
            "mamba_n_groups": 2,
            "mamba_d_ssm": None,
            "mamba_n_heads": 10,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "time_step_limit": [0.03, 0.4],
        },
        37,
        24,
    ),
}


@torch.no_grad()
def all_logits(model: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()


def make(name: str) -> None:
    note, model_type, options, num_prompt_tokens, num_greedy = CASES[name]
    vocab_size = 100
    folder = tiny_checkpoint(HERE / name, model_type, tokenizer=False, vocab_size=vocab_size, **options)
    (folder / "generation_config.json").unlink()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()

    prompt = make_prompt(num_prompt_tokens, vocab_size)
    np.save(folder / "logits.npy", all_logits(model, prompt))
    greedy: list[int] = []
    gaps = [np.inf]
    for _ in range(num_greedy):
        last = all_logits(model, prompt + greedy)[-1]
        second, best = np.partition(last, -2)[-2:]
        gaps.append(best - second)
        greedy.append(int(last.argmax()))
    if min(gaps) <= GREEDY_MIN_GAP:
        raise SystemExit(f"{name}: two best logits only {min(gaps):.1e} apart; choose another seed")
    case = {"note": note, "input_ids": prompt}
    if greedy:
        case |= {"greedy": greedy, "smallest_top2_margin": float(min(gaps))}
    case |= {"transformers": transformers.__version__, "torch": torch.__version__}
    write_json(folder / "case.json", case)
    print(f"{name}: {len(prompt)} tokens, greedy {greedy}, smallest gap {min(gaps):.2e}")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
