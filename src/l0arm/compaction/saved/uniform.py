"""One width for all layers, so that a plain ``config.json`` of transformers can state it.

A configuration has one number for the width of all MLPs, one for the heads, one for the residual
stream, one for the experts, and one for the layers. Groups of one role and size get the width of
the widest: its most probable closed units are re-opened. Layers go if all their branches are
closed. Which number of the configuration says so is found by its value. Whether the numbers are
right is decided by the plain model that they make: it must have the shapes of the small network,
its numbers, and its outputs.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l0arm.compaction.saved.layers import LayersLeft
from l0arm.compaction.saved.weights import SavedError
from l0arm.equality.difference import output_difference, selected_outputs
from l0arm.equality.example import Example, without_side_effects
from l0arm.gating import Gated, Group
from l0arm.gating.mask import reopen

Role = Literal["stream", "heads", "dims", "experts", "MLP"]
Numbers = dict[str, Any]  # of a configuration, by name
WITHIN = ("head_dim", "d_kv", "head_size")  # in the names of widths of a head
INNER = ("inner", "intermediate", "ff", "mlp")  # in the names of numbers that are widths of MLPs
OTHERS = (*INNER, "head", "vocab", "position", "layer", "token_id")  # not the width of a stream
ATTEMPTS = 64
TOLERANCE = 1e-5  # of outputs, which may be float32, relative to max|y|
WAY_OUT = "leave uniform out and load with l0arm.load"


@dataclass(frozen=True)
class TiedWidths:
    """Gates that leave layers of one role the same width, and what a configuration may say then."""

    z: Tensor  # z-bar with units re-opened: what the small network is cut by
    reference: Tensor  # what the small network has to reproduce
    source: nn.Module  # the model that is gated
    choices: tuple[tuple[Numbers, ...], ...]  # for every role, the numbers to try
    needs_example: bool  # shapes do not show a mistake: all but MLPs act through numbers, too
    layers: LayersLeft

    def config_for(self, small: nn.Module, example: Example | None) -> str:
        """The ``config.json`` that makes a plain model like the small network."""
        if self.needs_example and example is None:
            raise SavedError(
                "uniform=True with heads, experts, layers or a residual stream cut needs inputs to "
                "compare the plain model on: pass example_inputs or example_kwargs"
            )
        problem = ""
        for numbers in islice(product(*self.choices), ATTEMPTS):
            changed = {key: value for one in numbers for key, value in one.items()}
            try:
                text = _config_text(self.source, changed)
                found = _misfit(self._plain(text, "meta"), small, self.layers)
            except Exception as error:  # a configuration checks its numbers, and a model too
                found = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
            if found is None:
                self._check(text, small, example)
                return text
            problem = problem or found
        problem = problem or "its configuration has no number for what was cut"
        raise SavedError(
            f"no plain {type(self.source).__name__} has these widths: {problem}; exclude the layer "
            f"when planning, or {WAY_OUT}"
        )

    def _plain(self, text: str, device: str) -> nn.Module:
        config: Any = type(self.source.config).from_dict(json.loads(text))  # type: ignore[union-attr]
        with warnings.catch_warnings(), torch.random.fork_rng(), torch.device(device):
            warnings.simplefilter("ignore")
            made: nn.Module = type(self.source)(config)
        return made

    def _check(self, text: str, small: nn.Module, example: Example | None) -> None:
        """Compare the plain model, with the weights of the small one, with that."""
        like = next(small.parameters())
        plain = self._plain(text, "cpu").to(like.device, like.dtype)
        for name, module in plain.named_modules():
            own = vars(small.get_submodule(self.layers.own_name(name)))
            for key, value in vars(module).items():
                known = own.get(key)
                if not isinstance(value, float) or not isinstance(known, float):
                    continue
                if abs(value - known) > 1e-9 * abs(known):
                    raise SavedError(
                        f"no plain {type(self.source).__name__} computes this: '{name}.{key}' "
                        f"would be {value:.6g} instead of {known:.6g}; {WAY_OUT}"
                    )
        if example is None:
            return
        state = small.state_dict()
        plain.load_state_dict({self.layers.plain_name(k): value for k, value in state.items()})
        outputs = []
        for model in (plain, small):
            with without_side_effects(model):
                own_example = example.map(torch.clone)
                output = model(*own_example.args, **own_example.kwargs)
                outputs.append(selected_outputs(output, example.outputs))
        difference = output_difference(*outputs)
        if not difference <= TOLERANCE:
            raise SavedError(
                f"a plain {type(self.source).__name__} of these widths computes something else (by "
                f"{difference:.1e} of max|y|); {WAY_OUT}"
            )


def tie_widths(gated: Gated) -> TiedWidths:
    """z-bar with groups of one role and size as wide as the widest of them."""
    config: Any = getattr(gated.model, "config", None)
    if not callable(getattr(config, "to_json_string", None)):
        raise SavedError(
            "uniform=True writes the configuration of a model of transformers; "
            f"{type(gated.model).__name__} has none. Leave it out, and load with l0arm.load"
        )
    trained = gated.deterministic()
    z, reference = trained.clone(), trained.clone()
    layers = LayersLeft.of(gated, trained, WAY_OUT)
    roles: dict[tuple[Role, int], list[int]] = {}
    for number, group in enumerate(gated.groups):
        is_gone = group.makes and all(layers.is_gone(piece.tensor) for piece in group.makes)
        if not group.branches and not is_gone:
            roles.setdefault((_role(group), group.units), []).append(number)
            _refuse_cut_layer_norms(group, trained[gated.layout.span(number)])
    heads, needs_example = 1.0, bool(layers.left)
    choices = [_layer_numbers(config, gated.model, *entry) for entry in layers.left.items()]
    order = sorted(roles, key=lambda role: role[0] != "heads")  # those of a stream depend on them
    for role, units in order:
        spans = [gated.layout.span(number) for number in roles[role, units]]
        width = max(1, *(int((trained[span] != 0).sum()) for span in spans))
        if role == "stream":
            step = max(1, round(heads * int(getattr(config, "num_attention_heads", 1))))
            width = min(units, -(-width // step) * step)
        heads = width / units if role == "heads" else heads
        for number, span in zip(roles[role, units], spans, strict=True):
            _widen(gated, number, span, width, z, trained, reference)
        if width < units:
            needs_example |= role != "MLP"
            choices.append(tuple(_numbers(config, gated, roles[role, units], role, units, width)))
    return TiedWidths(z, reference, gated.model, tuple(choices), needs_example, layers)


def _role(group: Group) -> Role:
    if group.dots:
        return "dims"
    if group.norms:
        return "stream"
    if group.routes:
        return "experts"
    block = max((piece.positions_per_unit for piece in group.makes), default=1)
    return "heads" if block > 1 else "MLP"


def _refuse_cut_layer_norms(group: Group, z: Tensor) -> None:
    replaced = [norm.module for norm in group.norms if norm.epsilon is None]
    if replaced and not bool((z != 0).all()):
        raise SavedError(
            f"uniform=True: units of group '{group.name}' are closed, over which the LayerNorm "
            f"'{replaced[0]}' goes on dividing by their full number. A plain LayerNorm cannot; "
            f"{WAY_OUT}"
        )


def _widen(
    gated: Gated,
    number: int,
    span: slice,
    width: int,
    z: Tensor,
    trained: Tensor,
    reference: Tensor,
) -> None:
    """Re-open units of a group in z, and write down in the reference what they must be."""
    with torch.no_grad():
        reopen(z, span, gated.gates, width)
        values = gated.gates.kept_value()
        if number in gated.layout.twice:  # these gates are 0 or 1
            z[span] = (z[span] != 0).to(z)
            values = torch.ones_like(values)
        # Built from the trained gates, not from what reopen wrote: it must show a mistake there.
        reopened = (trained[span] == 0) & (z[span] != 0)
        reference[span] = torch.where(reopened, values[span], trained[span])


def _layer_numbers(
    config: Any, model: nn.Module, home: str, left: tuple[int, ...]
) -> tuple[Numbers, ...]:
    """What the configuration may say of the layers that are left of a list of modules."""
    count = len(model.get_submodule(home))  # type: ignore[arg-type]
    known = {key: value for key, value in config.to_dict().items() if "layer" in key}
    each = {
        key: [value[place] for place in left]
        for key, value in known.items()
        if isinstance(value, list) and len(value) == count
    }
    counts = [key for key, value in known.items() if type(value) is int and value == count]
    return tuple({key: len(left), **each} for key in counts)


def _numbers(
    config: Any, gated: Gated, groups: list[int], role: Role, units: int, width: int
) -> Iterator[Numbers]:
    """What the configuration may say of this width, the likeliest first."""
    known = {k: v for k, v in config.to_dict().items() if v is None or type(v) in (int, float)}
    whole = {key: value for key, value in known.items() if type(value) is int}
    if role == "experts":
        counts = (key for key, value in whole.items() if value == units and "expert" in key)
        yield from ({key: width} for key in counts if "per_tok" not in key)
        return
    if role == "stream":
        norm = gated.groups[groups[0]].norms[0]
        epsilon = getattr(gated.model.get_submodule(norm.module), str(norm.epsilon))
        grown = {k: v * units / width for k, v in known.items() if "eps" in k and v == epsilon}
        for key, value in whole.items():
            if value == units and not any(word in key for word in OTHERS):
                yield from ({key: width, **size, **grown} for size in _head_sizes(config, known))
        return
    if role == "dims":
        for key, value in whole.items():
            if any(word in key for word in WITHIN) and value % units == 0:
                yield {key: value * width // units}
        return
    if role == "heads":
        named = {k: v for k, v in whole.items() if "head" in k and "dim" not in k}
        scaled = {k: v * width // units for k, v in named.items() if v and v % units == 0}
        if scaled:
            yield from ({**scaled, **size} for size in _head_sizes(config, known))
    # A unit of several rows may also be one of an MLP, whose two projections are one weight.
    same = [key for key, value in whole.items() if value == units and "head" not in key]
    inner = [key for key in same if _is_inner(key)]
    yield from [dict.fromkeys(inner, width)] if len(inner) > 1 else []
    yield from ({key: width} for key in sorted(same, key=lambda key: not _is_inner(key)))
    yield from ({key: width} for key, v in known.items() if v is None and _is_inner(key))
    ratios = {k: width * v / units for k, v in known.items() if "ratio" in k and v}
    yield from ({key: int(v) if v == int(v) else v} for key, v in ratios.items())


def _is_inner(key: str) -> bool:
    return any(word in key for word in INNER)


def _head_sizes(config: Any, known: Mapping[str, Any]) -> Iterator[Numbers]:
    """The size of a head, where a configuration can name it: it must not follow from the others.

    Many models read ``head_dim`` though their configurations do not declare it.
    """
    width, heads = (getattr(config, key, None) for key in ("hidden_size", "num_attention_heads"))
    size = known.get("head_dim") or (width // heads if width and heads else None)
    if size is not None:
        yield {"head_dim": size}
    if "head_dim" not in known:
        yield {}


def _config_text(source: nn.Module, changed: Numbers) -> str:
    config: Any = copy.deepcopy(source.config)
    for key, value in changed.items():
        setattr(config, key, value)
    config.architectures = [type(source).__name__]
    text: str = config.to_json_string(use_diff=False)
    return text


def _misfit(plain: nn.Module, small: nn.Module, layers: LayersLeft) -> str | None:
    """The first tensor that the plain model has in another shape; None if there is none."""
    state = small.state_dict()
    ours = {layers.plain_name(key): tuple(value.shape) for key, value in state.items()}
    theirs = {key: tuple(value.shape) for key, value in plain.state_dict().items()}
    for key in (*ours, *theirs):
        if ours.get(key) != theirs.get(key):
            return f"'{key}' is {ours.get(key)} here and {theirs.get(key)} there"
    return None
