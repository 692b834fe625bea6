"""Tests of what needs annotated graphs: sizes in the code of a forward."""

import pytest
import torch.fx.traceback

needs_places = pytest.mark.skipif(
    not hasattr(torch.fx.traceback, "annotate"),
    reason="before torch 2.9 sizes in the code are not known, and such groups are masked",
)
