"""Adapters to the loops that people already have; each needs the package it is named after."""
