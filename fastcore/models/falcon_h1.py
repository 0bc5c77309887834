"""Falcon-H1: every layer runs attention and a Mamba-2 mixer on the same normalised input, then SwiGLU.

Each muP multiplier is read once and applied in f32 where the data passes, never folded into a weight.
"""

from fastcore.model.config import ModelConfig
from fastcore.model.layers import Buffers, MixerBuffers, attention, mixer_in, mixer_out, swiglu_mlp
from fastcore.model.recorder import OUTPUT, Recorder
from fastcore.model.weights import Weights

__all__ = ["record"]


def record(recorder: Recorder, config: ModelConfig, weights: Weights) -> None:
    """Record the forward pass of a causal language model: token ids to logits."""
    mamba, multipliers = config.mamba, config.multipliers
    if mamba is None or multipliers is None:
        raise ValueError("the config has no mamba or multipliers section; expected a falcon_h1 config")
    vocab, hidden = config.vocab_size, config.hidden_size
    key_scale = multipliers.key_multiplier
    attention_in, attention_out = multipliers.attention_in_multiplier, multipliers.attention_out_multiplier
    ssm_in, ssm_out = multipliers.ssm_in_multiplier, multipliers.ssm_out_multiplier
    section_scales = multipliers.ssm_multipliers
    gate_scale, down_scale = multipliers.mlp_multipliers

    buffers, mixer = Buffers.record(recorder, config), MixerBuffers.record(recorder, mamba)
    embed_tokens = weights.linear([("model.embed_tokens.weight", vocab)], hidden)
    recorder.embed(embed_tokens, buffers.hidden, multipliers.embedding_multiplier)
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}."
        # Attention adds to the stream only after the mixer has read it.
        norm = weights.vector(f"{name}input_layernorm.weight", hidden)
        mixer_in(
            recorder, buffers, mixer, config, weights, f"{name}mamba.",
            norm=norm, in_scale=ssm_in, section_scales=section_scales,
        )  # fmt: skip
        attention(
            recorder, buffers, config, weights, name, layer,
            norm=norm, in_scale=attention_in, key_scale=key_scale, out_scale=attention_out,
        )  # fmt: skip
        mixer_out(recorder, buffers, mixer, config, weights, f"{name}mamba.", out_scale=ssm_out)
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
