"""Bring the frozen weights of linear layers to the device, each when a pass needs it: for bases larger than its memory.

A pass through a model needs one layer at a time, in the same order each time. On CUDA the weights lie in pinned memory
of the host, or in files where that has no room for them. Buffers on the device take turns: while the products of one
layer run, the next ones are copied on a second stream. On a CPU they lie in files that are mapped into memory, and
the pages of a layer are given back after it has run. As many layers as fit stay on the device.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cyber0.errors import InvalidConfig
from cyber0.layerwise.frozen import FrozenLinear, StreamedLinear, replace_linears
from cyber0.layerwise.mapped import NOT_NEEDED, WILL_NEED, advise, is_mapped

__all__ = ["Stream", "stream_linears"]

Tensor = torch.Tensor
ALIGNED = 256
BUFFERS = 4  # of layers on the device, where they fit: layers differ in size, and a large one is to be begun in time
FEWEST = 2


def stream_linears(module: nn.Module, device: torch.device, most: int, free: int | None = None) -> "Stream":
    """Move a module to a device, but for frozen weights of linear layers, of which a part is streamed there.

    Args:
        module: The model.
        device: Where it is to run.
        most: How many bytes of the device the frozen weights may take.
        free: How many bytes of the host's memory may be pinned; weights that fit in it are. None: all.

    >>> model = nn.Sequential(nn.Linear(64, 64).requires_grad_(False), nn.ReLU(), nn.Linear(64, 2))
    >>> before = model(torch.ones(1, 64))
    >>> stream = stream_linears(model, torch.device("cpu"), most=2**20)
    >>> type(model[0]).__name__, torch.equal(model(torch.ones(1, 64)), before)
    ('StreamedLinear', True)

    """
    replace_linears(module, _streamed)
    layers = [each for each in module.modules() if isinstance(each, FrozenLinear)]
    others = [each for each in module.parameters() if not each.requires_grad]
    fixed, sizes = sum(each.nbytes for each in others), [_room(tuple(each.stored().values())) for each in layers]
    largest = max(sizes, default=0)
    buffers = BUFFERS if fixed + BUFFERS * largest <= most else FEWEST
    room = most - fixed - buffers * largest
    if sum(sizes) + fixed <= most:
        room = sum(sizes)
    if room < 0:
        least = most - room
        raise InvalidConfig(
            f"stream = {most:,} bytes: this model needs at least {least:,} bytes ({least / 2**20:,.2f} MiB) of the "
            "device, for two layers and for the frozen weights that are in no linear layer"
        )
    stream = Stream([tuple(layer.stored().values()) for layer in layers], device, room, free, buffers)
    for place, layer in enumerate(layers):
        layer.attach(stream, place)
    module.to(device)
    return stream


def _streamed(full: nn.Linear) -> nn.Linear | None:
    return StreamedLinear(full) if type(full) is nn.Linear and not full.weight.requires_grad else None


def _room(tensors: Sequence[Tensor]) -> int:
    return sum(-(-each.nbytes // ALIGNED) * ALIGNED for each in tensors)


@dataclass(slots=True, eq=False)
class _Slot:
    """A buffer on the device: which layer it holds, when that is there, and when nothing reads it any more."""

    memory: Tensor
    ready: Any
    read: Any
    holds: int = -1


class Stream:
    """The weights of layers, given to them on a device one after the other. A `Supply`.

    Args:
        layers: The tensors of each layer, in the order in which they are needed the first time.
        device: Where they are needed.
        room: How many bytes of layers may stay on the device; the others are brought there each time.
        free: How many bytes may be pinned.
        buffers: How many of the others the device holds at once, at least 2.

    >>> stream = Stream([(torch.ones(3),), (torch.zeros(3),)], torch.device("cpu"), room=0)
    >>> stream.fetch(1)
    (tensor([0., 0., 0.]),)

    """

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, ...]],
        device: torch.device,
        room: int,
        free: int | None = None,
        buffers: int = FEWEST,
    ) -> None:
        self.device = device
        self.stays = _spread([_room(each) for each in layers], room)
        self._after: dict[int, int] = {place: (place + 1) % len(layers) for place in range(len(layers))}
        self._last = -1
        if device.type != "cuda":
            self._layers = [tuple(layers[place]) for place in range(len(layers))]
            self._mapped = [all(map(is_mapped, each)) for each in layers]
            return
        moving = sum(_room(each) for each, stays in zip(layers, self.stays, strict=True) if not stays)
        pin = free is None or moving <= free
        self._layers = [
            tuple(_placed(each, device, pin=pin, stays=stays) for each in tensors)
            for tensors, stays in zip(layers, self.stays, strict=True)
        ]
        largest = max((_room(each) for each, stays in zip(layers, self.stays, strict=True) if not stays), default=0)
        self._copies: Any = torch.cuda.Stream(device)
        self._slots = [
            _Slot(torch.empty(largest, dtype=torch.uint8, device=device), torch.cuda.Event(), torch.cuda.Event())
            for _ in range(buffers)
        ]
        self._reading: _Slot | None = None
        self._first: int | None = None  # of a pass that is captured: after the last layer none is begun
        self._pinned = pin

    def __deepcopy__(self, memo: Any) -> "Stream":
        return self  # what is not trained is the same in every copy of a model

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can bring them: copies from memory that is not pinned cannot be captured."""
        return self.device.type == "cuda" and self._pinned

    def rest(self) -> None:
        """Let what is queued after this find no copies under way, and no layer in a buffer."""
        products = torch.cuda.current_stream(self.device)
        products.wait_stream(self._copies)
        self._forget(products)

    @contextmanager
    def capture(self) -> Generator[None]:
        """Make all copies inside a part of the graph that is being captured: a pass that begins with empty buffers."""
        products = torch.cuda.current_stream(self.device)
        self._forget(products)
        self._first = -1
        try:
            yield
        finally:
            copied, self._first = self._first != -1, None
            if copied:
                products.wait_stream(self._copies)

    def _forget(self, products: Any) -> None:
        self._reading = None
        for slot in self._slots:
            slot.holds = -1
            slot.read.record(products)

    @property
    def moved(self) -> int:
        """How many bytes are brought to the device in a pass."""
        sizes = (sum(each.nbytes for each in tensors) for tensors in self._layers)
        return sum(size for size, stays in zip(sizes, self.stays, strict=True) if not stays)

    def tensors(self, place: int) -> tuple[Tensor, ...]:
        """Return the tensors of a layer, where they lie."""
        return self._layers[place]

    def fetch(self, place: int) -> tuple[Tensor, ...]:
        """Return the tensors of a layer on the device, until the next call; and begin to bring those after it."""
        if self._last >= 0:
            self._after[self._last] = place
        before, self._last = self._last, place
        if self.device.type == "cuda":
            return self._fetched(place)
        if before not in (-1, place):
            self._advise(before, NOT_NEEDED)
        self._advise(self._after[place], WILL_NEED)
        return self._layers[place]

    def _advise(self, place: int, what: int) -> None:
        if self._mapped[place] and not self.stays[place]:
            for tensor in self._layers[place]:
                advise(tensor, what)

    def _fetched(self, place: int) -> tuple[Tensor, ...]:
        products = torch.cuda.current_stream(self.device)
        if self._reading is not None:  # all that reads it is queued by now
            self._reading.read.record(products)
            self._reading = None
        if self.stays[place]:
            return self._layers[place]
        if self._first == -1:
            self._first = place
        ahead = self._ahead(place)
        self._reading = slot = self._copied(place, ahead)
        products.wait_event(slot.ready)
        for following in ahead:
            self._copied(following, [place, *ahead])
        return self._views(place, slot)

    def _ahead(self, place: int) -> list[int]:
        """Return the layers that are needed next, of those that do not stay: one less than there are buffers."""
        found: list[int] = []
        following = place
        for _ in range(len(self._layers)):
            following = self._after[following]
            if following in (place, self._first) or len(found) == len(self._slots) - 1:
                break
            if not self.stays[following] and following not in found:
                found.append(following)
        return found

    def _copied(self, place: int, kept: Sequence[int]) -> _Slot:
        """Return the buffer of a layer; if there is none, begin to copy it to one that holds none of those to keep."""
        for slot in self._slots:
            if slot.holds == place:
                return slot
        slot = next(each for each in self._slots if each.holds not in kept)
        slot.holds = place
        self._copies.wait_event(slot.read)
        with torch.cuda.stream(self._copies):
            for there, here in zip(self._views(place, slot), self._layers[place], strict=True):
                there.copy_(here, non_blocking=True)
            slot.ready.record(self._copies)
        return slot

    def _views(self, place: int, slot: _Slot) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        first = 0
        for tensor in self._layers[place]:
            found.append(slot.memory[first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
            first += -(-tensor.nbytes // ALIGNED) * ALIGNED
        return tuple(found)


def _placed(tensor: Tensor, device: torch.device, *, pin: bool, stays: bool) -> Tensor:
    if stays:
        return tensor.to(device)
    return tensor.cpu().pin_memory() if pin else tensor


def _spread(sizes: Sequence[int], room: int) -> list[bool]:
    """Return which layers stay, as evenly spread as possible, so that others can be copied while these run.

    >>> _spread([2, 2, 2, 2], room=5)
    [False, True, False, True]
    """
    share, due, used, stays = min(1.0, room / max(1, sum(sizes))), 0.0, 0, list[bool]()
    for size in sizes:
        due += share * size
        stays.append(used + size <= min(due + 1e-6 * size, room))
        used += size * stays[-1]
    return stays
