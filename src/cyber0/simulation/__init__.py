"""A whole federation in one process: many clients, liars among them, on one device.

>>> from cyber0.config import RunConfig
>>> from cyber0.simulation import Simulation
>>> config = RunConfig(source="embedded", clients=8, byzantine=2, attack="foe", rule="nnm+cwtm", directions=8, rounds=3)
>>> simulation = Simulation(config)
>>> for round in simulation.play():
...     pass
>>> simulation.rounds
3
"""

from cyber0.simulation.history import History
from cyber0.simulation.result import Result
from cyber0.simulation.run import open_run, run
from cyber0.simulation.simulation import Simulation

__all__ = ["History", "Result", "Simulation", "open_run", "run"]
