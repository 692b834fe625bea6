"""What reproduces the paper: recipes, data, runs, tables, plots, benchmarks, command line."""
