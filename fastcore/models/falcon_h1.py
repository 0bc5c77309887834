"""Falcon-H1: every layer runs attention and a Mamba-2 mixer on the same normalised input, then SwiGLU; muP multipliers throughout."""

from fastcore.config import ModelConfig
from fastcore.layers import Buffers, MixerBuffers, attention, mixer_in, mixer_out, swiglu_mlp
from fastcore.program import OUTPUT, Recorder
from fastcore.weights import Weights

__all__ = ["record"]


def record(recorder: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Record the forward pass of a causal language model: token ids to logits."""
    mamba, multipliers = config.mamba, config.multipliers
    assert mamba is not None and multipliers is not None
    vocab, hidden = config.vocab_size, config.hidden_size
    gate_scale, down_scale = multipliers.mlp_multipliers
    attention_scales = {
        "in_scale": multipliers.attention_in_multiplier,
        "key_scale": multipliers.key_multiplier,
        "out_scale": multipliers.attention_out_multiplier,
    }
    section_scales = multipliers.ssm_multipliers
    ssm_in_scale, ssm_out_scale = multipliers.ssm_in_multiplier, multipliers.ssm_out_multiplier

    buffers = Buffers.record(recorder, config)
    mixer = MixerBuffers.record(recorder, mamba)
    embed_tokens = weights.linear([("model.embed_tokens.weight", vocab)], hidden)
    recorder.embed(embed_tokens, buffers.hidden, multipliers.embedding_multiplier)
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}."
        norm = weights.vector(f"{name}input_layernorm.weight", hidden)
        # Attention adds to the stream only when the mixer has read it.
        mixer_in(
            recorder, buffers, mixer, config, mamba, weights, f"{name}mamba.",
            norm=norm, in_scale=ssm_in_scale, section_scales=section_scales,
        )  # fmt: skip
        attention(recorder, buffers, config, weights, name, layer, norm=norm, **attention_scales)
        mixer_out(recorder, buffers, mixer, config, mamba, weights, f"{name}mamba.", out_scale=ssm_out_scale)
        norm = weights.vector(f"{name}pre_ff_layernorm.weight", hidden)
        swiglu_mlp(
            recorder, buffers, config, weights, f"{name}feed_forward.",
            norm=norm, gate_scale=gate_scale, down_scale=down_scale,
        )  # fmt: skip
    if config.tie_word_embeddings:
        lm_head = embed_tokens
        weights.ignore(["lm_head.weight"])
    else:
        lm_head = weights.linear([("lm_head.weight", vocab)], hidden)
    norm = weights.vector("model.final_layernorm.weight", hidden)
    scale = multipliers.lm_head_multiplier
    recorder.linear(buffers.hidden, OUTPUT, lm_head, scale=scale, norm=norm, eps=config.rms_norm_eps, rows="out")
    recorder.argmax()
