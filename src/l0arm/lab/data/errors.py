"""What goes wrong with data, told in one line that names the file and the way out."""

__all__ = ["Absent", "DataError"]


class DataError(ValueError):
    """A data set that cannot be had, or a data file that must not be used."""


class Absent(DataError):
    """The files of a data set are not in this place; another place may have them."""
