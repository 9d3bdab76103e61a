"""Attention that can be captured masks as transformers' own does."""

import pytest
import torch
from tests.layerwise.models import classifier, prompts

from cyber0.layerwise.attention import fast_attention


@pytest.mark.parametrize("model", ["gpt-oss", "mixtral", "roberta"])
def test_scores_are_those_of_the_model_itself(model):
    """gpt-oss has eager attention, with masks of numbers; the others have that of torch."""
    own, (x, _) = classifier(model), prompts()
    with torch.no_grad():
        expected = own.scores(x[0])
        with fast_attention(own, padded=True):
            torch.testing.assert_close(own.scores(x[0]), expected)
        assert torch.equal(own.scores(x[0]), expected)
