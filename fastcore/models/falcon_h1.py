"""Falcon-H1: every layer runs attention and a Mamba-2 mixer on the same normalised input, then SwiGLU.

Each muP multiplier is read once and applied in f32 where the data passes, never folded into a weight.
"""

from fastcore.model.config import ModelConfig
from fastcore.model.layers import mixer_in, mixer_out, o_proj, qkv, swiglu_mlp
from fastcore.model.recorder import Recorder
from fastcore.model.weights import Weights

__all__ = ["record"]


def record(m: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Token ids -> logits [num_out, vocab_size]."""
    mamba, multipliers = config.mamba, config.multipliers
    if mamba is None or multipliers is None:
        raise ValueError("the config has no mamba or multipliers section; expected a falcon_h1 config")
    size, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    bias, mlp_bias = config.attention_bias, config.mlp_bias
    attention_in, attention_out = multipliers.attention_in_multiplier, multipliers.attention_out_multiplier
    key, sections = multipliers.key_multiplier, multipliers.ssm_multipliers
    ssm_in, ssm_out = multipliers.ssm_in_multiplier, multipliers.ssm_out_multiplier
    gate, down = multipliers.mlp_multipliers
    embed_tokens = weights.linear("model.embed_tokens", config.vocab_size, size)

    hidden = m.embed(embed_tokens, multipliers.embedding_multiplier)
    for layer, w in weights.layers("model.layers", config.num_hidden_layers):
        x = m.rms_norm(hidden, w.vector("input_layernorm.weight", size), eps)
        # Every map that reads x stands before attention adds to the stream, so that each can normalise it itself.
        projected = mixer_in(m, x, w.under("mamba"), mamba, src_scale=ssm_in, section_scales=sections)
        q, k, v, code = qkv(m, x, w.under("self_attn"), config, bias=bias, src_scale=attention_in, key_scale=key)
        mixed = m.attention(layer, m.rope(q, head_dim), m.rope(k, head_dim), v, head_dim, key_code=code)
        hidden += o_proj(m, mixed, w.under("self_attn"), config, bias=bias, scale=attention_out)
        hidden += mixer_out(m, projected, w.under("mamba"), mamba, size, eps, scale=ssm_out)

        x = m.rms_norm(hidden, w.vector("pre_ff_layernorm.weight", size), eps)
        hidden += swiglu_mlp(m, x, w.under("feed_forward"), config, bias=mlp_bias, gate_scale=gate, down_scale=down)

    hidden = m.rms_norm(hidden, weights.vector("model.final_layernorm.weight", size), eps, rows="out")
    lm_head = weights.head("lm_head", embed_tokens, tied=config.tie_word_embeddings)
    m.output(m.linear(hidden, lm_head, scale=multipliers.lm_head_multiplier))
