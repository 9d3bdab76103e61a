"""Where the batches of a study are played: on processes of this machine, or on a Ray cluster.

An engine takes batches and yields the number and the outcomes of each as it ends; it calls `progress(number, round)`
meanwhile. A process that dies takes none of the others with it: what it was playing is tried once more. Processes of
this machine keep each run that they play alone in the folder `unfinished`, from where it can go on. No process outlives
the study.
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

OnProgress = Callable[[int, int], None]
Played = Iterator[tuple[int, list[Outcome]]]

TRIES = 2
PATIENCE = 0.2  # seconds between two looks at the progress


def local(batches: list[Batch], workers: int, progress: OnProgress, unfinished: Path) -> Played:
    """Play batches on `workers` processes of this machine."""
    left, begun = dict(enumerate(batches)), Counter[int]()
    while left:
        lost: set[int] = set()
        for number, outcomes in _pooled(left, workers, begun, progress, unfinished):
            if outcomes is None:
                lost.add(number)
                continue
            del left[number]
            yield number, outcomes
        for number in [number for number in lost if begun[number] >= TRIES]:
            error = "its process died twice: killed, perhaps for want of memory; try --jobs 1"
            yield number, [Outcome(job, [], error) for job in left.pop(number)]


def _pooled(
    batches: dict[int, Batch], workers: int, begun: Counter[int], progress: OnProgress, unfinished: Path
) -> Iterator[tuple[int, list[Outcome] | None]]:
    """Play batches on a pool of processes; yield None for one whose process died."""
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
                _report_progress(news, begun, progress)
                for future in done:
                    lost = isinstance(future.exception(), BrokenProcessPool)
                    yield futures[future], None if lost else future.result()
        except BaseException:  # stopped: nobody waits for the others
            for process in set(active_children()) - ours:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _report_progress(news: Any, begun: Counter[int], progress: OnProgress) -> None:
    while True:
        try:
            number, round_ = news.get_nowait()
        except Empty:
            return
        if round_ < 0:
            begun[number] += 1
        progress(number, max(round_, 0))


def _prepare(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles Ctrl-C
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


def on_ray(batches: list[Batch], workers: int, progress: OnProgress, unfinished: Path) -> Played:  # noqa: ARG001
    """Play batches on the Ray cluster that RAY_ADDRESS names, or on one started on this machine for the study."""
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
            progress(number, batches[number][0].config.rounds)
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


ENGINES: dict[str, Callable[[list[Batch], int, OnProgress, Path], Played]] = {"local": local, "ray": on_ray}
