"""A callback of your own: cyber0 run --callback examples.my_callback:Distance --rule cwtm --attack sf --alpha 1 --rounds 20."""

from typing import Any

import numpy as np

import cyber0


class Distance(cyber0.Callback):
    """Prints how far the aggregate has been from the mean of the honest votes."""

    def before_run(self, run: Any) -> None:  # noqa: ARG002
        """Begin with no rounds."""
        self.moved: list[float] = []

    def after_round(self, run: Any, round: Any) -> None:  # noqa: A002, ARG002
        """Measure one round."""
        honest = ~np.isin(round.participants, round.liars)
        self.moved.append(float(np.linalg.norm(round.aggregate - round.honest[:, honest].mean(axis=1))))

    def after_evaluation(self, run: Any, evaluation: Any) -> None:  # noqa: ARG002
        """Print the mean over the rounds since the run began."""
        if self.moved:
            print(f"round {evaluation['round']}: {np.mean(self.moved):.3f} from the honest mean")
