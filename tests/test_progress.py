"""Progress in a file or a pipe: seen while the work goes on, and never a flood."""

import io
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests import processes

from cyber0.progress import NEWS, QUIET, Lines, Progress

SMALL = ["--source", "embedded", "--clients", "6", "--byzantine", "1", "--directions", "8", "--device", "cpu"]


SOON = """
from cyber0 import progress
from cyber0.cli import main
progress.NEWS, progress.QUIET = 0.5, 2.0
main()
"""


@contextmanager
def started(*arguments):
    """Run the command with its output on a pipe and lines that are due sooner; it does not outlive the test."""
    process = processes.Popen(["-c", SOON, *map(str, arguments)], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_says_how_far_it_is_before_it_ends():
    with started("run", *SMALL, "--rounds", 1_000_000, "--rule", "krum", "--attack", "sf") as process:
        assert "6 clients, 1 of them may lie, rule krum, attack sf, 1,000,000 rounds" in process.stdout.readline()
        assert process.stdout.readline().startswith("0 of 1,000,000 rounds, accuracy 10.0%, loss 2.303, 0.0 kB sent")
        assert process.stdout.readline().startswith("1,000,000 rounds will take about ")
        later = process.stdout.readline()
        assert later.split(" rounds")[0].endswith("0 of 1,000,000")
        assert later.rstrip().endswith("left")
        assert process.poll() is None


def test_a_study_says_how_far_it_is_before_it_ends(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'title = "Two lengths"\nseeds = 1\n[base]\nsource = "embedded"\nclients = 6\nbyzantine = 1\ndirections = 4\n'
        "[axes]\nrounds = [2, 1000000]\n"
    )
    with started("study", recipe, "--out", tmp_path / "out", "--jobs", 1, "--device", "cpu") as process:
        assert process.stdout.readline() == "Two lengths: 2 runs to play, in 2 batches\n"
        assert any(line.startswith("2: best accuracy ") for line in process.stdout)
        assert process.stdout.readline().startswith("all runs: ")
        assert process.poll() is None


@contextmanager
def lines_of(total):
    now, file = SimpleNamespace(seconds=0.0), io.StringIO()
    yield now, file, Lines(Console(file=file), "work", total, clock=lambda: now.seconds)


@given(steps=st.lists(st.tuples(st.floats(0, 30), st.booleans()), min_size=1, max_size=60))
def test_lines_are_neither_many_nor_late(steps):
    with lines_of(total=len(steps) + 1) as (now, file, lines):
        printed, seen = [0.0], 0
        for done, (wait, news) in enumerate(steps, 1):
            now.seconds += wait
            lines.update(done, news=news)
            if file.getvalue().count("\n") > seen:
                seen += 1
                printed.append(now.seconds)
            assert now.seconds - printed[-1] < QUIET
        assert seen == file.getvalue().count("\n")
        assert seen <= now.seconds / NEWS + 1


def test_the_last_news_is_printed_and_says_how_long_it_took():
    with lines_of(total=4) as (now, file, lines):
        for done in range(5):
            lines.update(done, f"loss {4 - done}", news=True)
            now.seconds += 1
        assert file.getvalue() == "work: 0 of 4 rounds, loss 4, 0 s\nwork: 4 of 4 rounds, loss 0, 4 s\n"


def test_time_left_does_not_count_what_was_done_before():
    with lines_of(total=1000) as (now, file, lines):
        lines.update(900)
        now.seconds = QUIET
        lines.update(950)
        assert file.getvalue() == "work: 950 of 1,000 rounds, 20 s, about 20 s left\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_short_work_leaves_no_line(terminal):
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=terminal, width=80), "replaying", 3) as progress:
        for done in range(3):
            progress.update(done + 1, total=3)
    text = file.getvalue()
    assert ("3 of 3 rounds" in text) == terminal  # a bar that vanishes
    assert terminal or text == ""
