"""cyber0: train one model across clients that share no data and do not trust each other.

Each client sends a few numbers per round; everyone rebuilds the same model, bit for bit. Start reading at
`cyber0.directions` (the shared pseudorandom directions), then `cyber0.parameters` (the model they move) and
`cyber0.estimate` (what a client measures along them).

>>> import cyber0
>>> cyber0.__version__.count(".")
2
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
