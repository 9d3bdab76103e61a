"""How the losses of all clients of several runs change along all their directions, at once.

Shapes: S runs, n clients each, B samples each, R directions, d parameters. `weights` [S, d] are the global models;
`offsets` [S, n, d] is how far each client's local model has drifted from its global one, None where none has.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.func import grad, jvp, vmap  # pyright: ignore[reportUnknownVariableType]

from cyber0.errors import InvalidEstimate
from cyber0.estimate import call_with
from cyber0.parameters import Parameters
from cyber0.tasks.calibration import calibrated, offset_scores
from cyber0.tasks.task import Task, cross_entropy
from cyber0.user_code import calling

__all__ = ["derivatives", "measures_alike", "sample_slopes", "slopes"]

Tensor = torch.Tensor
LARGEST = 30.0  # the largest change of a logit for which exponentials are taken
BUDGET = 2**26  # floats that one chunk of perturbed models and their activations may take, roughly


def slopes(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    mu: float,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    places: Tensor | None = None,
) -> Tensor:
    """Return the derivative (mu = 0) or central difference of each client's loss along each direction: [S, n, R].

    With `places` [S, n, B] each sample is measured once, however often it was drawn (mu > 0, no offsets): x and y have
    one row of samples for each run, and `places` says where in that row the samples of each client are.
    """
    if mu == 0:
        return derivatives(task, parameters, weights, offsets, x, y) @ z.mT
    step = float(torch.tensor(mu, dtype=torch.float32))
    parts = [  # differences are formed per sample: two losses share most digits
        _of_clients(part, places).mean(dim=2, dtype=torch.float64)
        for part in _differences(task, parameters, weights, step, offsets, x, y, z)
    ]
    return (torch.cat(parts, dim=2) / (2 * step)).float()


def _of_clients(values: Tensor, places: Tensor | None) -> Tensor:
    """Return the values [S, 1, U, R] of samples as their clients drew them, [S, n, B, R]."""
    if places is None:
        return values
    runs, _, samples, count = values.shape
    rows = places + torch.arange(0, runs * samples, samples, device=places.device)[:, None, None]
    return values.view(-1, count).index_select(0, rows.flatten()).view(*places.shape, count)


def sample_slopes(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    mu: float,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
) -> Tensor:
    """Return the derivative (mu = 0) or central difference of each sample's loss along each direction: [S, n, B, R]."""
    if mu == 0:
        return torch.cat(list(_tangents(task, parameters, weights, offsets, x, y, z)), dim=3)
    step = float(torch.tensor(mu, dtype=torch.float32))
    parts = list(_differences(task, parameters, weights, step, offsets, x, y, z))
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)).div_(2 * step)


def _differences(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    step: float,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
) -> Iterator[Tensor]:
    """Yield F(w + step z) - F(w - step z) of each sample, [S, n, B, ...], for some directions after the others."""
    if _is_logistic(task, parameters):
        difference, room = _logistic, 4 * y.numel() * parameters.manifest.entries[1].size
    else:
        models = len(y) if offsets is None else y.shape[0] * y.shape[1]
        difference, room = _any_model, 2 * z.shape[-1] * models + 8 * x.numel()
    chunk = max(1, BUDGET // room)
    for first in range(0, z.shape[1], chunk):
        yield difference(task, parameters, weights, step, offsets, x, y, z[:, first : first + chunk])


def _tangents(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
) -> Iterator[Tensor]:
    """Yield the derivatives of each sample's loss, [S, n, B, ...], for some directions after the others."""
    losses = _losses_of(task, parameters)

    def along(weights: Tensor, direction: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def at(moved: Tensor) -> Tensor:
            return losses(moved, x, y)

        return jvp(at, (weights,), (direction,))[1]

    local, axis = (weights, None) if offsets is None else (weights[:, None] + offsets, 0)
    of_clients = vmap(vmap(vmap(along, in_dims=(None, 0, None, None)), in_dims=(axis, None, 0, 0)))
    chunk = max(1, BUDGET // (8 * x.numel() + z.shape[-1]))
    for first in range(0, z.shape[1], chunk):
        try:
            yield of_clients(local, z[:, first : first + chunk], x, y).mT.detach()
        except NotImplementedError as error:
            raise InvalidEstimate(
                f"the model has no forward-mode derivative, which mu = 0 with privacy needs: use mu > 0 ({error})"
            ) from error


def measures_alike(task: Task, parameters: Parameters) -> bool:
    """Return whether the difference of a sample is the same, however many others it is measured with.

    On a CPU it has the same bits with MKL, as long as the others are not a few. Kernels of a device are chosen by the
    shape, and nothing is known of other models.
    """
    return _is_logistic(task, parameters) and parameters.device.type == "cpu"


def _is_logistic(task: Task, parameters: Parameters) -> bool:
    known = task.losses is cross_entropy or task.losses is calibrated
    return known and type(parameters.module) is nn.Linear and len(parameters.tensors) == 2


def _logistic(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    step: float,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
) -> Tensor:
    """Return F(w + step z) - F(w - step z) of logistic regression, [S, n, B, R].

    Logits are linear in the weights, so one product serves both. With p the probabilities at w and a the logits of z
    less that of the true class, F(w + step z) - F(w) = log(1 + sum of p (exp(step a) - 1)): no digits are lost, however
    large the loss.
    """
    del task
    model: Any = parameters.module
    (runs, n, size), (outputs, inputs), count = y.shape[:3], model.weight.shape, z.shape[1]
    models, split = runs if offsets is None else runs * n, inputs * outputs
    local = weights if offsets is None else (weights[:, None] + offsets).flatten(0, 1)
    matrices, biases = local[:, :split].view(models, outputs, inputs), local[:, split:]
    here = torch.baddbmm(biases[:, None], x.reshape(models, -1, inputs), matrices.mT).view(runs, n, size, outputs, 1)
    if y.ndim == 4:  # calibrated
        here, y = offset_scores(here, y[..., 1:, None], axis=3), y[..., 0].long()
    by_class = z[..., :split].reshape(runs, count, outputs, inputs).transpose(1, 2).reshape(runs, -1, inputs)
    along = (x.view(runs, n * size, inputs) @ by_class.mT).view(runs, n, size, outputs, count)
    along += z[..., split:].mT.contiguous()[:, None, None]
    along -= _of_true_class(along, y)
    low, high = torch.aminmax(along)
    if not bool(step * torch.maximum(-low, high) < LARGEST):  # exponentials could overflow
        upper = torch.logsumexp(torch.add(here, along, alpha=step), dim=3)
        return upper.sub_(torch.logsumexp(torch.sub(here, along, alpha=step), dim=3))
    odds = torch.softmax(here, dim=3)
    room = torch.empty_like(along)
    upper, lower = (torch.mul(along, sign, out=room).expm1_().mul_(odds).sum(dim=3).log1p_() for sign in (step, -step))
    return upper.sub_(lower)


def _of_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return of logits [S, n, B, classes, R] those of each sample's class, [S, n, B, 1, R]."""
    *samples, classes, count = logits.shape
    places = torch.arange(0, y.numel() * classes, classes, device=y.device) + y.flatten()
    return logits.view(-1, count).index_select(0, places).view(*samples, 1, count)


def _any_model(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    step: float,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    z: Tensor,
) -> Tensor:
    """Return the same for any model, by vmap over models: F(w + offset + step z) - F(w + offset - step z)."""
    both = torch.cat([weights[:, None] + step * z, weights[:, None] - step * z], dim=1)
    (runs, n, size), count = y.shape[:3], z.shape[1]
    # torch's elementwise losses fail under two vmaps unless their targets are batched as their outputs are
    pointwise = y.is_floating_point()
    along = vmap(_losses_of(task, parameters), in_dims=(0, None, 0 if pointwise else None))
    with torch.no_grad():
        if offsets is None:
            targets = _repeated(y.flatten(1, 2), 1, 2 * count) if pointwise else y.flatten(1, 2)
            result = vmap(along)(both, x.flatten(1, 2), targets).view(runs, 2, count, n, size).movedim(2, 4)
        else:
            targets = _repeated(y, 2, 2 * count) if pointwise else y
            local = both[:, None] + offsets[:, :, None]
            result = vmap(vmap(along))(local, x, targets).view(runs, n, 2, count, size).permute(0, 2, 1, 4, 3)
    return result[:, 0] - result[:, 1]


def _repeated(values: Tensor, axis: int, count: int) -> Tensor:
    """Return a view with a new axis along which the values are the same."""
    return values.unsqueeze(axis).expand(*values.shape[:axis], count, *values.shape[axis:])


def derivatives(
    task: Task,
    parameters: Parameters,
    weights: Tensor,
    offsets: Tensor | None,
    x: Tensor,
    y: Tensor,
    factors: Tensor | None = None,
) -> Tensor:
    """Return the gradient of each client's mean loss at its local model, [S, n, d].

    With `factors` [S, n, B] it is that of the sum of its samples' losses, each times its factor.
    """
    losses = _losses_of(task, parameters)

    def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return losses(weights, x, y).mean()

    def summed(weights: Tensor, x: Tensor, y: Tensor, factors: Tensor) -> Tensor:
        return (losses(weights, x, y) * factors).sum()

    local, axis = (weights, None) if offsets is None else (weights[:, None] + offsets, 0)
    if factors is None:
        return vmap(vmap(grad(loss), in_dims=(axis, 0, 0)))(local, x, y)
    return vmap(vmap(grad(summed), in_dims=(axis, 0, 0, 0)))(local, x, y, factors)


def _losses_of(task: Task, parameters: Parameters) -> Any:
    """Return a function of flat weights [d], inputs and labels that returns the loss of each sample."""
    module: Any = parameters.module

    def losses(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = {
            entry.name: weights[entry.start : entry.start + entry.size].view(entry.shape)
            for entry in parameters.manifest.entries
        }

        def model(inputs: Tensor) -> Tensor:
            with calling("model", module):
                return call_with(module, named, inputs)

        return task.losses(model, (x, y))

    return losses
