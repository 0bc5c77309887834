"""Qwen3: as Llama, with RMSNorm on each head of q and k before its rotation."""

from fastcore.model.config import ModelConfig
from fastcore.model.layers import o_proj, qkv, swiglu_mlp
from fastcore.model.recorder import Recorder, Rows
from fastcore.model.weights import LinearMap, Weights

__all__ = ["record", "record_backbone"]


def record(m: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Token ids -> logits [num_out, vocab_size]."""
    hidden, embed_tokens = record_backbone(m, config, weights.under("model"))
    m.output(m.linear(hidden, weights.head("lm_head", embed_tokens, tied=config.tie_word_embeddings)))


def record_backbone(m: Recorder, config: ModelConfig, weights: Weights) -> tuple[Rows, LinearMap]:
    """Token ids -> hidden states [num_out, hidden_size] after the last norm, and the embedding."""
    size, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    embed_tokens = weights.linear("embed_tokens", config.vocab_size, size)

    hidden = m.embed(embed_tokens)
    for layer, w in weights.layers("layers", config.num_hidden_layers):
        w.known("self_attn.rotary_emb.inv_freq", (head_dim // 2,))  # computed anew, from the config
        x = m.rms_norm(hidden, w.vector("input_layernorm.weight", size), eps)
        q, k, v, _ = qkv(m, x, w.under("self_attn"), config, bias=config.attention_bias)
        q = m.rope(m.head_norm(q, w.vector("self_attn.q_norm.weight", head_dim), eps), head_dim)
        k = m.rope(m.head_norm(k, w.vector("self_attn.k_norm.weight", head_dim), eps), head_dim)
        mixed = m.attention(layer, q, k, v, head_dim, causal=config.is_causal)
        hidden += o_proj(m, mixed, w.under("self_attn"), config, bias=config.attention_bias)

        x = m.rms_norm(hidden, w.vector("post_attention_layernorm.weight", size), eps)
        hidden += swiglu_mlp(m, x, w.under("mlp"), config)

    return m.rms_norm(hidden, weights.vector("norm.weight", size), eps, rows="out"), embed_tokens
