"""Experiments: recipes, the training loop, runs that survive, tables."""
