"""Save a small network to a folder and load it again, without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0arm.compaction.saved.card import card
from l0arm.compaction.saved.description import Description, read_description
from l0arm.compaction.saved.folder import CARD, CONFIG, DESCRIPTION, TENSORS, check_free
from l0arm.compaction.saved.rebuilding import attributes_of, check_same, rebuilt
from l0arm.compaction.saved.uniform import tie_widths
from l0arm.compaction.saved.weights import (
    KNOWN,
    SavedError,
    facts_of,
    read_header,
    read_tensors,
    sha256_of,
    tensors_once,
    write_tensors,
)
from l0arm.equality.certificate import certify_mask, passed
from l0arm.equality.example import Example
from l0arm.files import replacing_folder
from l0arm.gating import Gated
from l0arm.gating.attention import HeadAttention
from l0arm.gating.cutting import cut_copy, living_draw, select_inputs
from l0arm.gating.draw import Draw


def save(
    gated: Gated,
    folder: str | Path,
    *,
    metrics: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    uniform: bool = False,
    force: bool = False,
) -> Path:
    """Write the compact network to a folder that ``load`` reads, and nothing else has to.

    ``l0arm.json`` says what is left of which model, ``model.safetensors`` has the weights,
    ``README.md`` tells a person. The folder appears whole or not at all. One that exists is refused
    unless ``force`` says to replace it; one with files of other origin is refused in any case.
    ``uniform`` (BERT, GPT-2, Llama with gated MLPs) gives all layers the width of the widest and
    writes a ``config.json``, so that ``from_pretrained`` of transformers alone can load it.

    Where example inputs are known, given here or to ``sparsify``, the small network is compared
    with the gated one first (see ``certified``): the certificate goes into ``l0arm.json``, and if
    they differ, CertificateError names the group and nothing is written.
    """
    if not isinstance(gated, Gated):
        raise TypeError(
            f"save takes the gated model, which knows what was cut; got {type(gated).__name__}"
        )
    folder = check_free(Path(folder), force=force)
    _check_extra_state(gated.model)
    tied = tie_widths(gated) if uniform else None
    z_bar = gated.deterministic() if tied is None else tied.z
    example = Example.of(example_inputs, example_kwargs, gated.outputs) or gated.example
    certificate = None if example is None else passed(certify_mask(gated, z_bar, example))
    draw = living_draw(gated, z_bar)
    gated.warn_of_empty(draw)
    small = cut_copy(gated, draw)
    attributes = attributes_of(small, gated.groups)
    small = _writable(select_inputs(small, gated.layout, draw))
    with replacing_folder(folder) as new:
        write_tensors(new / TENSORS, tensors_once(small))
        told = Description(
            **_structure(gated, small, draw),
            attributes=attributes,
            tensors_sha256=sha256_of(new / TENSORS),
            metrics=metrics or {},
            certificate=None if certificate is None else certificate.as_record(),
        )
        _write_texts(new, told, None if tied is None else tied.config)
        inspect_saved(new)  # what is written can be read
    return folder


def _structure(gated: Gated, small: nn.Module, draw: Draw) -> dict[str, Any]:
    """What was, what is left, and of which units."""
    return {
        "model": f"{type(gated.model).__module__}.{type(gated.model).__qualname__}",
        "parameters": (_count(gated.model), _count(small)),
        "groups": gated.groups,
        "kept": _kept(gated, draw),
        "replaced": _exchanged(gated.model),
        "original": facts_of(gated.model),
        "tensors": facts_of(small),
    }


def _writable(small: nn.Module) -> nn.Module:
    """The network itself, if the format has a place for all of its numbers."""
    for name, fact in facts_of(small).items():
        if fact.dtype not in KNOWN:
            raise SavedError(
                f"'{name}' holds numbers of kind {fact.dtype}, which the format has no place for; "
                "keep them as real numbers (torch.view_as_real), or compute them in forward"
            )
    return small


def _write_texts(new: Path, told: Description, config: str | None) -> None:
    if config is not None:
        (new / CONFIG).write_text(config, encoding="utf-8")
    (new / DESCRIPTION).write_text(told.to_json(), encoding="utf-8")
    size = (new / TENSORS).stat().st_size
    (new / CARD).write_text(card(told, size), encoding="utf-8")


def load(folder: str | Path, factory: Callable[[], nn.Module]) -> nn.Module:
    """The small network that ``save`` wrote, in eval mode.

    ``factory`` (a class or a function) makes the original model; it is cut to the saved shapes by
    the code that compaction uses, then gets the saved weights, buffers and dtypes. Whatever does
    not fit raises SavedError with the reason; no code from the folder is ever executed.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(
            "load takes what makes the original model (a class or a function), got "
            f"{type(factory).__name__}; pass e.g. the class itself, or a lambda that calls it"
        )
    folder = Path(folder)
    told = inspect_saved(folder)
    model = factory()
    if not isinstance(model, nn.Module) or isinstance(model, Gated):
        raise TypeError(f"the factory must make the plain original, got {type(model).__name__}")
    small = rebuilt(model, told, str(folder))
    target = tensors_once(small)
    with torch.no_grad():
        for name, tensor in read_tensors(folder / TENSORS):
            target[name].copy_(tensor)
    return small.eval()


def inspect_saved(folder: str | Path) -> Description:
    """What a folder holds, after every check that needs no model and reads no tensor."""
    folder = Path(folder)
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise SavedError(f"{folder} has no {name}: it is not a network that l0arm.save wrote")
    told = read_description(folder / DESCRIPTION)
    found = read_header(folder / TENSORS)
    check_same(found, told.tensors, str(folder / TENSORS), DESCRIPTION, exact=True)
    if sha256_of(folder / TENSORS) != told.tensors_sha256:
        raise SavedError(f"{folder / TENSORS} is damaged or another's: its SHA-256 is another")
    return told


def _kept(gated: Gated, draw: Draw) -> tuple[tuple[int, ...], ...]:
    """The open units of every group."""
    parts = gated.per_group(draw.z != 0).values()
    return tuple(tuple(part.nonzero().flatten().tolist()) for part in parts)


def _exchanged(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, m in model.named_modules() if isinstance(m, HeadAttention))


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _check_extra_state(model: nn.Module) -> None:
    """What a module keeps beside its tensors could be anything, and would be lost."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise SavedError(
                f"the module '{name}' ({type(module).__name__}) keeps extra state, which a saved "
                "network has no place for; keep it in buffers"
            )
