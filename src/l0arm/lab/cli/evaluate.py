"""``l0arm evaluate``: the accuracy of a run's newest checkpoint."""

from __future__ import annotations

from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Json, OutsideMethod, Run, load_data
from l0arm.lab.cli.outside import use_outside
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import trained_network


def evaluate(
    run: Run, data_dir: DataDir = None, method: OutsideMethod = None, as_json: Json = False
) -> None:
    """Measure the newest checkpoint of a run on the test images, gated and compacted.

    Writes nothing.

    Examples:

        l0arm evaluate runs/mlp-l0-arm/seed-0
        l0arm evaluate runs/mlp-l0-arm/seed-0 --data-dir ~/mnist --json
    """
    use_outside(method)
    folder = RunFolder(run)
    data = load_data(folder.recipe().data.name, data_dir, quiet=as_json)
    trained = trained_network(folder, data)
    facts = trained.measured()
    if as_json:
        say_json(facts)
        return
    say(f"after epoch {facts['epoch']}: {facts['test_accuracy']:.2f} % right")
    if "compact_accuracy" in facts:
        say(
            f"{facts['architecture']}: {facts['prune_rate']:.2f} % pruned as the paper counts, "
            f"{facts['prune_rate_realised']:.2f} % realised\n"
            f"compacted: {facts['compact_accuracy']:.2f} % right, outputs differ by at most "
            f"{facts['largest_difference']:.1e}"
        )
