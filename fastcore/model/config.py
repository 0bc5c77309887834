"""What a model is: its shape and options, frozen, named as in Hugging Face's config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MAX_LAYERS", "MAX_POSITIONS", "FalconMultipliers", "MambaConfig", "ModelConfig", "PiiConfig", "RopeConfig"]

MAX_LAYERS = 2**12
MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions. Fields that `rope_type` does not use keep their defaults."""

    rope_type: str = "default"  # default | linear | dynamic | llama3 | yarn
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048  # dynamic: the base grows beyond this length
    factor: float = 1.0
    original_max_position_embeddings: int | None = None  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn; None: from factor, mscale and mscale_all_dim
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn

    @property
    def context_length(self) -> int:
        """Tokens that the positions are made for: max_position_embeddings, or what scaling stretches it to."""
        longest = self.max_position_embeddings
        base = {
            "linear": longest,
            "dynamic": longest,
            "yarn": self.original_max_position_embeddings or longest,
        }.get(self.rope_type)
        return longest if base is None else max(longest, int(min(base * self.factor, MAX_POSITIONS)))


@dataclass(frozen=True)
class MambaConfig:
    """The Mamba-2 mixer. `mamba_d_ssm` is the inner width, already derived when the file leaves it out."""

    mamba_d_ssm: int
    mamba_n_heads: int
    mamba_d_head: int
    mamba_n_groups: int
    mamba_d_state: int
    mamba_d_conv: int
    mamba_conv_bias: bool
    mamba_proj_bias: bool  # in_proj
    projectors_bias: bool  # out_proj
    mamba_rms_norm: bool
    mamba_norm_before_gate: bool
    time_step_limit: tuple[float, float]  # clamps softplus(dt + dt_bias); the upper end may be infinite

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.mamba_d_ssm + 2 * self.mamba_n_groups * self.mamba_d_state

    @property
    def in_proj_size(self) -> int:
        """Rows of in_proj: gate, then x, B and C, then dt."""
        return self.mamba_d_ssm + self.conv_dim + self.mamba_n_heads


@dataclass(frozen=True)
class FalconMultipliers:
    """The muP multipliers of Falcon-H1."""

    embedding_multiplier: float
    lm_head_multiplier: float
    key_multiplier: float
    attention_in_multiplier: float
    attention_out_multiplier: float
    ssm_in_multiplier: float
    ssm_out_multiplier: float
    ssm_multipliers: tuple[float, ...]  # 5: gate, x, B, C, dt
    mlp_multipliers: tuple[float, ...]  # 2: gate_proj, down_proj


@dataclass(frozen=True)
class PiiConfig:
    """What a token classifier needs beside its backbone."""

    num_token_labels: int
    max_seq_len: int  # window, in tokens
    viterbi_b_bias: float | None  # None: stated nowhere in the config files
    viterbi_e_bias: float | None
    # row of the `score` head that is the sensitivity head; None: a head of its own, or none
    sensitivity_row: int | None


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape and options, named as in Hugging Face's config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    is_causal: bool
    architectures: tuple[str, ...]
    dtype: str | None = None  # bf16 | f16 | f32; a hint only: each tensor is read as its own dtype says
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json, then those that generation_config.json adds
    pad_token_id: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json as it is
    id2label: Mapping[int, str] | None = None  # token classifiers only
    mamba: MambaConfig | None = None  # falcon_h1 only
    multipliers: FalconMultipliers | None = None  # falcon_h1 only
    pii: PiiConfig | None = None  # token classifiers only
    unrecognised: tuple[str, ...] = ()

    @property
    def context_length(self) -> int:
        """Tokens that the positions are made for: max_position_embeddings, or what rope scaling stretches it to.

        This is what a length is compared with; max_position_embeddings alone is where scaling begins.
        """
        return self.rope.context_length

    @property
    def is_token_classifier(self) -> bool:
        return self.pii is not None

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The labels of a token classifier by row, without the sensitivity row; () for a language model."""
        if self.pii is None or self.id2label is None:
            return ()
        return tuple(self.id2label[i] for i in range(self.pii.num_token_labels))
