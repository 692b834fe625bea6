"""Remove heads and neurons from a transformer of the `transformers` library; it still generates.

    pip install 'l0arm[integrations]'; python examples/transformer.py

A tiny Llama with random weights learns to continue sequences that count in steps of 1, 2 or 3.
Whole heads (a key head with its query heads) and neurons of the MLP have gates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import l0arm
from l0arm.costs import count_flops, latency

NUMBERS, LENGTH, BATCH, STEPS = 40, 12, 32, 240


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=NUMBERS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def sequences(batch: int) -> Tensor:
    start, step = torch.randint(NUMBERS, (batch, 1)), torch.randint(1, 4, (batch, 1))
    return (start + step * torch.arange(LENGTH)) % NUMBERS


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # enough for a network this small
    model = llama()
    x = sequences(8)
    plan = l0arm.plan(model, (), {"input_ids": x})
    print(plan, "\n")

    gated = l0arm.sparsify(
        model, plan, "l0-disarm", lam=8e-6, initial=0.8, example_kwargs={"input_ids": x}
    )
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=5e-3, gate_lr=0.05))
    train_gated(gated, optimizer)
    small = l0arm.compact(gated, optimizer=optimizer)
    print(l0arm.certificate(small))
    for _ in range(STEPS // 4):  # fine-tune the small network with the same optimizer
        ids = sequences(BATCH)
        optimizer.zero_grad()
        small(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    start = torch.tensor([[1, 3, 5]])
    generated = small.eval().generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=5
    )
    print("1 3 5 goes on with", *generated[0, 3:].tolist())
    report(llama(), small, sequences(64))


def train_gated(gated: l0arm.Gated, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        ids = sequences(BATCH)
        loss = gated.loss(lambda ids=ids: gated(input_ids=ids, labels=ids).loss)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        if step % 60 == 59:
            print(f"step {step + 1}: loss {loss.data:.3f}, units {l0arm.architecture(gated)}")


def report(dense: nn.Module, small: nn.Module, x: Tensor) -> None:
    models = {"dense": dense, "small": small}
    times = latency(models, x)
    for name, model in models.items():
        weights = sum(p.numel() for p in model.parameters())
        macs = count_flops(model, x[:1]) // 2
        print(f"{name}: {weights:,} weights, {macs:,} MACs, {times[name].median:.2f} ms for 64")


if __name__ == "__main__":
    main()
