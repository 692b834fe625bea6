"""The command line (extra ``cli``)."""
