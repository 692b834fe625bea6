"""Print what share of MACs and parameters can go, for models of transformers with random weights.

    python scripts/removable_shares.py [name ...]

Every model is planned without and with ``stream=True``, mixtures with ``experts=True`` too. Then
all units of all groups are closed (one unit of each stays, so that the layers run), and the small
network is counted. The models are tiny, so shares of single units are larger than in real networks.
The mean is that of the models above it. Mixtures and state space models follow.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import l0arm

SIZE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
GROUPED = {**SIZE, "num_key_value_heads": 2, "head_dim": 16}
IMAGES = {**SIZE, "image_size": 16, "patch_size": 4}
GPT = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
T5 = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
BART = {"vocab_size": 100, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32}
BART |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "pad_token_id": 0}
OPT = {**SIZE, "ffn_dim": 128, "word_embed_proj_dim": 64}
BLOOM = {"vocab_size": 100, "hidden_size": 64, "n_layer": 2, "n_head": 4}
DISTIL = {"vocab_size": 100, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # config, model, settings
    "bert": ("BertConfig", "BertForSequenceClassification", SIZE),
    "roberta": ("RobertaConfig", "RobertaForSequenceClassification", SIZE),
    "electra": ("ElectraConfig", "ElectraForSequenceClassification", SIZE),
    "distilbert": ("DistilBertConfig", "DistilBertForSequenceClassification", DISTIL),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SIZE),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {**GPT, "rotary_dim": 8}),
    "opt": ("OPTConfig", "OPTForCausalLM", OPT),
    "bloom": ("BloomConfig", "BloomForCausalLM", BLOOM),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": ("MistralConfig", "MistralForCausalLM", GROUPED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", GROUPED),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", GROUPED),
    "phi": ("PhiConfig", "PhiForCausalLM", SIZE),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**SIZE, "num_key_value_heads": 2}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", GROUPED),
    "granite": ("GraniteConfig", "GraniteForCausalLM", GROUPED),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "vit": ("ViTConfig", "ViTForImageClassification", IMAGES),
    "deit": ("DeiTConfig", "DeiTForImageClassification", IMAGES),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", IMAGES),
}

EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}
MAMBA2 = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 12}
MAMBA2 |= {"num_heads": 8, "head_dim": 16, "chunk_size": 32}
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**GROUPED, **EXPERTS, "num_local_experts": 8},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**GROUPED, **EXPERTS, "num_experts": 8, "moe_intermediate_size": 96},
    ),
    "mamba2, 1 group": ("Mamba2Config", "Mamba2ForCausalLM", {**MAMBA2, "n_groups": 1}),
    "mamba2, 4 groups": ("Mamba2Config", "Mamba2ForCausalLM", {**MAMBA2, "n_groups": 4}),
}


def make(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A tiny model with random weights, and inputs for it."""
    config, model, settings = {**MODELS, **OTHERS}[name]
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    if "num_experts_per_tok" in settings:
        made.set_experts_implementation("batched_mm")  # type: ignore[operator]
    if "image_size" in settings:
        return made.eval(), {"pixel_values": torch.randn(2, 3, 16, 16)}
    inputs = {"input_ids": torch.randint(3, 100, (2, 12))}
    if name in ("t5", "bart"):
        inputs["decoder_input_ids"] = torch.randint(3, 100, (2, 12))
    return made.eval(), inputs


def cost(model: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """FLOPs of one pass, and parameters."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return float(counter.get_total_flops()), float(sum(p.numel() for p in model.parameters()))


def removable(name: str, *, stream: bool) -> tuple[float, float]:
    """The shares of MACs and parameters, in percent, that go with all units of all groups."""
    torch.manual_seed(0)
    model, inputs = make(name)
    dense = cost(model, inputs)
    experts = name in ("mixtral", "qwen3_moe")
    found = l0arm.plan(model, (), inputs, outputs="logits", stream=stream, experts=experts)
    gated = l0arm.sparsify(model, found, "l0-arm", lam=0.0)
    gated.phi.data.fill_(-9.0)
    left = cost(gated.compact(certify=False).eval(), inputs)
    macs, parameters = (100 * (1 - a / b) for a, b in zip(left, dense, strict=True))
    return macs, parameters


def main(names: list[str]) -> None:
    """Print the table, line by line."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    print("| model | without: MACs | parameters | with stream: MACs | parameters |")
    print("|---|---|---|---|---|")
    rows = [_row(name) for name in names or list(MODELS)]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    _say("**mean**", means)
    for name in [] if names else OTHERS:
        _row(name)


def _row(name: str) -> list[float]:
    shares: list[float] = []
    for stream in (False, True):
        try:
            shares += removable(name, stream=stream)
        except l0arm.PlanError:  # nothing can be gated
            shares += [0.0, 0.0]
    _say(name, shares)
    return shares


def _say(name: str, shares: list[float]) -> None:
    print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
