"""The networks of the TLM: GPT-2 of `transformers` in three sizes, trained from scratch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tlmd.errors import BadInput
from tlmd.language import vocabulary

POSITIONS = 1024
# nano: about 1M parameters, for machines with only a CPU; small: about 11M; gpt2: the paper's size.
PRESETS: dict[str, dict[str, int]] = {
    "nano": {"n_layer": 4, "n_embd": 128, "n_head": 4},
    "small": {"n_layer": 6, "n_embd": 384, "n_head": 6},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12},
}


def create(preset: str, seed: int = 0) -> Any:
    """Create a `GPT2LMHeadModel` with random weights and the tensor language's vocabulary.

    Raises `BadInput` for an unknown preset. Does not change torch's global random state.
    """
    if preset not in PRESETS:
        raise BadInput(f"unknown network preset {preset!r}; use one of {', '.join(PRESETS)}")
    config = GPT2Config(
        vocab_size=vocabulary.SIZE,
        n_positions=POSITIONS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=vocabulary.IDS["[begin]"],
        eos_token_id=vocabulary.PAD,
        attn_implementation="eager",
        **PRESETS[preset],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def parameters(model: Any) -> int:
    """The number of parameters. Shared weights count once."""
    return sum(p.numel() for p in model.parameters())
