"""Recipes: everything that decides the outcome of a run."""
