"""A study: a grid of runs over several seeds, its tables, figures and report."""
