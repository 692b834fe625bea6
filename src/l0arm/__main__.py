"""``python -m l0arm``: the command line."""

from l0arm.lab.cli import ending_on_interrupt, exit_for_missing

with ending_on_interrupt():
    try:
        from l0arm.lab.cli.main import main
    except ModuleNotFoundError as error:
        exit_for_missing(error)

if __name__ == "__main__":
    main()
