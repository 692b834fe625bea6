"""Fig. 1: g(phi) for several k, both families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from l0arm.gates import GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.lab.plots.canvas import PALETTE, label_axes, legend, new_figure, panel_title, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES: dict[str, Callable[[float], GateFunction]] = {
    "scaled sigmoid, Eq. 11": ScaledSigmoid,
    "hard sigmoid, Eq. 12": HardSigmoid,
}
DASHES = ("-", "--", "-.", ":")


def gate_functions(scales: Sequence[float] = (1.0, 2.0, 7.0, 20.0), reach: float = 4.0) -> Figure:
    """The curves g(phi) for every scale k; a larger k decides sooner between closed and open."""
    require(scales, "no scale k was given", "name at least one, such as 7")
    figure = new_figure(height=2.9)
    panels = figure.subplots(1, len(FAMILIES), sharey=True)
    phi = torch.linspace(-reach, reach, 801, dtype=torch.float64)
    for number, (axes, (name, family)) in enumerate(zip(panels, FAMILIES.items(), strict=True)):
        for n, k in enumerate(scales):
            axes.plot(
                phi.numpy(),
                family(k)(phi).numpy(),
                color=PALETTE[n % len(PALETTE)],
                linestyle=DASHES[n % len(DASHES)],
                label=f"k = {k:g}",
            )
        label_axes(axes, "φ", "g(φ)" if number == 0 else "", panel_title(number, name, len(panels)))
        axes.set_xlim(-reach, reach)
        legend(axes, loc="upper left")
    return figure
