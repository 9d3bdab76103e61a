"""Where the batches of a study are played: on processes of this machine, or on a Ray cluster.

An engine takes the batches and gives back, as each ends, its number and its outcomes; `told(number, round)` hears of
progress. A process that dies takes none of the others with it: what it was playing is tried once more. Processes of
this machine leave runs they play alone in the folder `unfinished`, to go on with; none of them outlives the study.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from threading import Thread
from typing import Any

from cyber0.extras import require
from cyber0.study.work import DEVICE_WORKERS, Batch, Outcome, play
from cyber0.threads import cores

__all__ = ["ENGINES", "local", "on_ray"]

Told = Callable[[int, int], None]
Played = Iterator[tuple[int, list[Outcome]]]

TRIES = 2
PATIENCE = 0.2  # seconds between two looks at the progress


def local(batches: list[Batch], workers: int, told: Told, unfinished: Path) -> Played:
    """On `workers` processes of this machine."""
    left, begun = dict(enumerate(batches)), Counter[int]()
    while left:
        lost: set[int] = set()
        for number, outcomes in _pooled(left, workers, begun, told, unfinished):
            if outcomes is None:
                lost.add(number)
                continue
            del left[number]
            yield number, outcomes
        for number in [number for number in lost if begun[number] >= TRIES]:
            error = "its process died twice: killed, perhaps for want of memory; try --jobs 1"
            yield number, [Outcome(job, [], error) for job in left.pop(number)]


def _pooled(
    batches: dict[int, Batch], workers: int, begun: Counter[int], told: Told, unfinished: Path
) -> Iterator[tuple[int, list[Outcome] | None]]:
    """Play batches on a pool of processes; None for one that was lost with the pool."""
    context = get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_study)
    with manager:
        news: Any = manager.Queue()
        ours = set(active_children())
        threads = max(1, cores() // workers)  # however few runs are left: sums may depend on it
        pool = ProcessPoolExecutor(min(workers, len(batches)), context, _prepare, (threads,))
        try:
            futures = {pool.submit(_work, number, batch, news, unfinished): number for number, batch in batches.items()}
            pending: set[Future[list[Outcome]]] = set(futures)
            while pending:
                done, pending = wait(pending, PATIENCE, FIRST_COMPLETED)
                _pass_on(news, begun, told)
                for future in done:
                    lost = isinstance(future.exception(), BrokenProcessPool)
                    yield futures[future], None if lost else future.result()
        except BaseException:  # stopped: what is still playing is of no use to anybody
            for process in set(active_children()) - ours:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _pass_on(news: Any, begun: Counter[int], told: Told) -> None:
    while True:
        try:
            number, round_ = news.get_nowait()
        except Empty:
            return
        if round_ < 0:
            begun[number] += 1
        told(number, max(round_, 0))


def _prepare(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of the process that started us
    _end_with_study()
    require("torch", extra="train").set_num_threads(threads)


def _end_with_study() -> None:
    """End this process when the one that started it does, even by SIGKILL: the next study goes on with its runs."""

    def wait_for(study: Any) -> None:
        study.join()
        os._exit(1)

    Thread(target=wait_for, args=(parent_process(),), daemon=True).start()


def _work(number: int, batch: Batch, news: Any, unfinished: Path) -> list[Outcome]:
    news.put((number, -1))
    return play(batch, lambda round_: news.put((number, round_ + 1)) if round_ % 10 == 9 else None, unfinished)


def on_ray(batches: list[Batch], workers: int, told: Told, unfinished: Path) -> Played:  # noqa: ARG001
    """On a Ray cluster: the one that RAY_ADDRESS names, or one that is started on this machine for the study."""
    ray = require("ray", extra="ray")
    started = not ray.is_initialized()
    if started:
        ray.init(
            num_cpus=None if "RAY_ADDRESS" in os.environ else workers, include_dashboard=False, log_to_driver=False
        )
    try:
        gpu = 1 / DEVICE_WORKERS if ray.cluster_resources().get("GPU") else 0
        work = ray.remote(num_cpus=1, num_gpus=gpu, max_retries=TRIES - 1)(_remote)
        pending = {work.remote(batch): number for number, batch in enumerate(batches)}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1)
            number = pending.pop(done[0])
            told(number, batches[number][0].config.rounds)
            yield number, _fetched(ray, done[0], batches[number])
    finally:
        if started:
            ray.shutdown()


def _remote(batch: Batch) -> list[Outcome]:
    require("torch", extra="train").set_num_threads(1)
    return play(batch, lambda _round: None)


def _fetched(ray: Any, reference: Any, batch: Batch) -> list[Outcome]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return [Outcome(job, [], f"Ray could not play it: {error}") for job in batch]


ENGINES: dict[str, Callable[[list[Batch], int, Told, Path], Played]] = {"local": local, "ray": on_ray}
