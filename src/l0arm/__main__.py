"""``python -m l0arm``: the command line."""

import sys

try:
    from l0arm.lab.cli.main import main
except ModuleNotFoundError as error:
    if (error.name or "").startswith("l0arm"):
        raise
    sys.exit(f"error: the command line needs '{error.name}'; pip install 'l0arm[cli]'")

if __name__ == "__main__":
    main()
