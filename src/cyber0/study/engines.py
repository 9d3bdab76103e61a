"""Play the batches of a study: on processes of this machine, or on a Ray cluster.

An engine takes batches, yields the number and the outcomes of each when it ends, and calls `progress(number, round)`
meanwhile. If a process dies, the others go on, and its batch is tried once more. On this machine, a run that is played
alone is kept in the folder `unfinished`, from where it can be resumed. No process outlives the study.
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
from cyber0.threads import limit_threads, share_of_cores

__all__ = ["ENGINES", "local", "on_ray"]

OnProgress = Callable[[int, int], None]
Finished = Iterator[tuple[int, list[Outcome]]]

TRIES = 2
POLL_SECONDS = 0.2


def local(batches: list[Batch], workers: int, progress: OnProgress, unfinished: Path) -> Finished:
    """Play batches on `workers` processes of this machine."""
    left, started = dict(enumerate(batches)), Counter[int]()
    while left:
        lost, before = set[int](), started.total()
        for number, outcomes in _play_on_pool(left, workers, started, progress, unfinished):
            if outcomes is None:
                lost.add(number)
                continue
            del left[number]
            yield number, outcomes
        if started.total() == before:  # no process came so far as to begin one
            started.update(lost)
        for number in [number for number in lost if started[number] >= TRIES]:
            error = "its process died twice, perhaps because memory ran out: try --jobs 1"
            yield number, [Outcome(job, [], error) for job in left.pop(number)]


def _play_on_pool(
    batches: dict[int, Batch], workers: int, started: Counter[int], progress: OnProgress, unfinished: Path
) -> Iterator[tuple[int, list[Outcome] | None]]:
    """Play batches on a pool of processes; yield None for one whose process died."""
    context = get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_study)
    with manager:
        queue: Any = manager.Queue()
        ours = set(active_children())
        threads = share_of_cores(workers)  # not more if few runs are left: sums may depend on it
        pool = ProcessPoolExecutor(min(workers, len(batches)), context, _prepare, (threads,))
        try:
            futures = {
                pool.submit(_work, number, batch, queue, unfinished): number for number, batch in batches.items()
            }
            pending: set[Future[list[Outcome]]] = set(futures)
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                _report_progress(queue, started, progress)
                for future in done:
                    lost = isinstance(future.exception(), BrokenProcessPool)
                    yield futures[future], None if lost else future.result()
        except BaseException:  # stopped: do not wait for the other batches
            for process in set(active_children()) - ours:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _report_progress(queue: Any, started: Counter[int], progress: OnProgress) -> None:
    while True:
        try:
            number, round_ = queue.get_nowait()
        except Empty:
            return
        if round_ < 0:
            started[number] += 1
        progress(number, max(round_, 0))


def _prepare(threads: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles Ctrl-C
    _end_with_study()
    if threads is not None:
        require("torch", extra="train").set_num_threads(threads)
        limit_threads(threads)


def _end_with_study() -> None:
    """End this process when the one that started it ends, even by SIGKILL, so that a next study can take its runs."""

    def wait_for(study: Any) -> None:
        study.join()
        os._exit(1)

    Thread(target=wait_for, args=(parent_process(),), daemon=True).start()


def _work(number: int, batch: Batch, queue: Any, unfinished: Path) -> list[Outcome]:
    queue.put((number, -1))
    return play(batch, lambda round_: queue.put((number, round_ + 1)) if round_ % 10 == 9 else None, unfinished)


def on_ray(batches: list[Batch], workers: int, progress: OnProgress, unfinished: Path) -> Finished:  # noqa: ARG001
    """Play batches on the Ray cluster that RAY_ADDRESS names, or on one started on this machine for the study."""
    ray = require("ray", extra="ray")
    started = not ray.is_initialized()
    if started:
        ray.init(
            num_cpus=None if "RAY_ADDRESS" in os.environ else workers, include_dashboard=False, log_to_driver=False
        )
    try:
        gpu = 1 / DEVICE_WORKERS if ray.cluster_resources().get("GPU") else 0
        work = ray.remote(num_cpus=1, num_gpus=gpu, max_retries=TRIES - 1)(_play_remotely)
        pending = {work.remote(batch): number for number, batch in enumerate(batches)}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1)
            number = pending.pop(done[0])
            progress(number, batches[number][0].config.rounds)
            yield number, _fetch(ray, done[0], batches[number])
    finally:
        if started:
            ray.shutdown()


def _play_remotely(batch: Batch) -> list[Outcome]:
    require("torch", extra="train").set_num_threads(1)
    limit_threads(1)
    return play(batch, lambda _round: None)


def _fetch(ray: Any, reference: Any, batch: Batch) -> list[Outcome]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return [Outcome(job, [], f"Ray could not play it: {error}") for job in batch]


ENGINES: dict[str, Callable[[list[Batch], int, OnProgress, Path], Finished]] = {"local": local, "ray": on_ray}
