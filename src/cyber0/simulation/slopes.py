"""How the losses of all clients change along all directions, at once.

Shapes: n clients, B samples each, R directions, d parameters. `offsets` [n, d] is how far each client's local model
has drifted from the global one, None where none has.
"""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap  # pyright: ignore[reportUnknownVariableType]

from cyber0.parameters import Parameters
from cyber0.tasks.task import Task, cross_entropy

__all__ = ["derivatives", "slopes"]

Tensor = torch.Tensor
BUDGET = 2**26  # floats that one chunk of perturbed models and their activations may take, roughly


def slopes(
    task: Task, parameters: Parameters, mu: float, offsets: Tensor | None, x: Tensor, y: Tensor, z: Tensor
) -> Tensor:
    """The derivative (mu = 0) or central difference of each client's mean loss along each direction: [n, R]."""
    if mu == 0:
        return derivatives(task, parameters, offsets, x, y) @ z.T
    step = float(torch.tensor(mu, dtype=torch.float32))
    logistic = type(parameters.module) is nn.Linear and len(parameters.tensors) == 2 and task.losses is cross_entropy
    if logistic:
        difference, room = _logistic, 4 * y.numel() * parameters.manifest.entries[1].size
    else:
        difference, room = _any_model, 2 * z.shape[1] * (1 if offsets is None else len(y)) + 8 * x.numel()
    chunk = max(1, BUDGET // room)
    parts = [
        difference(task, parameters, step, offsets, x, y, z[first : first + chunk]).mean(dim=1, dtype=torch.float64)
        for first in range(0, len(z), chunk)  # differences are formed per sample: two losses share most digits
    ]
    return (torch.cat(parts, dim=1) / (2 * step)).float()


def _logistic(
    task: Task, parameters: Parameters, step: float, offsets: Tensor | None, x: Tensor, y: Tensor, z: Tensor
) -> Tensor:
    """F(w + step z) - F(w - step z) of logistic regression, [n, B, R]: its logits are linear, so one product does."""
    del task
    model: Any = parameters.module
    (n, size), (outputs, inputs), count = y.shape, model.weight.shape, len(z)
    weights = inputs * outputs
    if offsets is None:
        here = nn.functional.linear(x, model.weight.detach(), model.bias.detach())
    else:
        local = model.weight.detach() + offsets[:, :weights].view(n, outputs, inputs)
        bias = model.bias.detach() + offsets[:, weights:]
        here = torch.baddbmm(bias[:, None], x, local.transpose(1, 2))
    by_class = z[:, :weights].view(count, outputs, inputs).transpose(0, 1).reshape(outputs * count, inputs)
    along = (x.reshape(n * size, inputs) @ by_class.T).view(n, size, outputs, count) + z[:, weights:].T
    base = here[..., None]
    upper = torch.logsumexp(torch.add(base, along, alpha=step), dim=2)
    lower = torch.logsumexp(torch.sub(base, along, alpha=step), dim=2)
    chosen = along.gather(2, y[..., None, None].expand(n, size, 1, count)).squeeze(2)
    return upper.sub_(lower).sub_(chosen, alpha=2 * step)


def _any_model(
    task: Task, parameters: Parameters, step: float, offsets: Tensor | None, x: Tensor, y: Tensor, z: Tensor
) -> Tensor:
    """The same for any model, by vmap over models: losses at w + offset + step z, less those at w + offset - step z."""
    flat = _flat(parameters)
    both = torch.cat([flat + step * z, flat - step * z])

    def losses(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return _losses(task, parameters, weights, x, y)

    with torch.no_grad():
        if offsets is None:
            result = vmap(losses, in_dims=(0, None, None))(both, x.flatten(0, 1), y.flatten())
            result = result.view(2, len(z), *y.shape).movedim(1, 3)
        else:
            result = vmap(vmap(losses, in_dims=(0, None, None)), in_dims=(0, 0, 0))(both + offsets[:, None], x, y)
            result = result.view(len(y), 2, len(z), -1).permute(1, 0, 3, 2)
    return result[0] - result[1]


def derivatives(task: Task, parameters: Parameters, offsets: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each client's mean loss at its local model, [n, d]."""
    flat = _flat(parameters)

    def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return _losses(task, parameters, weights, x, y).mean()

    local, axis = (flat, None) if offsets is None else (flat + offsets, 0)
    return vmap(grad(loss), in_dims=(axis, 0, 0))(local, x, y)


def _losses(task: Task, parameters: Parameters, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    module: Any = parameters.module
    named = {
        entry.name: weights[entry.start : entry.start + entry.size].view(entry.shape)
        for entry in parameters.manifest.entries
    }

    def model(inputs: Tensor) -> Tensor:
        return functional_call(module, named, (inputs,))

    return task.losses(model, (x, y))


def _flat(parameters: Parameters) -> Tensor:
    return torch.cat([flat.detach() for _, flat in parameters])
