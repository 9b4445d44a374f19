"""Training with every compressor: ranks stay equal to the bit, interval 1 is no compression, bytes are what they should be."""
import pytest

from conftest import ROOT, checkpoint_of, read_events, run, steps_of, train, train_command

METHODS = ["none", "bf16", "fp16", "covap", "accumulate", "topk", "randomk", "dgc", "efsignsgd", "powersgd", "oktopk", "qsgd"]


def steps(run_dir):
    return steps_of(read_events(run_dir))


def test_the_option_names_every_method_there_is():
    done = run([ROOT / "build/tandem", "train", "--compress", "nothing"], code=2)
    assert set(METHODS) == set(done.stderr.split("one of ")[1].split(";")[0].split("|"))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_ranks_hold_the_same_weights(shards, tmp_path, ranks):
    for method in METHODS:
        train(shards, tmp_path / method, ranks=ranks, compress=method, interval=3, steps=6, check_every=1, bucket_mib=0.02,
              compress_start=2, density=0.05, optimizer="sgd" if ranks == 3 else "adamw")
        assert len(steps(tmp_path / method)) == 6


def test_interval_one_is_no_compression(shards, tmp_path):
    models = []
    for method in ("none", "covap", "accumulate"):
        train(shards, tmp_path / method, ranks=2, compress=method, interval=1, steps=8, clip=0)
        models.append((checkpoint_of(tmp_path / method) / "model.safetensors").read_bytes())
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize("method,wire", [("covap", "fp32"), ("covap", "bf16"), ("dgc", "fp32"), ("powersgd", "fp32")])
def test_overlap_does_not_change_a_bit(shards, tmp_path, method, wire):
    models = []
    for overlap in ("on", "off"):
        train(shards, tmp_path / overlap, ranks=3, compress=method, wire=wire, interval=3, steps=7, overlap=overlap, bucket_mib=0.01,
              compress_start=2)
        models.append((checkpoint_of(tmp_path / overlap) / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_bytes_of_an_interval_add_up_to_a_dense_step(shards, tmp_path):
    train(shards, tmp_path, ranks=2, compress="covap", interval=4, steps=13, compress_start=1)
    sent, dense = [s["bytes_sent"] for s in steps(tmp_path)], steps(tmp_path)[0]["bytes_dense"]
    assert sent[0] == dense
    for first in (1, 5, 9):
        assert sum(sent[first:first + 4]) == dense
    assert max(sent[1:]) <= 1.1 * dense / 4 + 4096


def test_bf16_halves_the_bytes(shards, tmp_path):
    train(shards, tmp_path, ranks=2, compress="bf16", steps=3)
    assert all(s["bytes_sent"] == s["bytes_dense"] / 2 for s in steps(tmp_path))


def test_auto_says_what_it_measured(shards, tmp_path):
    done = run(train_command(shards, tmp_path, ranks=2, compress="covap", steps=14, retune=0))
    assert "interval" in done.stderr and "backward pass" in done.stderr
    assert all(s["interval"] >= 1 for s in steps(tmp_path))


@pytest.mark.parametrize("options,word", [({"interval": 0}, "auto"), ({"interval": "two"}, "auto"), ({"density": 2}, "--density"),
                                          ({"compress": "topK"}, "topk"), ({"covap_dropped": "skip"}, "catch-up")])
def test_mistakes(shards, tmp_path, options, word):
    done = run(train_command(shards, tmp_path / "x", **{"compress": "covap", **options}), code=2)
    assert word in done.stderr
