"""Are two networks the same? Example inputs, differences, certificates."""
