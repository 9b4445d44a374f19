"""Checkpoints of the whole state, and going on from them: bit for bit on as many ranks, with nothing lost on others."""
import array
import json
import shutil
import signal
import subprocess
import time

import pytest

from conftest import TANDEM, checkpoint_of, read_events, run, steps_of, train, train_command
from test_train_mistakes import refusal, stop_by

USAGE, CHECKPOINT, STOPPED = 2, 4, 75


def tensors_of(path):
    """name -> values of a safetensors file of float32 (and int32)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return {name: array.array({"F32": "f", "I32": "i"}[entry["dtype"]], data[8 + length:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def numbers_of(checkpoint):
    return json.loads((checkpoint / "training.json").read_text())["numbers"]


def assert_same_state(one, other, timed=()):
    """Every byte of every tensor, and every number but those that are times."""
    names = sorted(path.name for path in one.glob("*.safetensors"))
    assert names == sorted(path.name for path in other.glob("*.safetensors")) and len(names) >= 2
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    numbers = [{key: value for key, value in numbers_of(folder).items() if key not in timed} for folder in (one, other)]
    assert numbers[0] == numbers[1]


def curve(events, first):
    return [[step[field] for field in ("step", "loss", "accuracy", "grad_norm", "lr", "interval")]
            for step in steps_of(events) if step["step"] > first]


SMALL_BUCKETS = {"bucket_mib": 0.02}
CASES = {
    "one rank": (0, 7, {"dropout": 0.1, "micro_batch": 4}),
    "sgd": (2, 7, {"optimizer": "sgd", "lr": 0.1, "dropout": 0.1}),
    "wsd": (3, 11, {"lr_schedule": "wsd", "dropout": 0.1, "micro_batch": 2}),
    "linear, untied": (2, 3, {"lr_schedule": "linear", "tie_embeddings": "off"}),
    "epochs": (2, 5, {"batch_size": 120, "context": 64, "steps": 9}),
    "covap": (2, 8, {"compress": "covap", "interval": 3, "dropout": 0.1}),
    "covap, zero": (3, 7, {"compress": "covap", "interval": 3, "covap_dropped": "zero", "ef_initial": 0.3, "ef_period": 2}),
    "covap, first steps": (2, 1, {"compress": "covap", "interval": 4, "clip": 0.5, "steps": 8}),
    "covap, auto": (2, 11, {"compress": "covap", "interval": "auto"}),
    "accumulate": (2, 7, {"compress": "accumulate", "interval": 4}),
    "topk": (2, 7, {"compress": "topk", **SMALL_BUCKETS}),
    "randomk": (3, 7, {"compress": "randomk", **SMALL_BUCKETS}),
    "dgc": (3, 7, {"compress": "dgc", "optimizer": "sgd", "momentum": 0.5, "compress_start": 9, **SMALL_BUCKETS}),
    "efsignsgd": (2, 7, {"compress": "efsignsgd", **SMALL_BUCKETS}),
    "powersgd": (3, 7, {"compress": "powersgd", "rank": 2, "compress_start": 3}),
    "oktopk": (3, 7, {"compress": "oktopk", "density": 0.05, **SMALL_BUCKETS}),
    "qsgd": (2, 7, {"compress": "qsgd"}),
    "bf16": (2, 7, {"compress": "bf16"}),
    "fp16 numbers": (2, 7, {"precision": "fp16", "loss_scale_window": 3, "initial_loss_scale": 1 << 30}),
    "bf16 numbers": (2, 7, {"precision": "bf16", "compress": "covap", "interval": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_bit_for_bit(shards, tmp_path, case):
    """From a checkpoint in its middle; and what is loaded is what is saved again, byte for byte."""
    ranks, middle, options = CASES[case]
    options = {"steps": 14, "eval_every": 5, **options}
    expected = train(shards, tmp_path / "whole", ranks, checkpoint_every=middle, keep=0, **options)
    saved = tmp_path / "whole" / "checkpoints" / f"step-{middle:08}"
    found = train(shards, tmp_path / "rest", ranks, resume=saved, **options)
    assert curve(found, 0) == curve(expected, middle)
    assert found[0]["event"] == "resume" and found[0]["step"] == middle
    evaluations = [[event["val_loss"] for event in events if event["event"] == "eval" and event["step"] > middle]
                   for events in (found, expected)]
    assert evaluations[0] == evaluations[1] != []
    assert_same_state(checkpoint_of(tmp_path / "rest"), checkpoint_of(tmp_path / "whole"))
    train(shards, tmp_path / "again", ranks, resume=saved, **{**options, "steps": middle, "eval_every": 0})
    assert_same_state(checkpoint_of(tmp_path / "again"), saved)


def test_a_tuner_goes_on_in_the_middle_of_its_measurement(shards, tmp_path):
    options = {"compress": "covap", "interval": "auto", "steps": 6}
    train(shards, tmp_path / "whole", 2, **options)
    train(shards, tmp_path / "again", 2, resume=tmp_path / "whole", **options)
    numbers = numbers_of(checkpoint_of(tmp_path / "again"))
    assert numbers["tuner_measuring"] == [1] and 0 < numbers["tuner_samples"][0] < 7
    assert_same_state(checkpoint_of(tmp_path / "again"), checkpoint_of(tmp_path / "whole"))


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_stopped_run_goes_on_in_its_folder(shards, tmp_path, ranks):
    """Stopped by a signal, at whatever step: each step is recorded once, and the end is that of a run in one piece."""
    options = {"steps": 300, "eval_every": 50, "compress": "covap", "interval": 3}
    train(shards, tmp_path / "whole", ranks, **options)
    done = stop_by(signal.SIGUSR1, train_command(shards, tmp_path / "run", ranks, **options), tmp_path / "run")
    assert done.returncode == STOPPED, done.stderr
    train(shards, tmp_path / "run", ranks, resume="auto", **options)
    found, expected = (read_events(tmp_path / name) for name in ("run", "whole"))
    assert curve(found, 0) == curve(expected, 0)
    kinds = [event["event"] for event in found]
    assert kinds.count("start") == kinds.count("resume") == kinds.count("end") == 1 and kinds[-1] == "end"
    assert [event["step"] for event in found if event["event"] == "eval"] == [50, 100, 150, 200, 250, 300]
    assert found[-1]["val_loss"] == expected[-1]["val_loss"] and found[-1]["steps"] == 300
    assert_same_state(checkpoint_of(tmp_path / "run"), checkpoint_of(tmp_path / "whole"))


def test_auto_begins_a_run_and_ends_one(shards, tmp_path):
    events = train(shards, tmp_path, resume="auto", steps=4)
    assert events[0]["event"] == "start"
    again = train(shards, tmp_path, resume="auto", steps=4)
    assert steps_of(again) == steps_of(events) and again[-1]["reason"] == "finished"
    assert again[-1]["val_loss"] == events[-1]["val_loss"]


def test_lines_behind_the_checkpoint_are_cut_off(shards, tmp_path):
    expected = train(shards, tmp_path, steps=12, checkpoint_every=5, keep=0, eval_every=4)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"event":"step","st')
    found = train(shards, tmp_path, steps=12, resume=tmp_path / "checkpoints" / "step-00000005", eval_every=4)
    assert curve(found, 0) == curve(expected, 0)
    assert [event["step"] for event in found if event["event"] == "eval"] == [4, 8, 12]


def sum_over_ranks(checkpoint, ending):
    """Of all rank files, by tensor."""
    total = {}
    for path in sorted(checkpoint.glob("rank-*.safetensors")):
        for name, values in tensors_of(path).items():
            if name.endswith(ending):
                total[name] = [a + b for a, b in zip(total.get(name, [0.0] * len(values)), values)]
    return total


@pytest.mark.parametrize("before,after", [(2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("compress", ["covap", "topk", "dgc", "powersgd", "oktopk"])
def test_other_ranks_take_over_what_was_held_back(shards, tmp_path, compress, before, after):
    options = {"compress": compress, "interval": 3, "compress_start": 2, "rank": 2, **SMALL_BUCKETS}
    train(shards, tmp_path / "before", before, steps=7, **options)
    done = run(train_command(shards, tmp_path / "after", after, resume=tmp_path / "before", steps=7, **options))
    folders = [checkpoint_of(tmp_path / name) for name in ("before", "after")]
    assert len(list(folders[1].glob("rank-*"))) == after
    for ending in [".residual", ".momentum"] if compress == "dgc" else [".residual"]:
        sums = [sum_over_ranks(folder, ending) for folder in folders]
        assert sums[0].keys() == sums[1].keys() != set()
        for name, values in sums[0].items():
            largest = max(map(abs, values))
            assert sums[1][name] == pytest.approx(values, rel=1e-6, abs=3e-7 * largest)
        assert max(max(map(abs, values)) for values in sums[0].values()) > 0
    assert ("starts anew" in done.stderr) == (compress == "oktopk")
    for name in ("model", "optimizer"):
        assert tensors_of(folders[0] / f"{name}.safetensors") == tensors_of(folders[1] / f"{name}.safetensors")


@pytest.mark.parametrize("compress", ["none", "covap"])
def test_training_goes_on_on_other_ranks(shards, tmp_path, compress):
    """Without compression to rounding; with it along the same curve."""
    options = {"compress": compress, "interval": 2, "steps": 60, "warmup": 5}
    whole = train(shards, tmp_path / "whole", 2, checkpoint_every=30, keep=0, **options)
    saved = tmp_path / "whole" / "checkpoints" / "step-00000030"
    for ranks in 3, 0:
        found = train(shards, tmp_path / str(ranks), ranks, resume=saved, **options)
        tolerance = 1e-5 if compress == "none" else 0.02
        for a, b in zip(curve(found, 0), curve(whole, 30), strict=True):
            assert a[:2] == [b[0], pytest.approx(b[1], rel=tolerance)]


DIFFERENT = [({"channels": 64}, "--channels is 64", "began with 32"), ({"seed": 7}, "--seed is 7", "began with 1337"),
             ({"batch_size": 24}, "--batch-size is 24", "began with 12"), ({"optimizer": "sgd"}, "--optimizer is sgd", "adamw"),
             ({"compress": "covap"}, "--compress is covap", "none"), ({"tie_embeddings": "off"}, "--tie-embeddings is false", "true"),
             ({"vocab": 300}, "vocabulary is 300", "256"), ({"steps": 2}, "at least that, found 2", "step 3")]


@pytest.fixture(scope="module")
def saved_run(shards, tmp_path_factory):
    """A run with checkpoints of steps 3 and 6 that have every kind of file, on two ranks."""
    folder = tmp_path_factory.mktemp("saved")
    train(shards, folder, 2, steps=6, checkpoint_every=3, compress="powersgd", compress_start=1, rank=2)
    return folder


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_run_cannot_go_on_as_another(shards, tmp_path, ranks):
    train(shards, tmp_path / "run", steps=3)
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    for options, found, expected in DIFFERENT[:2] if ranks else DIFFERENT:
        said = refusal(shards, tmp_path / "run", ranks, **{"steps": 4, "resume": "auto", **options})
        assert found in said and expected in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    train(shards, tmp_path / "run", ranks, resume="auto", steps=5, eval_every=2, micro_batch=2, lr=1e-3, log_every=1)


def test_other_data_are_refused(shards, tmp_path):
    train(shards, tmp_path / "run", steps=3)
    copy = shutil.copytree(shards, tmp_path / "copy")
    train(copy, tmp_path / "run", resume="auto", steps=4)
    path = copy / "train-00000.bin"
    data = bytearray(path.read_bytes())
    data[64:64 + 16] = bytes([data[64] ^ 1]) * 16
    path.write_bytes(data)
    said = refusal(copy, tmp_path / "run", 0, resume="auto", steps=5)
    assert str(copy) in said and "fingerprint" in said


def test_folders_without_a_checkpoint_are_told(shards, tmp_path):
    assert "no checkpoint in" in refusal(shards, tmp_path / "run", 3, resume=tmp_path / "none")
    train(shards, tmp_path / "run", steps=3)
    (checkpoint_of(tmp_path / "run") / "training.json").unlink()
    assert "no training.json" in refusal(shards, tmp_path / "run", 3, resume="auto")
    (tmp_path / "run" / "checkpoints" / "latest").unlink()
    assert "step-00000003 lies there" in refusal(shards, tmp_path / "run", 3, resume="auto")


def flip(data):
    data[len(data) // 2] ^= 4
    return data


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda data: b"", None], ids=["bit", "cut", "empty", "gone"])
def test_damage_to_any_file_is_noticed(shards, saved_run, tmp_path, damage):
    """The message names the older whole checkpoint, and the run goes on from that; nothing falls back by itself."""
    names = sorted(path.name for path in checkpoint_of(saved_run).iterdir())
    assert names == ["compressor.safetensors", "config.json", "model.safetensors", "optimizer.safetensors",
                     "rank-00000.safetensors", "rank-00001.safetensors", "training.json"]
    options = {"steps": 7, "compress": "powersgd", "compress_start": 1, "rank": 2}
    for name in names:
        copy = shutil.copytree(saved_run, tmp_path / name)
        path = checkpoint_of(copy) / name
        if damage:
            path.write_bytes(damage(bytearray(path.read_bytes())))
        else:
            path.unlink()
        said = refusal(shards, copy, 2 if damage is flip else 0, resume="auto", **options)
        whole = copy / "checkpoints" / "step-00000003"
        if name == "config.json" and not damage:
            assert "not a checkpoint" in said
        elif name == "training.json" and not damage:
            assert "no training.json" in said
        else:
            assert name in said and f"--resume {whole}" in said, said
        code = 2 if damage and name in ("config.json", "model.safetensors", "training.json") else None
        if code:
            done = run([TANDEM, "generate", "--checkpoint", copy, "--tokens=1"], code=code)
            assert name in done.stderr and f"--checkpoint {whole}" in done.stderr and done.stderr.count("\n") == 1
    train(shards, copy, 2, resume=copy / "checkpoints" / "step-00000003", **options)


@pytest.mark.parametrize("keep,expected", [(0, [2, 4, 6, 8, 9]), (1, [9]), (2, [8, 9]), (3, [6, 8, 9])])
def test_the_newest_are_kept(shards, tmp_path, keep, expected):
    train(shards, tmp_path, 2, steps=9, checkpoint_every=2, keep=keep)
    found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert found == ["latest"] + [f"step-{step:08}" for step in expected]


def test_keep_leaves_checkpoints_of_other_runs(shards, tmp_path):
    """A resumed run goes on counting its own; one that starts anew says so, and removes none that it has not written."""
    train(shards, tmp_path, steps=6, checkpoint_every=2, keep=0)
    train(shards, tmp_path, steps=8, checkpoint_every=2, keep=2, resume="auto")
    names = [path.name for path in (tmp_path / "checkpoints").glob("step-*")]
    assert sorted(names) == ["step-00000006", "step-00000008"]
    done = run(train_command(shards, tmp_path, steps=3, checkpoint_every=1, keep=1))
    assert "starts anew beside the checkpoints of an earlier one" in done.stderr
    names = [path.name for path in (tmp_path / "checkpoints").glob("step-*")]
    assert sorted(names) == ["step-00000003", "step-00000006", "step-00000008"]
    assert checkpoint_of(tmp_path).name == "step-00000003"


def start(command):
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, errors="replace")


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
        time.sleep(0.005)


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_run_killed_while_it_writes_leaves_the_checkpoint_before(shards, tmp_path, ranks):
    """kill -9 at a moment when a half-written checkpoint lies beside; then the run goes on as if nothing had been."""
    options = {"channels": 128, "steps": 10 ** 6, "lr_schedule": "constant", "checkpoint_every": 1}
    folder = tmp_path / "checkpoints"
    process = start(train_command(shards, tmp_path, ranks, **options))
    try:
        wait_for(lambda: (folder / "latest").exists() and any(folder.glob("*.tmp/optimizer.safetensors")), process)
    finally:
        subprocess.run(["pkill", "-9", "-P", str(process.pid)], check=False)  # the ranks, where mpirun has started them
        process.kill()
        process.wait()
    step = int(checkpoint_of(tmp_path).name[5:])
    events = train(shards, tmp_path, ranks, **{**options, "resume": "auto", "steps": step + 3})
    assert [event["step"] for event in steps_of(events)] == list(range(1, step + 4))
    assert not list(folder.glob("*.tmp"))
    train(shards, tmp_path / "whole", ranks, **{**options, "steps": step + 3, "checkpoint_every": 0})
    assert_same_state(checkpoint_of(tmp_path), checkpoint_of(tmp_path / "whole"))


@pytest.fixture
def small_disk(tmp_path):
    """A run folder whose checkpoints/ is a disk of 1 MB."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    yield tmp_path / "run"
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_full_disk_ends_the_run_and_keeps_the_checkpoint_before(shards, small_disk, tmp_path, ranks):
    """One checkpoint takes 420 kB of a disk of 1 MB; the third does not fit."""
    done = run(train_command(shards, small_disk, ranks, steps=10, checkpoint_every=3, keep=0), code=CHECKPOINT)
    assert done.stderr.count("could not be saved") == 1 and "No space left on device" in done.stderr
    names = sorted(path.name for path in (small_disk / "checkpoints").iterdir())
    assert names == ["latest", "step-00000003", "step-00000006"] and checkpoint_of(small_disk).name == "step-00000006"
    train(shards, tmp_path / "elsewhere", ranks, resume=small_disk, steps=7)


def test_a_folder_that_becomes_unwritable(shards, small_disk):
    """Remounted read-only in the middle of a run, at a moment when nothing is being written."""
    folder = small_disk / "checkpoints"
    process = start(train_command(shards, small_disk, 2, steps=10 ** 6, checkpoint_every=30, keep=1, log_every=10 ** 6))
    try:
        wait_for((folder / "latest").exists, process)
        wait_for(lambda: subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True).returncode == 0, process)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        subprocess.run(["mount", "-o", "remount,rw", folder], check=False)
    assert process.returncode == CHECKPOINT and said.count("could not be saved") == 1 and "Read-only" in said
    generated = run([TANDEM, "generate", "--checkpoint", small_disk, "--tokens=3", "--threads=1"])
    assert len(generated.stdout) > 3


@pytest.mark.parametrize("ranks", [0, 3])
def test_usr2_saves_and_goes_on(shards, tmp_path, ranks):
    process = start(train_command(shards, tmp_path, ranks, steps=10 ** 6, lr_schedule="constant"))
    try:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and len(steps_of_whole_lines(tmp_path)) >= 3, process)
        assert not (tmp_path / "checkpoints" / "latest").exists()
        process.send_signal(signal.SIGUSR2)
        wait_for((tmp_path / "checkpoints" / "latest").exists, process)
        saved = int(checkpoint_of(tmp_path).name[5:])
        wait_for(lambda: len(steps_of_whole_lines(tmp_path)) > saved + 5, process)
        process.send_signal(signal.SIGUSR1)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == STOPPED, said
    assert int(checkpoint_of(tmp_path).name[5:]) > saved


def steps_of_whole_lines(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().split("\n")[:-1]
    return [line for line in lines if line.startswith('{"event":"step"')]


def test_a_signal_during_an_evaluation_is_not_left_waiting(shards, tmp_path):
    """The evaluation after the first step takes long; the run ends behind it, without another step."""
    options = {"steps": 10 ** 6, "eval_every": 1, "eval_batches": 0, "channels": 128, "batch_size": 2}
    process = start(train_command(shards, tmp_path, 2, **options))
    try:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and steps_of_whole_lines(tmp_path), process)
        process.send_signal(signal.SIGUSR1)
        said = process.communicate(timeout=100)[1]
    finally:
        process.kill()
    assert process.returncode == STOPPED, said
    events = read_events(tmp_path)
    assert [event["event"] for event in events if event["event"] != "buckets"][-2:] == ["eval", "end"]
    assert checkpoint_of(tmp_path).name == f"step-{steps_of(events)[-1]['step']:08}"


def test_signals_do_not_disturb_what_computes(shards, tmp_path):
    """Thousands of them: each would find the thread that computes somewhere else, if it got there."""
    process = start(train_command(shards, tmp_path, steps=10 ** 6, eval_every=1, eval_batches=0, channels=128, batch_size=2,
                                  lr_schedule="constant"))
    try:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and steps_of_whole_lines(tmp_path), process)
        for _ in range(4000):
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.0005)
        process.send_signal(signal.SIGUSR1)
        said = process.communicate(timeout=100)[1]
    finally:
        process.kill()
    assert process.returncode == STOPPED, said


def test_a_second_signal_ends_at_once(shards, tmp_path):
    """The first waits for the end of a step that takes long; the second, later than a doubled Ctrl-C, does not."""
    options = {"channels": 512, "layers": 8, "context": 256, "batch_size": 96, "micro_batch": 1, "steps": 10}
    process = start(train_command(shards, tmp_path, **options))
    try:
        wait_for((tmp_path / "metrics.jsonl").exists, process)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.7)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=5)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "checkpoints" / "latest").exists()


def test_compare_takes_no_resume(shards, tmp_path):
    done = run([TANDEM, "compare", f"--data={shards}", f"--run-dir={tmp_path}", "--resume=auto"], code=USAGE)
    assert "--resume: found 'auto', expected off" in done.stderr
