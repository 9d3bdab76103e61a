"""Small models for images, built from a seed: the same bits on every machine, torch's generators untouched."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from cyber0.directions import DirectionKey, sample

__all__ = ["cnn", "colour_cnn", "initialise", "logistic", "mlp"]

INITIAL_ROUND = 2**32 - 1  # its direction gives the initial weights; no run reaches this round


def logistic(seed: int = 0, *, inputs: int = 784, classes: int = 10) -> nn.Module:
    """Return logistic regression with a bias, all zeros at the start, whatever the seed.

    >>> sum(p.numel() for p in logistic(seed=0).parameters())
    7850
    """
    del seed
    model = _allocated(lambda: nn.Linear(inputs, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def mlp(seed: int = 0, *, inputs: int = 784, hidden: int = 64, classes: int = 10) -> nn.Module:
    """Return a network with one hidden layer and a hyperbolic tangent.

    >>> sum(p.numel() for p in mlp(seed=0).parameters())
    50890
    """
    model = _allocated(lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes)))
    return initialise(model, seed)


def cnn(seed: int = 0, *, classes: int = 10) -> nn.Module:
    """Return two strided 5 x 5 convolutions of 8 and 16 channels and a linear layer, for 28 x 28 images.

    >>> model = cnn(seed=0)
    >>> model(torch.zeros(3, 784)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([3, 10]), 11274)
    """
    model = _allocated(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, classes),
        )
    )
    return initialise(model, seed)


def colour_cnn(seed: int = 0, *, classes: int = 10) -> nn.Module:
    """Return three strided 3 x 3 convolutions of 16, 32 and 32 channels and a linear layer, for 3 x 32 x 32 images.

    >>> model = colour_cnn(seed=0)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 10]), 19466)
    """
    model = _allocated(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, classes),
        )
    )
    return initialise(model, seed)


def initialise(model: nn.Module, seed: int) -> nn.Module:
    """Set weights from the direction stream over sqrt(fan-in) and biases to zero; return the model.

    Coordinate p of the flat parameter vector takes coordinate p of a Gaussian direction that no round uses.

    >>> layer = initialise(nn.Linear(400, 2), seed=7)
    >>> layer.weight.std().item() < 0.06, layer.bias.tolist()
    (True, [0.0, 0.0])
    """
    key = DirectionKey(seed, INITIAL_ROUND)
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
            if parameter.ndim > 1:
                z = sample(key, parameter.numel(), start)
                z *= np.float32(1 / math.sqrt(parameter[0].numel()))
                parameter.copy_(torch.as_tensor(z).view(parameter.shape))
            start += parameter.numel()
    return model


def _allocated(make: Any) -> Any:
    """Return a module whose parameters hold no values yet, without drawing random numbers to initialise it."""
    with torch.device("meta"):
        model: Any = make()
    for module in model.modules():  # `to_empty` would import 485 modules
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, device="cpu")))
    return model
