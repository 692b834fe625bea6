"""``l0arm compact``: cut the closed units out of a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import save

from l0arm.cli.console import say, say_json
from l0arm.cli.loading import load_data
from l0arm.cli.options import DataDir, Json, OutsideMethod, Run
from l0arm.cli.outside import use_method
from l0arm.experiments.files import replacing
from l0arm.experiments.folder import RunFolder
from l0arm.experiments.trained import trained_network


def compact(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; else RUN/compact.safetensors.")
    ] = None,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Write the small plain network of a run, and show that it computes the same."""
    use_method(method)
    folder = RunFolder(run)
    trained = trained_network(folder, load_data(folder.recipe().data.name, data_dir, quiet=as_json))
    small, path = trained.compact(), out or run / "compact.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(save({k: v.contiguous() for k, v in small.state_dict().items()}))
    facts = trained.measured() | {"path": str(path), "bytes": path.stat().st_size}
    if as_json:
        say_json(facts)
        return
    say(
        f"{facts['architecture']}: {facts['prune_rate_realised']:.2f} % of the weights are gone\n"
        f"{facts['compact_accuracy']:.2f} % right before and after; outputs differ by at most "
        f"{facts['largest_difference']:.1e}\nwrote {path} ({facts['bytes']:,} bytes)"
        if facts["compact_accuracy"] == facts["test_accuracy"]
        else f"{facts['test_accuracy']:.2f} % right before, {facts['compact_accuracy']:.2f} % "
        f"after; outputs differ by at most {facts['largest_difference']:.1e}\nwrote {path}"
    )
