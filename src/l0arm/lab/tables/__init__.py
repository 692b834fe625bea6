"""Tables of results, made from the records of runs."""
