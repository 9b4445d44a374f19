"""What every test uses: building, running a command with an end, mpirun with what this machine needs, a small text to
train on and a model trained on it."""
import json
import os
import pathlib
import random
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TANDEM = ROOT / "build" / "tandem"

# A model that takes a few milliseconds a step.
TINY = {"layers": 2, "heads": 2, "channels": 32, "context": 16, "batch_size": 12, "steps": 50, "lr": 2e-3, "warmup": 5,
        "weight_decay": 0.1, "eval_batches": 4}


def mpirun(ranks, *command, threads=1, bind="none"):
    """The command line that runs `command` on so many ranks here, whoever we are and however many cores there are."""
    line = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", bind, "-x", f"OMP_NUM_THREADS={threads}"]
    if os.geteuid() == 0:
        line.insert(1, "--allow-run-as-root")
    return line + [str(word) for word in command]


def run(command, timeout=120, code=0, **options):
    """Runs a command; fails the test if it outlasts `timeout` seconds or does not exit with `code` (None: any)."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", timeout=timeout,
                          cwd=options.pop("cwd", ROOT), **options)
    if code is not None:
        assert done.returncode == code, f"exit {done.returncode}, expected {code}: {' '.join(map(str, command))}\n" \
                                        f"--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-4000:]}"
    return done


def train_command(shards, run_dir, ranks=0, **options):
    """The command line of a training run with TINY's options and those given; ranks 0: one process without mpirun."""
    words = [TANDEM, "train", f"--data={shards}", f"--run-dir={run_dir}"]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in {**TINY, **options}.items()]
    return mpirun(ranks, *words) if ranks else ["env", "OMP_NUM_THREADS=1"] + words


def read_events(run_dir):
    return [json.loads(line) for line in (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def train(shards, run_dir, ranks=0, **options):
    """Trains to the end; the events of metrics.jsonl."""
    run(train_command(shards, run_dir, ranks, **options), timeout=300)
    return read_events(run_dir)


def steps_of(events):
    return [event for event in events if event["event"] == "step"]


def checkpoint_of(run_dir):
    folder = pathlib.Path(run_dir) / "checkpoints"
    return folder / (folder / "latest").read_text().strip()


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """60 kB of words, each followed by one of three: letters are easy to guess from those before, not from their share."""
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefghijklmnop") for _ in range(draw.randint(2, 5))) for _ in range(24)]
    followers = {word: draw.sample(words, 3) for word in words}
    text = [words[0]]
    while len(" ".join(text)) < 60000:
        for _ in range(100):
            text.append(draw.choice(followers[text[-1]]))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(text))
    return path


@pytest.fixture(scope="session")
def shards(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    run([TANDEM, "data", "build", text_file, "--out", folder])
    return folder


@pytest.fixture(scope="session")
def trained(shards, tmp_path_factory):
    """The run folder of a model that has learned the text."""
    folder = tmp_path_factory.mktemp("trained")
    train(shards, folder, steps=400, lr=5e-3, context=32, eval_every=100, checkpoint_every=150, keep=0)
    return folder


COUNTS = {}


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    COUNTS["failed"] = len(stats.get("failed", [])) + len(stats.get("error", []))
    COUNTS["passed"], COUNTS["skipped"] = len(stats.get("passed", [])), len(stats.get("skipped", []))


def pytest_unconfigure():
    """The last line of a run, after pytest's own summary."""
    if COUNTS:
        print("{passed} passed, {failed} failed, {skipped} skipped".format(**COUNTS))
