"""The device a model is trained on."""

import torch

from cyber0.errors import InvalidConfig

__all__ = ["get_device"]


def get_device(name: str) -> torch.device:
    """Return the device of a name, and refuse one that cannot be used; auto is the first GPU if there is one.

    >>> get_device("cpu")
    device(type='cpu')
    >>> get_device("gpu")
    Traceback (most recent call last):
    cyber0.errors.InvalidConfig: device = 'gpu' cannot be used: ...
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidConfig(f"device = {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device
