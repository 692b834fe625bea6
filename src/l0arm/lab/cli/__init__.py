"""The command line (extra ``cli``)."""

import sys
from typing import NoReturn


def exit_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """End the program with the way to install the package that is missing.

    A module of our own that is missing is a bug: the error is raised again.
    """
    if (error.name or "").startswith("l0arm"):
        raise error
    sys.exit(f"error: the command line needs '{error.name}'; pip install 'l0arm[cli]'")
