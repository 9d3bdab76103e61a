"""Large models: how losses change along a direction, measured a layer at a time."""

from cyber0.layerwise.measure import Measure, Precision, Walking, is_walked, measure_of, prepared
from cyber0.layerwise.walk import Batch, Walk

__all__ = ["Batch", "Measure", "Precision", "Walk", "Walking", "is_walked", "measure_of", "prepared"]
