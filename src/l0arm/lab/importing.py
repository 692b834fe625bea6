"""The user's own code, named on the command line as ``package.module:name``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from l0arm.lab.errors import UserError, nearest


def imported(target: str) -> Any:
    """Import an object by name. Modules in the current folder are found, as by ``python -m``.

    Args:
        target: ``package.module:name``.

    Returns:
        The object of that name.

    Raises:
        UserError: The module cannot be imported, or has no such name.

    Example:
        >>> imported("math:floor")(2.5)
        2
        >>> imported("math:flor")
        Traceback (most recent call last):
        l0arm.lab.errors.UserError: 'math' has no 'flor'; did you mean 'floor'?
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"expected package.module:factory, got '{target}'")
    with users_code(f"'{module_name}' cannot be imported:"):
        module = importlib.import_module(module_name)
        try:
            return getattr(module, name)
        except AttributeError:
            known = [key for key, value in vars(module).items() if callable(value)]
    raise UserError(f"'{module_name}' has no '{name}'; {nearest(name, known)}")


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run the user's code with the current folder on the path.

    Any exception becomes a UserError of one line that starts with ``what``. This includes
    SystemExit, because ``sys.exit()`` in the user's code must not look like success. Ctrl-C still
    interrupts.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = (line.strip() for line in str(error).splitlines())
        message = next((line for line in lines if line), "no message")
        raise UserError(f"{what} {type(error).__name__}: {message[:200]}") from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
