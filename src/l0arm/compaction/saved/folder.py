"""Save a small network to a folder, and load it again without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l0arm.compaction._compact import cut_for_good, example_of
from l0arm.compaction.provenance import (
    Origin,
    Provenance,
    is_outdated,
    provenance_of,
    set_provenance,
)
from l0arm.compaction.saved.description import Description, model_card, read_description
from l0arm.compaction.saved.layers import LayersLeft
from l0arm.compaction.saved.rebuilding import check_same, rebuilt
from l0arm.compaction.saved.uniform import tie_widths
from l0arm.compaction.saved.weights import (
    KNOWN,
    SavedError,
    TensorInfo,
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

DESCRIPTION, TENSORS, CARD = "l0arm.json", "model.safetensors", "README.md"
CONFIG = "config.json"  # of transformers, where all layers have one width
OWN = {DESCRIPTION, TENSORS, CARD, CONFIG}
OWN_SUFFIXES = {".onnx", ".pt2"}  # files that export may have put beside them


def save(
    network: Gated | nn.Module,
    folder: str | Path,
    *,
    metrics: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    uniform: bool = False,
    force: bool = False,
) -> Path:
    """Write a small network to a folder that ``load`` reads.

    A network that ``compact``, ``prune`` or ``load`` returned is written with the weights that it
    has now. Of a gated model, its compact network is written.

    ``l0arm.json`` describes what is left of which model, ``model.safetensors`` holds the weights,
    and ``README.md`` is a model card. The folder appears whole or not at all.

    Where example inputs are known, given here or to ``sparsify``, the small network is compared
    with the gated one first (see ``compact``), and the certificate is written to ``l0arm.json``.

    With ``uniform=True`` the MLPs of a transformer all get the width of the widest one, and so do
    its heads and experts. A ``config.json`` says so, and ``from_pretrained`` of transformers loads
    the folder without l0arm. A residual stream with RMSNorms may be cut, too, and layers go whose
    branches are all closed. The plain model is compared with the small one before anything is
    written.

    The saved network is the trained one (z-bar) with the most probable closed units of the narrower
    layers re-opened. A re-opened unit has the value of its own gate, without a threshold: g(phi)
    for Bernoulli gates, so that the outputs may change; 0 for hard concrete gates, so that they do
    not. Where gates must be 0 or 1, as in a residual stream, it is 1. The certificate compares the
    saved network with the trained gates plus exactly these values.

    Args:
        network: A small network, or the gated model.
        folder: Where to write. A folder that exists is refused, unless it is empty.
        metrics: Figures to keep with the network, such as its accuracy, as JSON.
        example_inputs: Inputs to compare on: a tensor, or a sequence of arguments.
        example_kwargs: Keyword arguments to compare on.
        uniform: Give all layers one width, for a model of transformers whose configuration can
            state it. With heads, layers or a residual stream cut, this needs example inputs.
        force: Replace a saved network. A folder with files of other origin is refused in any case.

    Returns:
        The path of the folder.

    Raises:
        CertificateError: The small network would differ. Nothing is written.
        SavedError: The network has something that the format cannot hold, or the gated model is
            older than the small network that was made of it and trained on.
        TypeError: It is not known what was cut from which model.
        FileExistsError: The folder exists.

    Example:
        >>> import l0arm, tempfile
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> path = save(gated, tempfile.mkdtemp(), metrics={"accuracy": 98.5})
        >>> sorted(file.name for file in path.iterdir())
        ['README.md', 'l0arm.json', 'model.safetensors']
    """
    folder = check_free(Path(folder), force=force)
    config, layers = None, LayersLeft()
    if isinstance(network, Gated):
        _check_extra_state(network.model)
        if is_outdated(network):
            raise SavedError(
                "the network that compact() made of this gated model was trained since; the gated "
                "model has the weights from before. Save that network: save(small, folder)"
            )
        example = example_of(network, example_inputs, example_kwargs)
        tied = tie_widths(network) if uniform else None
        z_bar = network.deterministic() if tied is None else tied.z
        evidence = None
        if example is not None:
            reference = None if tied is None else tied.reference
            evidence = issue_certificate(network, z_bar, example, reference=reference)
        small = cut_for_good(network, z_bar, evidence)
        if tied is not None:
            config, layers = tied.config_for(small, example), tied.layers
    else:
        if uniform or example_inputs is not None or example_kwargs is not None:
            raise TypeError(
                "uniform and example inputs belong to a gated model: a small network is saved as "
                "it is, with the certificate of its compaction"
            )
        small = network
        _check_extra_state(small)
    provenance = provenance_of(small)
    if provenance is None:
        raise TypeError(
            "save takes the gated model, or a network that compact, prune or load returned, which "
            f"know what was cut; got {type(network).__name__}"
        )
    if provenance.origin is None:
        raise SavedError(
            "this network was cut twice: the model that was gated is itself a small network, which "
            "no factory makes. Save its state_dict, or gate the original model"
        )
    _check_dtypes(small)
    origin, certificate = provenance.origin, provenance.certificate
    with replacing_folder(folder) as new:
        tensors = {layers.plain_name(k): tensor for k, tensor in tensors_once(small).items()}
        write_tensors(new / TENSORS, tensors)
        description = Description(
            model=origin.model,
            parameters=(origin.parameters, _count(small)),
            groups=origin.groups,
            kept=origin.kept,
            replaced=origin.replaced,
            attributes=origin.attributes,
            original=origin.original,
            tensors={name: TensorInfo.of(tensor) for name, tensor in tensors.items()},
            tensors_sha256=sha256_of(new / TENSORS),
            metrics=metrics or {},
            certificate=None if certificate is None else certificate.as_record(),
            layers=layers,
        )
        if config is not None:
            (new / CONFIG).write_text(config, encoding="utf-8")
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
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
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
            target[description.layers.own_name(name)].copy_(tensor)
    record = description.certificate
    certificate = None if record is None else Certificate.from_record(record)
    origin = Origin(
        model=description.model,
        parameters=description.parameters[0],
        groups=description.groups,
        kept=description.kept,
        replaced=description.replaced,
        attributes=description.attributes,
        original=description.original,
    )
    return set_provenance(small.eval(), Provenance(origin, certificate))


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
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
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
