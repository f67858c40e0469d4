"""Encoders, and encoders with decoders, of transformers."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage.networks.lists import Example, Make
from benchmarks.coverage.networks.networks_transformers_parts import (
    IDS,
    LENGTH,
    TEXT,
    TWO_TOWERS,
    VOCABULARY,
    ids,
    net,
    two_texts,
    words,
    words_and_mask,
)


def _boxes() -> Example:
    import torch

    boxes = torch.randint(0, 100, (1, LENGTH, 4)).sort(-1)[0]
    return {"input_ids": ids(), "bbox": boxes}


def _bert(network: str, inputs: Any) -> Make:
    return net(network, "BertConfig", inputs, **TEXT)


_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}

ENCODERS: dict[str, Make] = {
    "bert": _bert("BertModel", words()),
    "bert_mask": _bert("BertModel", words_and_mask),
    "bert_classification": _bert("BertForSequenceClassification", words_and_mask),
    "bert_masked_words": _bert("BertForMaskedLM", words()),
    "bert_questions": _bert("BertForQuestionAnswering", words()),
    "roberta": net("RobertaModel", "RobertaConfig", words_and_mask, **TEXT),
    "xlm_roberta": net("XLMRobertaForTokenClassification", "XLMRobertaConfig", words(), **TEXT),
    "camembert": net("CamembertModel", "CamembertConfig", words(), **TEXT),
    "distilbert": net(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        words_and_mask,
        vocab_size=VOCABULARY,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
    ),
    "albert": net("AlbertModel", "AlbertConfig", words(), **TEXT, embedding_size=32),
    "electra": net("ElectraModel", "ElectraConfig", words(), **TEXT, embedding_size=32),
    "deberta": net("DebertaModel", "DebertaConfig", words(), **TEXT, **_DEBERTA),
    "deberta_v2": net(
        "DebertaV2Model",
        "DebertaV2Config",
        words(),
        **TEXT,
        **_DEBERTA,
        position_buckets=32,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    "mpnet": net("MPNetModel", "MPNetConfig", words(), **TEXT),
    "modernbert": net(
        "ModernBertModel",
        "ModernBertConfig",
        words_and_mask,
        **TEXT,
        **IDS,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "layoutlm": net("LayoutLMModel", "LayoutLMConfig", _boxes, **TEXT),
    "longformer": net(
        "LongformerModel", "LongformerConfig", words(64), **TEXT, attention_window=16
    ),
    "big_bird": net(
        "BigBirdModel",
        "BigBirdConfig",
        words(64),
        **TEXT,
        block_size=4,
        num_random_blocks=1,
        attention_type="block_sparse",
    ),
    "fnet": net("FNetModel", "FNetConfig", words(), **TEXT),
    "nystromformer": net(
        "NystromformerModel",
        "NystromformerConfig",
        words(),
        **TEXT,
        num_landmarks=8,
        segment_means_seq_len=LENGTH,
    ),
    "squeezebert": net("SqueezeBertModel", "SqueezeBertConfig", words(), **TEXT, embedding_size=64),
    "convbert": net("ConvBertModel", "ConvBertConfig", words(), **TEXT, embedding_size=64),
    "funnel": net(
        "FunnelModel",
        "FunnelConfig",
        words(),
        vocab_size=VOCABULARY,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=64,
        n_head=4,
        d_head=16,
        d_inner=128,
    ),
    "roformer": net("RoFormerModel", "RoFormerConfig", words(), **TEXT, embedding_size=64),
    "esm": net(
        "EsmModel",
        "EsmConfig",
        words(),
        **TEXT,
        pad_token_id=0,
        mask_token_id=2,
        position_embedding_type="rotary",
    ),
    "canine": net("CanineModel", "CanineConfig", words(64), **TEXT),
    "mobilebert": net(
        "MobileBertModel",
        "MobileBertConfig",
        words(),
        **TEXT,
        embedding_size=32,
        true_hidden_size=32,
        intra_bottleneck_size=32,
        num_feedforward_networks=2,
    ),
    "nomic_bert": net("NomicBertModel", "NomicBertConfig", words(), **TEXT),
    "t5_encoder": net("T5EncoderModel", "T5Config", words(), **_T5),
}

ENCODER_DECODERS: dict[str, Make] = {
    "t5": net("T5ForConditionalGeneration", "T5Config", two_texts, **_T5),
    "mt5": net("MT5ForConditionalGeneration", "MT5Config", two_texts, **_T5),
    "umt5": net("UMT5ForConditionalGeneration", "UMT5Config", two_texts, **_T5),
    "switch_transformers": net(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        two_texts,
        **_T5,
        num_experts=4,
    ),
    "longt5": net("LongT5Model", "LongT5Config", two_texts, **_T5, local_radius=7),
    "bart": net("BartForConditionalGeneration", "BartConfig", words(), **TWO_TOWERS),
    "mbart": net("MBartForConditionalGeneration", "MBartConfig", two_texts, **TWO_TOWERS),
    "marian": net("MarianMTModel", "MarianConfig", two_texts, **TWO_TOWERS, pad_token_id=0),
    "pegasus": net("PegasusForConditionalGeneration", "PegasusConfig", two_texts, **TWO_TOWERS),
    "blenderbot": net(
        "BlenderbotForConditionalGeneration", "BlenderbotConfig", two_texts, **TWO_TOWERS
    ),
    "m2m_100": net("M2M100ForConditionalGeneration", "M2M100Config", two_texts, **TWO_TOWERS),
    "led": net(
        "LEDModel",
        "LEDConfig",
        two_texts,
        **{k: v for k, v in TWO_TOWERS.items() if k != "max_position_embeddings"},
        attention_window=16,
        max_encoder_position_embeddings=128,
        max_decoder_position_embeddings=128,
    ),
    "prophetnet": net(
        "ProphetNetModel",
        "ProphetNetConfig",
        two_texts,
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
    ),
}
