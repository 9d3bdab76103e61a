"""Copies and products of a streamed model in every order that events allow: no buffer is written while it is read.

A stand-in for CUDA's streams and events keeps, for each operation, all operations that have surely ended before it
begins. So an order that happens to work on a device, and one that is only likely, are told apart.
"""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cyber0.layerwise.stream import Stream, _Slot


class FakeStream:
    def __init__(self):
        self.before = frozenset()  # all that has ended when the next operation of this stream begins

    def run(self, operation):
        self.before |= {operation}

    def wait_event(self, event):
        self.before |= event.before

    def wait_stream(self, other):
        self.before |= other.before


class FakeEvent:
    before = frozenset()

    def record(self, stream):
        self.before = stream.before


class Device(Stream):
    """A `Stream` whose copies and reads are noted instead of made."""

    def __init__(self, stays, buffers):
        layers = len(stays)
        self.device, self.stays = torch.device("cuda"), stays
        self._layers = [() for _ in range(layers)]
        self._after = {place: (place + 1) % layers for place in range(layers)}
        self._last, self._reading, self._first = -1, None, None
        self._copies, self.products = FakeStream(), FakeStream()
        self._slots = [_Slot(None, FakeEvent(), FakeEvent()) for _ in range(buffers)]
        self.writes, self.reads = ({id(slot): [] for slot in self._slots} for _ in range(2))
        self.number, self.brought, self.copying = 0, 0, False

    def _views(self, place, slot):
        """Called for a copy inside a `torch.cuda.stream`, and at the end of a fetch, for the product that follows."""
        self.number += 1
        if self.copying:
            for read in self.reads[id(slot)]:
                assert read in self._copies.before, "a buffer is overwritten while a product reads it"
            self._copies.run(self.number)
            self.writes[id(slot)].append((self.number, place))
            self.brought += 1
        else:
            assert self.writes[id(slot)], "a buffer is read that nothing was copied to"
            last, held = self.writes[id(slot)][-1]
            assert held == place, "a product reads another layer"
            assert last in self.products.before, "a product reads a buffer before its copy has ended"
            self.products.run(self.number)
            self.reads[id(slot)].append(self.number)
        return ()


@contextmanager
def on(device):
    """Let `torch.cuda` mean the streams of a device."""

    @contextmanager
    def within(stream):
        device.copying = stream is device._copies
        yield
        device.copying = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda _: device.products)
        patch.setattr(torch.cuda, "stream", within)
        yield device


PASSES = st.lists(st.tuples(st.sampled_from(["eager", "graph", "part", "again"]), st.integers(0, 5)), max_size=8)


def run(device, kind, cut):
    places = range(len(device.stays))
    if kind == "part":  # as a pass that is broken off
        places = [place for place in places if place % 2 or place > cut]
    if kind == "again":  # every layer twice in a row
        places = [place for place in places for _ in range(2)]
    for place in places:
        device.fetch(place)


@given(stays=st.lists(st.booleans(), min_size=1, max_size=9), buffers=st.integers(2, 5), passes=PASSES)
def test_no_buffer_is_written_while_it_is_read(stays, buffers, passes):
    with on(Device(stays, buffers)) as device:
        for kind, cut in passes:
            if kind == "graph":
                device.rest()
                with device.capture():
                    run(device, "eager", cut)
                device.rest()
            else:
                run(device, kind, cut)


@pytest.mark.parametrize("buffers", [2, 4])
def test_a_captured_pass_brings_each_layer_once(buffers):
    with on(Device([False, True, False, False, True, False, False], buffers)) as device:
        run(device, "eager", 0)
        device.rest()
        before = device.brought
        with device.capture():
            run(device, "eager", 0)
    assert device.brought - before == 5


def test_a_missing_wait_is_noticed():
    device = Device([False] * 5, 2)
    device.products.wait_event = id
    with on(device), pytest.raises(AssertionError, match="before its copy has ended"):
        run(device, "eager", 0)
    device = Device([False] * 5, 2)
    device._copies.wait_event = id
    with on(device), pytest.raises(AssertionError, match="while a product reads it"):
        run(device, "eager", 0)
