"""Tables of results, from the records of runs."""
