"""What ends a run early: mistakes, signals, divergence. Each with its exit code, one message, nothing half-written."""
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

import pytest

from conftest import TANDEM, checkpoint_of, mpirun, read_events, run, steps_of, train, train_command

USAGE, DIVERGED, STOPPED = 2, 3, 75


def refusal(shards, run_dir, ranks, *words, **options):
    """The one line that a refused run says, on any number of ranks."""
    done = run(train_command(shards, run_dir, ranks, **options) + list(words), code=USAGE)
    lines = [line for line in done.stderr.splitlines() if line.startswith("tandem train: ")]
    assert len(lines) == 1 and done.stdout.count("step ") == 0, done.stderr
    return lines[0]


def damaged(shards, tmp_path, change):
    """A copy of the shards whose training tokens `change` has rewritten."""
    copy = shutil.copytree(shards, tmp_path / "damaged")
    path = copy / "train-00000.bin"
    path.write_bytes(change(bytearray(path.read_bytes())))
    return copy


def with_vocabulary(vocab):
    def change(data):
        data[24:28] = struct.pack("<I", vocab)
        return data
    return change


DAMAGE = {
    "magic": (lambda data: b"NOTSHARD" + data[8:], "train-00000.bin"),
    "truncated": (lambda data: data[:-5], "train-00000.bin"),
    "header cut": (lambda data: data[:20], "train-00000.bin"),
    "empty": (lambda data: b"", "train-00000.bin"),
    "token outside": (with_vocabulary(100), "100"),
    "too short": (lambda data: data[:16] + struct.pack("<Q", 180) + data[24:64 + 180], "180"),
}


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("kind", DAMAGE)
def test_bad_data(shards, tmp_path, kind, ranks):
    change, word = DAMAGE[kind]
    assert word in refusal(damaged(shards, tmp_path, change), tmp_path / "run", ranks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ranks", [0, 3])
def test_no_data(shards, tmp_path, ranks):
    assert str(tmp_path / "none") in refusal(tmp_path / "none", tmp_path / "run", ranks)
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refusal(tmp_path / "empty", tmp_path / "run", ranks)
    only_train = shutil.copytree(shards, tmp_path / "only")
    (only_train / "validation-00000.bin").unlink()
    assert "validation" in refusal(only_train, tmp_path / "run", ranks)
    assert not (tmp_path / "run").exists()


MISTAKES = [
    ({"batch_size": 13}, 3, "--batch-size 13 does not split over 3 replicas; expected a multiple of 3, such as 15"),
    ({"dp": 2}, 3, "--dp 2 x --pp 1 does not fit 3 ranks: expected replicas x stages"),
    ({"dp": 2}, 0, "--dp 2 x --pp 1 does not fit 1 rank: expected replicas x stages"),
    ({"micro_batch": 5}, 0, "--micro-batch 5 does not divide a replica's share of the batch, 12"),
    ({"micro_batch": 100}, 3, "--micro-batch 100 does not divide a replica's share of the batch, 4"),
    ({"heads": 5}, 3, "--heads 5 does not divide --channels 32"),
    ({"vocab": 7}, 3, "--vocab 7 is smaller than the data's vocabulary 256"),
    ({"context": 60000}, 0, "context"),
    ({"stepps": 7}, 3, "option 'stepps' is not known; did you mean 'steps'"),
    ({"steps": "many"}, 3, "--steps: found 'many', expected a whole number from 1"),
    ({"lr": "nan"}, 0, "--lr: found 'nan', expected a number"),
    ({"optimizer": "adam"}, 3, "did you mean 'adamw'"),
    ({"config": "/nowhere/options"}, 3, "option file '/nowhere/options' cannot be read: No such file"),
    ({"device": "cuda"}, 3, "cuda"),
]


@pytest.mark.parametrize("options,ranks,message", MISTAKES)
def test_bad_options(shards, tmp_path, options, ranks, message):
    assert message in refusal(shards, tmp_path / "run", ranks, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ranks", [0, 3])
def test_words_that_are_no_options(shards, tmp_path, ranks):
    assert "found 'word'" in refusal(shards, tmp_path / "run", ranks, "word")
    assert "'--data' needs a value" in refusal(shards, tmp_path / "run", ranks, "--data")


@pytest.mark.parametrize("ranks", [0, 3])
def test_run_folders_that_cannot_be_used(shards, tmp_path, ranks):
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in refusal(shards, tmp_path / "file", ranks)
    assert str(tmp_path / "file") in refusal(shards, tmp_path / "file" / "run", ranks)
    assert "/proc/none" in refusal(shards, "/proc/none", ranks)
    assert "name is empty" in refusal(shards, "", ranks)
    assert "longer than" in refusal(shards, "x" * 1000, ranks)
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    assert "metrics.jsonl' cannot be written" in refusal(shards, tmp_path / "run", ranks)


@pytest.mark.parametrize("ranks", [0, 3])
def test_divergence(shards, tmp_path, ranks):
    """Also where only one rank sees it first: all stop at the same step, and the model saved before stays."""
    done = run(train_command(shards, tmp_path, ranks, lr=1e6, clip=0, warmup=3, optimizer="sgd", checkpoint_every=1),
               code=DIVERGED)
    events = read_events(tmp_path)
    last = steps_of(events)[-1]
    assert f"step {last['step']}: the loss is" in done.stderr and done.stderr.count("training has diverged") == 1
    assert last["loss"] is None or last["grad_norm"] is None
    assert events[-1]["event"] == "end" and events[-1]["reason"] == "diverged"
    assert checkpoint_of(tmp_path).name == f"step-{last['step'] - 1:08}"


def rank_of(process, rank):
    """The process of a rank that this mpirun has started."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            mine = parent == process.pid and f"OMPI_COMM_WORLD_RANK={rank}\0" in (entry / "environ").read_text()
        except OSError:
            continue
        if mine:
            return int(entry.name)
    raise AssertionError(f"no rank {rank}")


def stop_by(number, command, run_dir, only_rank=None):
    """Sends a signal once three steps are recorded, to the command or to one rank alone; the finished process."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        metrics, end = run_dir / "metrics.jsonl", time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count('"event":"step"') >= 3):
            assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
            time.sleep(0.02)
        os.kill(process.pid if only_rank is None else rank_of(process, only_rank), number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize("number,ranks,only_rank", [
    (signal.SIGUSR1, 0, None), (signal.SIGTERM, 0, None), (signal.SIGINT, 0, None), (signal.SIGUSR1, 3, None),
    (signal.SIGTERM, 3, 2)])
def test_signals_save_and_stop(shards, tmp_path, number, ranks, only_rank):
    done = stop_by(number, train_command(shards, tmp_path, ranks, steps=10 ** 12), tmp_path, only_rank)
    assert done.returncode == STOPPED, done.stderr
    events = read_events(tmp_path)
    last = steps_of(events)[-1]["step"]
    assert events[-1]["event"] == "end" and events[-1]["reason"] == "signal" and events[-1]["steps"] == last
    assert f"stopped by a signal after step {last}" in done.stderr
    assert checkpoint_of(tmp_path).name == f"step-{last:08}"
    run([TANDEM, "generate", "--checkpoint", tmp_path, "--tokens=3", "--threads=1"])


def test_a_full_disk_keeps_the_earlier_model(shards, tmp_path):
    """Files may grow to 100 kB, less than the model: training ends with a code of its own."""
    train(shards, tmp_path, steps=2)
    before = checkpoint_of(tmp_path), (checkpoint_of(tmp_path) / "model.safetensors").read_bytes()
    command = ["bash", "-c", 'trap "" XFSZ; ulimit -f 100; exec "$@"', "bash"] + \
        [str(word) for word in train_command(shards, tmp_path, steps=3)]
    done = run(command, code=4)
    assert "the checkpoint could not be saved" in done.stderr and "File too large" in done.stderr
    assert (checkpoint_of(tmp_path), (checkpoint_of(tmp_path) / "model.safetensors").read_bytes()) == before
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000002"]


def warnings_of(command, cores):
    """What a run on these cores warns of."""
    done = run(["taskset", "-c", ",".join(map(str, cores)), *command])
    return [line for line in done.stderr.splitlines() if "warning:" in line]


def test_too_many_threads_are_told_with_the_remedy(shards, tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    count = len(cores)
    many = warnings_of(train_command(shards, tmp_path, steps=1, threads=8), cores)
    assert len(many) == 1 and "8 threads compute on" in many[0] and f"set --threads {count}" in many[0]
    assert warnings_of(train_command(shards, tmp_path, steps=1, threads=1), cores) == []
    words = [TANDEM, "train", f"--data={shards}", f"--run-dir={tmp_path}", "--steps=1", "--threads=2", "--batch-size=12",
             "--eval-batches=1"]
    unbound = warnings_of(mpirun(4, *words), cores)
    assert len(unbound) == 1 and f"8 threads (4 ranks x 2) compute on {count} core" in unbound[0]
    assert "start fewer ranks" in unbound[0] and "so do 3 ranks more" in unbound[0]


def test_too_many_threads_for_bound_ranks_are_told_what_to_give_mpirun(shards, tmp_path):
    show = ["python3", "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("ranks bound to a core each need two")
    cores = int(run(mpirun(2, *show, bind="core")).stdout.split()[0])
    words = [TANDEM, "train", f"--data={shards}", f"--run-dir={tmp_path}", "--steps=1", f"--threads={2 * cores}",
             "--batch-size=4", "--eval-batches=1"]
    lines = [line for line in run(mpirun(2, *words, bind="core")).stderr.splitlines() if "warning:" in line]
    assert len(lines) == 1 and "this rank is bound to" in lines[0] and "so do 1 rank more" in lines[0]
    assert f"--map-by slot:PE={2 * cores} or --bind-to none, or set --threads {cores}" in lines[0]
