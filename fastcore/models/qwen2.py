"""Qwen2 and Qwen2.5: as Llama, with biases on q, k and v and nowhere else."""

from fastcore.model.config import ModelConfig
from fastcore.model.layers import o_proj, qkv, swiglu_mlp
from fastcore.model.recorder import Recorder
from fastcore.model.weights import Weights

__all__ = ["record"]


def record(m: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Token ids -> logits [num_out, vocab_size]."""
    size, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    embed_tokens = weights.linear("model.embed_tokens", config.vocab_size, size)

    hidden = m.embed(embed_tokens)
    for layer, w in weights.layers("model.layers", config.num_hidden_layers):
        w.known("self_attn.rotary_emb.inv_freq", (head_dim // 2,))  # computed anew, from the config
        x = m.rms_norm(hidden, w.vector("input_layernorm.weight", size), eps)
        q, k, v, code = qkv(m, x, w.under("self_attn"), config, bias=True)
        mixed = m.attention(layer, m.rope(q, head_dim), m.rope(k, head_dim), v, head_dim, key_code=code)
        hidden += o_proj(m, mixed, w.under("self_attn"), config)

        x = m.rms_norm(hidden, w.vector("post_attention_layernorm.weight", size), eps)
        hidden += swiglu_mlp(m, x, w.under("mlp"), config)

    hidden = m.rms_norm(hidden, weights.vector("model.norm.weight", size), eps, rows="out")
    m.output(m.linear(hidden, weights.head("lm_head", embed_tokens, tied=config.tie_word_embeddings)))
