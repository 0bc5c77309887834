"""Llama: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Qwen2 differs by its q, k, v biases, Qwen3 by its per-head q, k norms.
"""

from fastcore._kernels import PackedLinear
from fastcore.model.config import ModelConfig
from fastcore.model.layers import Buffers, attention, swiglu_mlp
from fastcore.model.recorder import OUTPUT, Recorder
from fastcore.model.weights import Weights

__all__ = ["record"]


def record(recorder: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Record the forward pass of a causal language model: token ids to logits."""
    record_decoder(recorder, config, weights, qk_norm=False)


def record_decoder(recorder: Recorder, config: ModelConfig, weights: Weights, *, qk_norm: bool) -> None:
    buffers, embed_tokens = record_backbone(recorder, config, weights, "model.", qk_norm=qk_norm)
    vocab, hidden = config.vocab_size, config.hidden_size
    if config.tie_word_embeddings:
        lm_head = embed_tokens
        weights.ignore(["lm_head.weight"])
    else:
        lm_head = weights.linear([("lm_head.weight", vocab)], hidden)
    norm = weights.vector("model.norm.weight", hidden)
    recorder.linear(buffers.hidden, OUTPUT, lm_head, norm=norm, eps=config.rms_norm_eps, rows="out")
    recorder.argmax()


def record_backbone(
    recorder: Recorder, config: ModelConfig, weights: Weights, prefix: str, *, qk_norm: bool
) -> tuple[Buffers, PackedLinear]:
    """Record embedding and layers; returns the buffers and the packed embedding."""
    buffers = Buffers.record(recorder, config)
    embed_tokens = weights.linear([(f"{prefix}embed_tokens.weight", config.vocab_size)], config.hidden_size)
    recorder.embed(embed_tokens, buffers.hidden)
    for layer in range(config.num_hidden_layers):
        name = f"{prefix}layers.{layer}."
        weights.ignore([f"{name}self_attn.rotary_emb.inv_freq"])
        norm = weights.vector(f"{name}input_layernorm.weight", config.hidden_size)
        attention(recorder, buffers, config, weights, name, layer, norm=norm, qk_norm=qk_norm)
        norm = weights.vector(f"{name}post_attention_layernorm.weight", config.hidden_size)
        swiglu_mlp(recorder, buffers, config, weights, f"{name}mlp.", norm=norm)
    return buffers, embed_tokens
