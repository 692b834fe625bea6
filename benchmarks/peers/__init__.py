"""A comparison of ``l0arm.prune`` with what a user could take instead.

Four trained networks are cut to 50, 25 and 12.5 % of their multiply-accumulate operations (MACs)
and trained further, by every method for the same number of epochs, with the same optimizer and
learning-rate schedule. ``python -m benchmarks.peers --help`` shows the commands.
"""
