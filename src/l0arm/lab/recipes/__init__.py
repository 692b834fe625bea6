"""Recipes: all settings that determine the result of a run."""
