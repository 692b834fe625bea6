"""BERT, GPT-2, Llama, ViT and T5 from their configurations, small, with random weights."""

import pytest
from torch import nn

transformers = pytest.importorskip("transformers")


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    return transformers.BertModel(config)


def gpt2(*, use_cache: bool = True) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=use_cache,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(heads: int = 4) -> nn.Module:
    """Two query heads for every head of keys and values."""
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=48,
        max_position_embeddings=16,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}


def mistral() -> nn.Module:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL))


def qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL))


def qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=8))


def mixtral() -> nn.Module:
    sizes = {**SMALL, "intermediate_size": 24}
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config)


def qwen3_moe() -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        **SMALL, head_dim=8, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2
    )
    return transformers.Qwen3MoeForCausalLM(config)


def mamba2(groups: int = 1) -> nn.Module:
    """Six heads. Keys and queries are shared by the heads of a group."""
    config = transformers.Mamba2Config(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_heads=6,
        head_dim=8,
        state_size=5,
        n_groups=groups,
        chunk_size=16,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.Mamba2ForCausalLM(config)


def bert_classifier() -> nn.Module:
    return transformers.BertForSequenceClassification(bert().config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
    )
    return transformers.ViTForImageClassification(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=50,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)
