"""What runs put into a report: a section for each run, and one that compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from l0arm.lab.plots.deployment import deployed_forms, place
from l0arm.lab.plots.gates import gate_histograms
from l0arm.lab.plots.report import Grid, Layer, Picture, Section
from l0arm.lab.plots.surviving import surviving_filters, surviving_inputs
from l0arm.lab.plots.training_curves import (
    accuracy_by_epoch,
    lowest_after_start,
    prune_rate_and_flops,
    unit_of,
)

if TYPE_CHECKING:
    from l0arm.lab.plots.training_curves import Runs
    from l0arm.lab.runs.records import EpochRecord
    from l0arm.lab.tables.bench_record import BenchRecord

FACTS = (
    "test accuracy",
    "prune rate (as the paper counts)",
    "prune rate (realised)",
    "architecture",
    "expected inference FLOPs, of dense",
    "gates undecided",
    "epochs",
    "time per epoch",
)

UNDECIDED = 0.1  # share of the gates that is worth a warning
FALLEN = 5.0  # points of accuracy, likewise


@dataclass(frozen=True)
class Inputs:
    """g(phi) of gates on the pixels of the image."""

    pi: Sequence[float]
    shape: tuple[int, int] = (28, 28)
    tau: float = 0.5  # gates above are open


@dataclass(frozen=True)
class Filters:
    """Weights of the first layer, units x channels x height x width, with g(phi) of their gates."""

    weight: Any
    pi: Sequence[float]
    called: str = "filters"
    tau: float = 0.5  # gates above are open


@dataclass(frozen=True)
class Run:
    """A run as figures and reports draw it."""

    network: str  # "MLP 784-300-100"
    label: str  # "L0-ARM (λ = 0.1/N), seed 0", unique among the runs of a network
    epochs: Sequence[EpochRecord]
    planned: int  # epochs
    settings: Mapping[str, str] = field(default_factory=dict)
    inputs: Inputs | None = None
    filters: Filters | None = None
    forms: BenchRecord | None = None  # what l0arm bench measured


def comparison_section(runs: Sequence[Run], title: str = "Comparison") -> Section:
    """All runs in one table, and the curves of each network on common axes."""
    networks: dict[str, dict[str, Sequence[EpochRecord]]] = {}
    for run in runs:
        networks.setdefault(run.network, {})[run.label] = run.epochs
    pictures = [p for network, curves in networks.items() for p in _curves(network, curves)]
    header = ("run", *facts_of(runs[0])) if runs else ("run",)
    rows = [(f"{run.network}, {run.label}", *facts_of(run).values()) for run in runs]
    return Section(title, tables=[Grid(header, rows)], pictures=pictures)


def run_section(run: Run) -> Section:
    """The results of one run, what is left of its network, and its histograms."""
    last = run.epochs[-1] if run.epochs else None
    layers = [Layer(g.name, g.open, g.units) for g in last.groups] if last else []
    text = [] if last and last.epoch >= run.planned else ["This run is not finished."]
    return Section(
        title=f"{run.network}, {run.label}",
        text=text,
        facts=facts_of(run),
        warned=warnings_of(run),
        tables=[] if run.forms is None else [_forms_table(run.forms)],
        layers=layers,
        pictures=_pictures(run),
        settings=run.settings,
    )


def facts_of(run: Run) -> dict[str, str]:
    """The last epoch (never the best one) in a few numbers, with the same keys for every run."""
    done = len(run.epochs) and run.epochs[-1].epoch
    epochs = f"{done} of {run.planned}"
    if not run.epochs:
        return dict.fromkeys(FACTS, "–") | {"epochs": epochs}
    last = run.epochs[-1]
    gated = bool(last.groups)
    seconds = sum(e.seconds for e in run.epochs) / len(run.epochs)
    values = (
        f"{last.test_accuracy:.2f} %",
        f"{last.prune_rate:.2f} %" if gated else "–",
        f"{last.prune_rate_realised:.2f} %" if gated else "–",
        last.architecture if gated else "full model",
        _flops(last) if gated else "–",
        f"{100 * last.undecided:.1f} %" if gated else "–",
        epochs,
        f"{seconds:.1f} s",
    )
    return dict(zip(FACTS, values, strict=True))


def warnings_of(run: Run) -> dict[str, str]:
    """What a reader must know about a fact, by its name: gates without a decision, a collapse."""
    if not run.epochs:
        return {}
    last, best = run.epochs[-1], max(run.epochs, key=lambda epoch: epoch.test_accuracy)
    found = {}
    if last.groups and last.undecided > UNDECIDED:
        found["gates undecided"] = (
            "The gates did not decide, so removing units changes the network. Train longer, or "
            "raise gate_lr."
        )
    if best.test_accuracy - last.test_accuracy > FALLEN:
        found["test accuracy"] = f"It was {best.test_accuracy:.2f} % after epoch {best.epoch}."
    return found


def _flops(epoch: EpochRecord) -> str:
    size, unit = unit_of(epoch.flops_dense)
    share = 100 * epoch.flops_inference / epoch.flops_dense
    return f"{share:.1f} % of {epoch.flops_dense / size:.3g} {unit}"


def _curves(network: str, runs: Runs) -> list[Picture]:
    """Fig. 3 and Fig. 5 for the runs of one network, with the epochs that are done."""
    names = f"{network}: {'; '.join(runs)}"
    pictures = []
    if any(epochs and epochs[-1].groups for epochs in runs.values()):
        pictures.append(
            Picture(
                prune_rate_and_flops({network: runs}),
                alt=f"Prune rate and expected FLOPs by epoch of {names}",
                caption=f"{network}: prune rate as the paper counts it, and expected FLOPs per "
                "image of all forward passes of a training step and of inference (the paper's "
                "Fig. 3).",
            )
        )
    if any(runs.values()):
        pictures.append(
            Picture(
                accuracy_by_epoch(runs, title=network, lowest=lowest_after_start(runs)),
                alt=f"Test accuracy by epoch of {names}",
                caption=f"{network}: test accuracy by epoch (the paper's Fig. 5). Nothing was "
                "chosen by it.",
            )
        )
    return pictures


def _pictures(run: Run) -> list[Picture]:
    name = f"{run.network}, {run.label}"
    pictures = []
    if run.inputs:
        kept = sum(p > run.inputs.tau for p in run.inputs.pi)
        pictures.append(
            Picture(
                surviving_inputs(run.inputs.pi, run.inputs.shape, run.inputs.tau),
                alt=f"The {kept} of {len(run.inputs.pi)} input pixels that {name} keeps",
                caption="The gates of the input pixels: g(φ), and which pixels stay.",
            )
        )
    if run.filters:
        shown = run.filters
        kept = sum(p > shown.tau for p in shown.pi)
        figure = surviving_filters(shown.weight, shown.pi, tau=shown.tau, called=shown.called)
        pictures.append(
            Picture(
                figure,
                alt=f"The {kept} of {len(run.filters.pi)} first-layer {run.filters.called} that "
                f"{name} keeps",
                caption=f"First-layer {run.filters.called}; those cut are grey.",
            )
        )
    if run.epochs and run.epochs[-1].groups:
        for by_group in (False, True):
            pictures.append(_histograms(run.epochs, name, by_group))
    if run.forms:
        pictures.append(_forms_picture(run.forms, name))
    return pictures


def _forms_picture(measured: BenchRecord, name: str) -> Picture:
    quick = "A quick run, not for comparison. " if measured.quick else ""
    return Picture(
        deployed_forms(measured),
        alt=f"Bars of the latency, bytes and parameters of {name} as {', '.join(measured.forms)}; "
        "the table of forms has the numbers",
        caption=f"{quick}Latency of the forms of the network: medians over rounds in which all "
        "take turns, whiskers from the smallest to the largest; and their sizes. Every panel has "
        "its own scale.",
    )


def _forms_table(measured: BenchRecord) -> Grid:
    """The numbers behind the bars."""
    header = ("form", "parameters", "bytes", *(f"ms, {place(t)}" for t in measured.latency))
    times = {name: [timed.ms[name] for timed in measured.latency] for name in measured.forms}
    rows = [
        (
            name,
            "–" if form.parameters is None else f"{form.parameters:,}",
            f"{form.bytes:,}",
            *(f"{ms.median:.3f} [{ms.low:.3f}–{ms.high:.3f}]" for ms in times[name]),
        )
        for name, form in measured.forms.items()
    ]
    return Grid(header, rows, caption="Forms of the network, as l0arm bench measured them")


def _histograms(epochs: Sequence[EpochRecord], name: str, by_group: bool) -> Picture:
    where = "by group" if by_group else "of all gates"
    return Picture(
        gate_histograms(epochs, by_group=by_group, per_row=2),
        alt=f"Histograms of g(φ) {where} from epoch {epochs[0].epoch} to {epochs[-1].epoch} of "
        f"{name}; {100 * epochs[-1].undecided:.1f} % of the gates are undecided at the end",
        caption=f"Histograms of g(φ) {where} over the epochs, the last in front "
        "(the paper's Fig. 2).",
    )
