"""Test your own rule: `check_rule` tests the laws that every rule of this library keeps.

These are plain functions that raise AssertionError, for pytest or anything else. torch is tested if it is installed.

>>> from cyber0.aggregation import get_rule
>>> round(check_rule(get_rule("nnm+cwtm"), n=7, byzantine=2, kappa=3.0), 2)
2.67
"""

from cyber0.testing.contract import check_rule, inputs
from cyber0.testing.robustness import WorstCase, measured_kappa, worst_case

__all__ = ["WorstCase", "check_rule", "inputs", "measured_kappa", "worst_case"]
