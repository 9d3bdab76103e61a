"""Example-level differential privacy of a client's data: clipping, noise, sampling, accounting, and a budget on disk.

`mechanism` makes what is released out of the slopes of single samples, `noise` and `sampling` draw from the operating
system, `accounting` says what that costs, and `budget` keeps what a data set has spent.
"""
