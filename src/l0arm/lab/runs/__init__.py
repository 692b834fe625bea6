"""Runs: the training loop, their folders and checkpoints, trained networks, campaigns."""
