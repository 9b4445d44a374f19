"""Training, end to end: the same run however it is divided, what it records, and that it learns."""
import json
import math
from collections import Counter

import pytest

from conftest import ROOT, TANDEM, checkpoint_of, mpirun, read_events, run, steps_of, train

MIB = 1 << 20


def assert_same_curve(found, expected, tolerance=1e-5):
    found, expected = steps_of(found), steps_of(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        for field in ("loss", "grad_norm"):
            assert a[field] == pytest.approx(b[field], rel=tolerance), f"step {a['step']}, {field}"


def assert_same_bits(one, other):
    """Every printed digit of the curve, and every byte of the model."""
    for a, b in zip(steps_of(read_events(one)), steps_of(read_events(other)), strict=True):
        assert (a["loss"], a["grad_norm"], a["accuracy"]) == (b["loss"], b["grad_norm"], b["accuracy"]), a["step"]
    assert (checkpoint_of(one) / "model.safetensors").read_bytes() == \
           (checkpoint_of(other) / "model.safetensors").read_bytes()


def flat_elements(run_dir):
    """Elements of the flat gradient range: every parameter, filled up to a multiple of 16."""
    data = (checkpoint_of(run_dir) / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return sum(-(-math.prod(entry["shape"]) // 16) * 16 for entry in header.values())


@pytest.mark.parametrize("dropout", [0, 0.1])
@pytest.mark.parametrize("tied", ["on", "off"])
def test_any_number_of_ranks_gives_the_same_training(shards, tmp_path, dropout, tied):
    options = {"dropout": dropout, "tie_embeddings": tied}
    expected = train(shards, tmp_path / "1", **options)
    for ranks, micro_batch in (1, 3), (2, 2), (3, 4), (4, 1):
        found = train(shards, tmp_path / f"{ranks}x", ranks, micro_batch=micro_batch, bucket_mib=0.05, **options)
        assert_same_curve(found, expected)
        evaluation = [event["val_loss"] for event in (expected[-1], found[-1])]
        assert evaluation[0] == pytest.approx(evaluation[1], rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_overlap_changes_no_bit(shards, tmp_path, ranks):
    for overlap in "on", "off":
        events = train(shards, tmp_path / overlap, ranks, overlap=overlap, bucket_mib=0.02, dropout=0.1, steps=20,
                       micro_batch=12 // ranks // (2 if ranks < 4 else 1))
        assert events[0]["buckets"] > 5
    assert_same_bits(tmp_path / "on", tmp_path / "off")


def test_buckets_change_no_bit(shards, tmp_path):
    for size in 25, 0.01:
        train(shards, tmp_path / str(size), 3, bucket_mib=size, steps=10)
    assert_same_bits(tmp_path / "25", tmp_path / "0.01")


def test_all_reduce_of_mpi_agrees(shards, tmp_path):
    direct = train(shards, tmp_path / "direct", 3, steps=20)
    assert_same_curve(train(shards, tmp_path / "mpi", 3, steps=20, all_reduce="mpi", bucket_mib=0.05), direct)


def test_accumulation_agrees_and_sends_the_same(shards, tmp_path):
    runs = [train(shards, tmp_path / str(size), 2, micro_batch=size, steps=20) for size in (6, 2)]
    assert_same_curve(*runs)
    assert {step["bytes_sent"] for step in steps_of(runs[0])} == {step["bytes_sent"] for step in steps_of(runs[1])}


def test_recomputation_changes_no_bit(shards, tmp_path):
    for recompute in "on", "off":
        train(shards, tmp_path / recompute, recompute=recompute, dropout=0.1, steps=20, layers=3, micro_batch=4)
    assert_same_bits(tmp_path / "on", tmp_path / "off")


def test_the_seed_decides(shards, tmp_path):
    losses = {}
    for name, seed in ("a", 1), ("b", 1), ("c", 2):
        losses[name] = [step["loss"] for step in steps_of(train(shards, tmp_path / name, seed=seed, steps=5))]
    assert losses["a"] == losses["b"] != losses["c"]


@pytest.mark.parametrize("batches", [0, 3])
def test_evaluation_is_that_of_one_rank(shards, tmp_path, batches):
    """0 batches: all windows, a number that no number of ranks divides."""
    losses = [train(shards, tmp_path / str(ranks), ranks, steps=1, lr=0, eval_batches=batches)[-1]
              for ranks in (1, 2, 3, 4)]
    for field in "val_loss", "val_accuracy", "perplexity", "bits_per_byte":
        assert [loss[field] for loss in losses] == pytest.approx([losses[0][field]] * 4, rel=1e-6)


STEP_FIELDS = {"event", "step", "loss", "accuracy", "grad_norm", "lr", "loss_scale", "skipped", "step_ms", "forward_ms",
               "backward_ms", "optimizer_ms", "comm_ms", "comm_exposed_ms", "bubble_ms", "bytes_sent", "bytes_dense",
               "interval", "tokens_per_s", "mfu", "memory_bytes", "energy_j"}
NOT_MEASURED = {"interval", "energy_j"}


def check_step(step, ranks, elements):
    assert STEP_FIELDS <= step.keys()
    assert {name for name in step if step[name] is None} == NOT_MEASURED
    assert step["bytes_sent"] == step["bytes_dense"] == 2 * (ranks - 1) * 4 * elements
    assert 0 <= step["comm_exposed_ms"] <= step["step_ms"]
    assert (step["comm_ms"] > 0) == (ranks > 1)
    for part in "forward_ms", "backward_ms", "optimizer_ms", "data_ms":
        assert 0 < step[part] <= step["step_ms"]
    assert step["tokens_per_s"] == pytest.approx(12 * 16 / step["step_ms"] * 1000)
    assert step["loss_scale"] == 1 and step["skipped"] == 0
    assert step["mfu"] > 0 and step["memory_bytes"] > MIB and 0 <= step["accuracy"] <= 1


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_metrics(shards, tmp_path, ranks):
    events = train(shards, tmp_path, ranks, steps=7, eval_every=3, lr_schedule="linear", warmup=2, bucket_mib=0.05)
    assert [event["event"] for event in events if event["event"] in ("start", "step", "eval", "end")] == \
        ["start", "step", "step", "step", "eval", "step", "step", "step", "eval", "step", "eval", "end"]
    assert [step["step"] for step in steps_of(events)] == list(range(1, 8))
    start, end = events[0], events[-1]
    assert start["ranks"] == ranks and start["hosts"] == 1 and start["threads_per_rank"] == 1
    assert start["version"] == (ROOT / "VERSION").read_text().strip()
    assert start["options"]["batch_size"] == 12 and start["options"]["lr_schedule"] == "linear"
    assert start["options"]["overlap"] is True and start["options"]["data"] == str(shards)
    assert start["train_tokens"] + start["validation_tokens"] > 60000 and start["vocab_size"] == 256
    c, layers = 32, 2
    assert start["parameters"] == 256 * c + 16 * c + layers * (12 * c * c + 13 * c) + 2 * c
    for step in steps_of(events):
        check_step(step, ranks, flat_elements(tmp_path))
    assert [step["lr"] for step in steps_of(events)][2] == 2e-3
    evaluations = [event for event in events if event["event"] == "eval"]
    assert [event["step"] for event in evaluations] == [3, 6, 7]
    for event in evaluations + [end]:
        assert event["perplexity"] == pytest.approx(math.exp(event["val_loss"]))
        assert event["bits_per_byte"] == pytest.approx(event["val_loss"] / math.log(2))
    assert end["val_loss"] == evaluations[-1]["val_loss"] and end["steps"] == 7 and end["reason"] == "finished"
    assert end["median_step_ms"] > 0


def test_times_of_the_buckets(shards, tmp_path):
    events = train(shards, tmp_path, 2, steps=4, bucket_mib=0.02, log_every=2)
    records = [event for event in events if event["event"] == "buckets"]
    assert [record["step"] for record in records][-2:] == [2, 4]
    for record in records:
        buckets = record["buckets"]
        assert len(buckets) == events[0]["buckets"]
        assert sum(bucket["elements"] for bucket in buckets) == flat_elements(tmp_path)
        assert all(0 < bucket["ready_ms"] <= bucket["start_ms"] <= bucket["end_ms"] for bucket in buckets)
        ready = [bucket["ready_ms"] for bucket in buckets]
        assert ready == sorted(ready)


def test_it_learns(text_file, trained):
    counts = Counter(text_file.read_bytes())
    total = sum(counts.values())
    unigram_entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    events = read_events(trained)
    losses = [event["val_loss"] for event in events if event["event"] == "eval"]
    assert losses[-1] < 0.5 * unigram_entropy
    assert losses == sorted(losses, reverse=True)
    assert events[-1]["val_accuracy"] > 0.6
    saved = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert saved == ["latest", "step-00000150", "step-00000300", "step-00000400"]


def test_output_of_a_run_is_plain_and_from_one_rank(shards, tmp_path):
    done = run(mpirun(2, TANDEM, "train", f"--data={shards}", f"--run-dir={tmp_path}", "--steps=3", "--batch-size=4"))
    assert done.stdout.count("Summary") == 1 and done.stdout.count("2 replicas x 1 micro-batch x 2") == 1
    assert "\033" not in done.stdout and "\r" not in done.stdout


@pytest.mark.parametrize("optimizer,options", [("sgd", {"lr": 0.5}), ("adamw", {"beta2": 0.999, "clip": 0})])
def test_optimizers_learn_on_any_number_of_ranks(shards, tmp_path, optimizer, options):
    options["optimizer"] = optimizer
    expected = train(shards, tmp_path / "1", **options)
    assert_same_curve(train(shards, tmp_path / "3", 3, **options), expected, 1e-4)
    assert steps_of(expected)[-1]["loss"] < 0.8 * steps_of(expected)[0]["loss"]
