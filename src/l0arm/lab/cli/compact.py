"""``l0arm compact``: cut the closed units out of a trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from l0arm import save
from l0arm.compaction.saved.folder import check_free
from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Force, Json, OutsideMethod, Run, load_data
from l0arm.lab.cli.outside import use_outside
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.recorded import network_record
from l0arm.lab.runs.trained import EXAMPLES, trained_network


def compact(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: RUN/compact.")] = None,
    force: Force = False,
    data_dir: DataDir = None,
    method: OutsideMethod = None,
    as_json: Json = False,
) -> None:
    """Write the small network of a run to a folder, and check that it computes the same.

    Writes l0arm.json (with the certificate of equality), model.safetensors and README.md.
    In Python, `l0arm.load(FOLDER, factory)` loads the network.

    Examples:

        l0arm compact runs/lenet5-l0-arm/seed-0
        l0arm compact runs/lenet5-l0-arm/seed-0 --out small --force
    """
    use_outside(method)
    folder, path = RunFolder(run), out or run / "compact"
    check_free(path, force=force)
    trained = trained_network(folder, load_data(folder.recipe().data.name, data_dir, quiet=as_json))
    gated = trained.gated()
    facts = trained.measured()
    network = network_record(folder.recipe(), trained.data)
    x = trained.preprocess(trained.data.test_images[:EXAMPLES])
    save(gated, path, metrics=facts | {"network": network}, example_inputs=x, force=force)
    facts |= {"path": str(path), "bytes": (path / "model.safetensors").stat().st_size}
    if as_json:
        say_json(facts)
    else:
        say(_sentences(facts))


def _sentences(facts: dict[str, Any]) -> str:
    right = f"{facts['test_accuracy']:.2f} % right before, {facts['compact_accuracy']:.2f} % after"
    if facts["compact_accuracy"] == facts["test_accuracy"]:
        right = f"{facts['compact_accuracy']:.2f} % right before and after"
    return (
        f"{facts['architecture']}: {facts['prune_rate_realised']:.2f} % of the weights are gone\n"
        f"{right}; outputs differ by at most {facts['largest_difference']:.1e}\n"
        f"wrote {facts['path']} ({facts['bytes']:,} bytes of weights)"
    )
