"""``python -m benchmarks.forward_only --out DIR``: train, choose units, measure, recover, report.

Every run is one JSON file. Runs that are there are not repeated, so an interrupted call goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.forward_only.memory import peak
from benchmarks.forward_only.methods import METHODS
from benchmarks.forward_only.network import STEPS, bits_per_character, cost, train
from benchmarks.forward_only.problem import Problem
from benchmarks.forward_only.report import report
from benchmarks.forward_only.text import batch, read, rows_of
from l0arm.files import write_text

LEFT = (0.5, 0.8, 0.65)  # of the parameters but the embeddings
FORWARDS, SHORTER = 200, (70, 120)  # forward-equivalents of a search; of the plot
MEASURED = 96  # sequences of held-out text
RECOVERY = 20  # steps of the training of all weights after the cut
RECOVERED = 0.5  # of this size


class Bench:
    """The network, its gates, and where records go."""

    def __init__(self, out: Path, validation: bool) -> None:
        (out / "records").mkdir(parents=True, exist_ok=True)
        self.out, self.texts = out, read()
        self.model = train(STEPS, out / "decoder.pt")
        self.problem = Problem(self.model, self.texts)
        held_out = self.texts.validation if validation else self.texts.test
        self.rows = rows_of(held_out, MEASURED)
        self.part = "validation" if validation else "test"

    def run(self, method: str, left: float, seed: int, forwards: int) -> dict[str, Any]:
        """One run, or its record."""
        name = f"{self.part}-{method}-{100 * left:g}-{forwards}-{seed}.json"
        file = self.out / "records" / name
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        problem = self.problem
        problem.begin(seed)
        began = time.process_time()
        keep = METHODS[method].choose(problem, left, seed, forwards)
        spent = time.process_time() - began
        small = problem.cut(keep)
        record = {"method": method, "left": left, "seed": seed, "forwards": forwards}
        record |= {"part": self.part, "spent": problem.spent, "cpu_seconds": spent}
        record["size"] = problem.left(small)
        record["bits"] = bits_per_character(small, self.rows)
        record["kept"] = "".join(str(int(unit)) for unit in keep)
        write_text(file, json.dumps(record) + "\n")
        print(f"{name}: {record['bits']:.4f} bits, {spent:.1f} s CPU", flush=True)
        return record

    def recover(self, method: str, seed: int) -> None:
        """Bits per character after a short training of all weights, added to a record."""
        record = self.run(method, RECOVERED, seed, FORWARDS)
        if "recovered" in record:
            return
        small = self.problem.cut(torch.tensor([float(unit) for unit in record["kept"]]))
        record["recovered"] = self.trained(small, seed)
        file = f"{self.part}-{method}-{100 * RECOVERED:g}-{FORWARDS}-{seed}.json"
        write_text(self.out / "records" / file, json.dumps(record) + "\n")
        print(f"{file}: {record['recovered']:.4f} bits recovered", flush=True)

    def trained(self, small: nn.Module, seed: int) -> float:
        """Bits per character of a small network after some more training."""
        generator = torch.Generator().manual_seed(2000 + seed)
        small.requires_grad_(True)
        optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3, weight_decay=0.01)
        for step in range(RECOVERY):
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / RECOVERY)
            loss = cost(small, batch(self.texts.train, 8, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return bits_per_character(small, self.rows)

    def memory(self, method: str) -> dict[str, Any]:
        """Bytes of all tensors alive at once, weights included, during a short search."""
        file = self.out / "records" / f"memory-{method}.json"
        if not file.exists():

            def short() -> None:
                self.problem.begin(0)
                if method == "inference":
                    self.problem.value(torch.ones(len(self.problem.price)))
                else:
                    METHODS[method].choose(self.problem, 0.8, 0, 60)

            write_text(file, json.dumps({"method": method, "peak": peak(self.model, short)}))
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def main() -> None:
    """Run everything that is missing, then write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forward_only", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the network and records")
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--validation", action="store_true", help="measure on the other held files")
    parser.add_argument("--into", type=Path, default=Path("results"), help="folder of the report")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options.out, options.validation)
    chosen = options.method or list(METHODS)
    write_text(
        options.out / "dense.json",
        json.dumps({"bits": bits_per_character(bench.model, bench.rows), "part": bench.part}),
    )
    for seed in options.seed or (0, 1, 2):  # a table exists whenever time runs out
        for left in LEFT:
            for method in chosen:
                bench.run(method, left, seed, FORWARDS)
    for seed in options.seed or (0, 1, 2):
        for method in chosen:
            bench.recover(method, seed)
            for forwards in SHORTER if METHODS[method].searches else ():
                bench.run(method, LEFT[0], seed, forwards)
    if not options.validation:
        for method in ["inference", *(m for m in chosen if METHODS[m].searches)]:
            bench.memory(method)
        report(options.out, options.into)


if __name__ == "__main__":
    main()
