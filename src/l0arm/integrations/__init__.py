"""Adapters for training loops of other libraries; each needs the package it is named after."""
