"""Save a small network to a folder, and load it again without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0arm.compaction._compact import Provenance, example_of, set_provenance
from l0arm.compaction.saved.description import Description, model_card, read_description
from l0arm.compaction.saved.rebuilding import attributes_of, check_same, rebuilt
from l0arm.compaction.saved.uniform import tie_widths
from l0arm.compaction.saved.weights import (
    KNOWN,
    SavedError,
    read_header,
    read_tensors,
    sha256_of,
    tensor_infos,
    tensors_once,
    write_tensors,
)
from l0arm.equality.certificate import Certificate, issue_certificate
from l0arm.files import replacing_folder
from l0arm.gating import Gated
from l0arm.gating.attention import HeadAttention
from l0arm.gating.cutting import cut_copy, permanent_draw, select_inputs

DESCRIPTION, TENSORS, CARD = "l0arm.json", "model.safetensors", "README.md"
CONFIG = "config.json"  # of transformers, where all layers have one width
OWN = {DESCRIPTION, TENSORS, CARD, CONFIG}
OWN_SUFFIXES = {".onnx", ".pt2"}  # files that export may have put beside them


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
    """Write the small network of a gated model to a folder that ``load`` reads.

    ``l0arm.json`` describes what is left of which model, ``model.safetensors`` holds the weights,
    and ``README.md`` is a model card. The folder appears whole or not at all.

    Where example inputs are known, given here or to ``sparsify``, the small network is compared
    with the gated one first (see ``compact``), and the certificate is written to ``l0arm.json``.

    With ``uniform=True`` every MLP of a transformer gets the width of the widest one, and a
    ``config.json`` says so. ``from_pretrained`` of transformers then loads the folder without
    l0arm. The saved network is the trained one (z-bar) with the most probable closed units of the
    narrower layers re-opened. A re-opened unit has the value of its own gate, without a threshold:
    g(phi) for Bernoulli gates, so that the outputs may change; 0 for hard concrete gates, so that
    they do not. The certificate compares the saved network with the trained gates plus exactly
    these values.

    Args:
        gated: The gated model.
        folder: Where to write. A folder that exists is refused, unless it is empty.
        metrics: Figures to keep with the network, such as its accuracy, as JSON.
        example_inputs: Inputs to compare on: a tensor, or a sequence of arguments.
        example_kwargs: Keyword arguments to compare on.
        uniform: Give all layers one width (BERT, GPT-2 and Llama with gated MLPs).
        force: Replace a saved network. A folder with files of other origin is refused in any case.

    Returns:
        The path of the folder.

    Raises:
        CertificateError: The small network would differ. Nothing is written.
        SavedError: The network has something that the format cannot hold.
        FileExistsError: The folder exists.

    Example:
        >>> import l0arm, tempfile
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0)
        >>> path = save(gated, tempfile.mkdtemp(), metrics={"accuracy": 98.5})
        >>> sorted(file.name for file in path.iterdir())
        ['README.md', 'l0arm.json', 'model.safetensors']
    """
    if not isinstance(gated, Gated):
        raise TypeError(
            f"save takes the gated model, which knows what was cut; got {type(gated).__name__}"
        )
    folder = check_free(Path(folder), force=force)
    _check_extra_state(gated.model)
    example = example_of(gated, example_inputs, example_kwargs)
    tied = tie_widths(gated) if uniform else None
    z_bar = gated.deterministic() if tied is None else tied.z
    certificate = None
    if example is not None:
        reference = None if tied is None else tied.reference
        certificate = issue_certificate(gated, z_bar, example, reference=reference)
    draw = permanent_draw(gated, z_bar)
    gated.warn_of_empty(draw)
    small = cut_copy(gated, draw)
    attributes = attributes_of(small, gated.groups)
    small = select_inputs(small, gated.layout, draw)
    _check_dtypes(small)
    open_units = gated.per_group(draw.z != 0).values()
    with replacing_folder(folder) as new:
        write_tensors(new / TENSORS, tensors_once(small))
        description = Description(
            model=f"{type(gated.model).__module__}.{type(gated.model).__qualname__}",
            parameters=(_count(gated.model), _count(small)),
            groups=gated.groups,
            kept=tuple(tuple(part.nonzero().flatten().tolist()) for part in open_units),
            replaced=tuple(
                name for name, m in gated.model.named_modules() if isinstance(m, HeadAttention)
            ),
            attributes=attributes,
            original=tensor_infos(gated.model),
            tensors=tensor_infos(small),
            tensors_sha256=sha256_of(new / TENSORS),
            metrics=metrics or {},
            certificate=None if certificate is None else certificate.as_record(),
        )
        if tied is not None:
            (new / CONFIG).write_text(tied.config, encoding="utf-8")
        (new / DESCRIPTION).write_text(description.to_json(), encoding="utf-8")
        card = model_card(description, (new / TENSORS).stat().st_size)
        (new / CARD).write_text(card, encoding="utf-8")
        inspect_saved(new)  # what is written can be read
    return folder


def load(folder: str | Path, factory: Callable[[], nn.Module]) -> nn.Module:
    """Load the small network that ``save`` wrote.

    The original model is cut to the saved shapes by the code that compaction uses. It then gets
    the saved weights, buffers and dtypes, and its certificate if the folder has one. No code from
    the folder is ever executed.

    Args:
        folder: The folder that ``save`` wrote.
        factory: A class or a function that makes the original model.

    Returns:
        The small network, in eval mode.

    Raises:
        SavedError: The folder is damaged, or does not fit the model. The message says why.
        TypeError: ``factory`` is not a factory of plain models.

    Example:
        >>> import l0arm, tempfile
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0)
        >>> path = l0arm.save(gated, tempfile.mkdtemp())
        >>> small = load(path, lambda: l0arm.models.MLP((6, 5, 3)))
        >>> small(torch.rand(4, 6)).shape
        torch.Size([4, 3])
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(
            "load takes what makes the original model (a class or a function), got "
            f"{type(factory).__name__}; pass e.g. the class itself, or a lambda that calls it"
        )
    folder = Path(folder)
    description = inspect_saved(folder)
    model = factory()
    if not isinstance(model, nn.Module) or isinstance(model, Gated):
        raise TypeError(f"the factory must make the plain original, got {type(model).__name__}")
    small = rebuilt(model, description, str(folder))
    target = tensors_once(small)
    with torch.no_grad():
        for name, tensor in read_tensors(folder / TENSORS):
            target[name].copy_(tensor)
    record = description.certificate
    certificate = None if record is None else Certificate.from_record(record)
    return set_provenance(small.eval(), Provenance(certificate))


def inspect_saved(folder: str | Path) -> Description:
    """Read what a saved folder holds, without a model and without reading a tensor.

    Everything that can be checked this way is checked.

    Args:
        folder: The folder that ``save`` wrote.

    Returns:
        The structure of the small network, its metrics and its certificate.

    Raises:
        SavedError: The folder is damaged, or not a saved network.

    Example:
        >>> import l0arm, tempfile
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0)
        >>> path = l0arm.save(gated, tempfile.mkdtemp(), metrics={"accuracy": 98.5})
        >>> inspect_saved(path).metrics
        {'accuracy': 98.5}
    """
    folder = Path(folder)
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise SavedError(f"{folder} has no {name}: it is not a network that l0arm.save wrote")
    description = read_description(folder / DESCRIPTION)
    found = read_header(folder / TENSORS)
    check_same(found, description.tensors, str(folder / TENSORS), DESCRIPTION, exact=True)
    if sha256_of(folder / TENSORS) != description.tensors_sha256:
        raise SavedError(f"{folder / TENSORS} is damaged or another's: its SHA-256 is another")
    return description


def check_free(folder: Path, *, force: bool) -> Path:
    """Refuse a folder that may not be written to; ``force`` allows a saved network alone.

    Returns the folder, or the one that a link leads to. The link stays.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder
    if not force:
        raise FileExistsError(
            f"{folder} exists; choose another folder, or let it be replaced: force=True, or "
            "--force on the command line"
        )
    if not folder.is_dir() or not (folder / DESCRIPTION).is_file():
        raise FileExistsError(f"{folder} is not a saved network, so it is not replaced by force")
    foreign = [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_dir() or not (path.name in OWN or path.suffix in OWN_SUFFIXES)
    ]
    if foreign:
        raise FileExistsError(
            f"{folder} also holds {', '.join(foreign[:3])}, which l0arm did not write, so it is "
            "not replaced by force; move that away, or choose another folder"
        )
    return folder


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _check_dtypes(small: nn.Module) -> None:
    """Refuse numbers that the format cannot hold."""
    for name, fact in tensor_infos(small).items():
        if fact.dtype not in KNOWN:
            raise SavedError(
                f"'{name}' holds numbers of kind {fact.dtype}, which the format has no place for; "
                "keep them as real numbers (torch.view_as_real), or compute them in forward"
            )


def _check_extra_state(model: nn.Module) -> None:
    """Refuse modules that keep state beside their tensors: it would be lost."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise SavedError(
                f"the module '{name}' ({type(module).__name__}) keeps extra state, which a saved "
                "network has no place for; keep it in buffers"
            )
