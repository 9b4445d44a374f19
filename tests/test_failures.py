"""A rank of a training run goes away: the job ends in time, says who is missing, and exits with a code of its own."""
import os
import pathlib
import signal
import subprocess
import time

import pytest

from conftest import ROOT, train_command


def rank_process(launcher, rank):
    """The process id of a rank, among the descendants of mpirun."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and b"OMPI_COMM_WORLD_RANK=%d" % rank in environment:
            return int(folder.name)
    raise AssertionError(f"no rank {rank} of mpirun {launcher}")


def wait_for_steps(run_dir, count, process):
    for _ in range(600):
        metrics = run_dir / "metrics.jsonl"
        if metrics.exists() and metrics.read_text().count('"event":"step"') >= count:
            return
        assert process.poll() is None, "the run ended by itself"
        time.sleep(0.1)
    raise AssertionError("no steps")


@pytest.mark.parametrize("ranks,victim,how,code,named", [
    (2, 1, signal.SIGKILL, 137, "rank 1 "),
    (3, 0, signal.SIGKILL, 137, "rank 0 "),
    (2, 0, signal.SIGSTOP, 5, "nothing heard for 3 s from rank 0 on "),
    (3, 2, signal.SIGSTOP, 5, "nothing heard for 3 s from rank 2 on "),
])
def test_rank_that_goes_away_in_training(shards, tmp_path, ranks, victim, how, code, named):
    command = train_command(shards, tmp_path / "run", ranks, steps=1000000, timeout=3, eval_every=0)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as process:
        try:
            wait_for_steps(tmp_path / "run", 5, process)
            start = time.monotonic()
            os.kill(rank_process(process.pid, victim), how)
            errors = process.communicate(timeout=60)[1]
            assert time.monotonic() - start < 25
        finally:
            process.kill()
    assert process.returncode == code, errors
    assert named in errors
