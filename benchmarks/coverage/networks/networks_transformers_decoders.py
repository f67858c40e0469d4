"""Decoders of transformers: attention, state spaces, recurrent ones and mixtures of experts."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage.networks.lists import Example, Make
from benchmarks.coverage.networks.networks_transformers_parts import (
    GROUPED,
    IDS,
    TEXT,
    VOCABULARY,
    WIDTHS,
    net,
    words,
    words_and_mask,
)

_GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


def _causal(family: str, inputs: Any = None, **options: Any) -> Make:
    """`<family>ForCausalLM` with the usual sizes of a decoder with grouped queries."""
    wanted = {**GROUPED, **options}
    return net(f"{family}ForCausalLM", f"{family}Config", inputs or words(), **wanted)


def _half_precision() -> tuple[Any, Example]:
    import torch

    module, example = DECODERS["llama"]()
    return module.to(torch.bfloat16), example


DECODERS: dict[str, Make] = {
    "gpt2": net("GPT2LMHeadModel", "GPT2Config", words(), **_GPT),
    "gpt2_mask": net("GPT2Model", "GPT2Config", words_and_mask, **_GPT),
    "gpt_neo": net(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        words(),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        max_position_embeddings=128,
    ),
    "gpt_neox": net("GPTNeoXForCausalLM", "GPTNeoXConfig", words(), **TEXT),
    "gptj": net("GPTJForCausalLM", "GPTJConfig", words(), **_GPT, rotary_dim=8),
    "gpt_bigcode": net("GPTBigCodeForCausalLM", "GPTBigCodeConfig", words(), **_GPT),
    "codegen": net("CodeGenForCausalLM", "CodeGenConfig", words(), **_GPT, rotary_dim=8),
    "opt": net(
        "OPTForCausalLM",
        "OPTConfig",
        words(),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=128,
        max_position_embeddings=128,
        word_embed_proj_dim=64,
    ),
    "bloom": net(
        "BloomForCausalLM",
        "BloomConfig",
        words(),
        vocab_size=VOCABULARY,
        hidden_size=64,
        n_layer=2,
        n_head=4,
    ),
    "mpt": net(
        "MptForCausalLM",
        "MptConfig",
        words(),
        vocab_size=VOCABULARY,
        d_model=64,
        n_layers=2,
        n_heads=4,
        max_seq_len=64,
    ),
    "falcon": net(
        "FalconForCausalLM",
        "FalconConfig",
        words(),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
    "llama": _causal("Llama"),
    "llama_mask": _causal("Llama", words_and_mask),
    "llama_bfloat16": _half_precision,
    "mistral": _causal("Mistral", sliding_window=16),
    "qwen2": _causal("Qwen2"),
    "qwen3": _causal("Qwen3", head_dim=16),
    "gemma": _causal("Gemma", head_dim=16),
    "gemma2": _causal("Gemma2", head_dim=16, sliding_window=16),
    "gemma3": net(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        words(),
        **GROUPED,
        head_dim=16,
        sliding_window=16,
    ),
    "phi": net("PhiForCausalLM", "PhiConfig", words(), **TEXT),
    "phi3": _causal("Phi3", **IDS),
    "stablelm": _causal("StableLm"),
    "olmo2": _causal("Olmo2"),
    "cohere": _causal("Cohere", **IDS),
    "granite": _causal("Granite"),
    "glm": _causal("Glm", head_dim=16, **IDS),
    "smollm3": _causal("SmolLM3", **IDS),
    "starcoder2": _causal("Starcoder2"),
    "nemotron": _causal("Nemotron"),
    "biogpt": net("BioGptForCausalLM", "BioGptConfig", words(), **TEXT),
    "xlnet": net(
        "XLNetModel",
        "XLNetConfig",
        words(),
        vocab_size=VOCABULARY,
        d_model=64,
        n_layer=2,
        n_head=4,
        d_inner=128,
    ),
    "xglm": net(
        "XGLMForCausalLM",
        "XGLMConfig",
        words(),
        vocab_size=VOCABULARY,
        d_model=64,
        ffn_dim=128,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=128,
    ),
    "ctrl": net(
        "CTRLModel",
        "CTRLConfig",
        words(),
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=64,
        dff=128,
        n_layer=2,
        n_head=4,
    ),
    # Mixtures of experts.
    "mixtral": _causal("Mixtral", num_local_experts=4),
    "qwen2_moe": _causal("Qwen2Moe", **_EXPERTS, num_experts=4, shared_expert_intermediate_size=64),
    "qwen3_moe": _causal("Qwen3Moe", **_EXPERTS, num_experts=4, head_dim=16),
    "olmoe": _causal("Olmoe", num_experts=4, num_experts_per_tok=2),
    "granitemoe": _causal("GraniteMoe", num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": _causal(
        "GptOss", num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=16
    ),
    "deepseek_v3": _causal(
        "DeepseekV3",
        **_EXPERTS,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=1,
    ),
    # State spaces and recurrent networks.
    "mamba": net(
        "MambaForCausalLM",
        "MambaConfig",
        words(16),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
    ),
    "mamba2": net(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        words(16),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=16,
        n_groups=2,
        chunk_size=8,
    ),
    "falcon_mamba": net(
        "FalconMambaForCausalLM",
        "FalconMambaConfig",
        words(16),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
    ),
    "rwkv": net(
        "RwkvForCausalLM",
        "RwkvConfig",
        words(16),
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        attention_hidden_size=64,
    ),
    "recurrent_gemma": net(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        words(16),
        vocab_size=VOCABULARY,
        **WIDTHS | {"num_hidden_layers": 3},
        lru_width=64,
        attention_window_size=16,
    ),
    "jamba": _causal(
        "Jamba",
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
    ),
}
