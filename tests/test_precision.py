"""Training in 16 bits: close to fp32, the same on any number of ranks, and scales of the loss that change nothing."""
import json

import pytest

from conftest import TANDEM, checkpoint_of, read_events, run, steps_of, train, train_command
from test_compare import compare

USAGE, DIVERGED = 2, 3
HALF = ["bf16", "fp16"]
FORMATS = ["fp32"] + HALF
# What 50 steps of the small model may end apart: a rounding is 2^-9 in bf16 and 2^-12 in fp16, of losses near 2.5.
LOSS_TOLERANCE = {"bf16": 0.02, "fp16": 0.005}
VARIANTS = [{}, {"recompute": "on", "micro_batch": 3}, {"dropout": 0.1, "tie_embeddings": "off"}]


def weights(run_dir):
    return (checkpoint_of(run_dir) / "model.safetensors").read_bytes()


def losses(events):
    return [step["loss"] for step in steps_of(events)]


@pytest.fixture(scope="module")
def in_fp32(shards, tmp_path_factory):
    """The losses of each variant in fp32."""
    folder = tmp_path_factory.mktemp("fp32")
    return [losses(train(shards, folder / str(i), **variant)) for i, variant in enumerate(VARIANTS)]


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_training_is_close_to_fp32(shards, tmp_path, in_fp32, precision, variant):
    found = losses(train(shards, tmp_path, precision=precision, **VARIANTS[variant]))
    assert found == pytest.approx(in_fp32[variant], abs=LOSS_TOLERANCE[precision])
    assert found != in_fp32[variant]
    assert found[-1] < found[0] - 1


@pytest.mark.parametrize("precision", HALF)
def test_recomputation_does_not_change_a_bit(shards, tmp_path, precision):
    for recompute in "on", "off":
        train(shards, tmp_path / recompute, precision=precision, recompute=recompute, steps=8, dropout=0.1)
    assert weights(tmp_path / "on") == weights(tmp_path / "off")


@pytest.mark.parametrize("precision", HALF)
def test_ranks_and_micro_batches_share_the_batch(shards, tmp_path, precision):
    alone = losses(train(shards, tmp_path / "1", precision=precision, steps=25))
    for ranks, micro in (2, 0), (3, 2), (4, 1):
        events = train(shards, tmp_path / str(ranks), ranks, precision=precision, steps=25, micro_batch=micro, check_every=5)
        assert losses(events) == pytest.approx(alone, abs=LOSS_TOLERANCE[precision])


@pytest.mark.parametrize("compress,wire", [("none", "fp32"), ("covap", "fp32"), ("covap", "bf16"), ("dgc", "fp32")])
def test_overlap_does_not_change_a_bit(shards, tmp_path, compress, wire):
    for overlap in "on", "off":
        train(shards, tmp_path / overlap, 3, precision="fp16", compress=compress, wire=wire, interval=3, steps=7, overlap=overlap,
              bucket_mib=0.01, micro_batch=2, check_every=1)
    assert weights(tmp_path / "on") == weights(tmp_path / "off")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compress", ["none", "covap", "topk"])
def test_a_scale_of_the_loss_changes_no_bit(shards, tmp_path, precision, compress):
    """A power of two is exact in formats with fp32's exponents, so every place that keeps a gradient must have divided by it."""
    for scale in "off", "4096":
        train(shards, tmp_path / scale, 2, precision=precision, loss_scale=scale, compress=compress, interval=3, steps=9,
              bucket_mib=0.01, micro_batch=2, clip=0.5)
    assert weights(tmp_path / "off") == weights(tmp_path / "4096")
    for off, on in zip(*(steps_of(read_events(tmp_path / scale)) for scale in ("off", "4096"))):
        assert (off["loss_scale"], on["loss_scale"]) == (1, 4096)
        assert off["grad_norm"] == on["grad_norm"] and off["loss"] == on["loss"]


@pytest.mark.parametrize("ranks,options", [(1, {}), (3, {"compress": "covap", "interval": 3, "bucket_mib": 0.01})])
def test_a_scale_that_is_too_large_falls_and_one_that_is_not_grows(shards, tmp_path, ranks, options):
    events = train(shards, tmp_path, ranks, precision="fp16", initial_loss_scale=2 ** 32, loss_scale_window=4, steps=40,
                   micro_batch=2, check_every=1, **options)
    steps = steps_of(events)
    skipped = [step["skipped"] for step in steps]
    first = skipped.index(0)
    assert first > 2 and skipped[:first] == [1] * first
    good = 0
    for before, after in zip(steps, steps[1:]):
        good = 0 if before["skipped"] else good + 1
        expected = before["loss_scale"] / 2 if before["skipped"] else before["loss_scale"]
        if good == 4:
            expected, good = 2 * expected, 0
        assert after["loss_scale"] == expected
    assert any(b["loss_scale"] > a["loss_scale"] for a, b in zip(steps, steps[1:]))
    assert [step["loss"] for step in steps[:first]] == pytest.approx([steps[0]["loss"]] * first, abs=0.1)  # nothing learned
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert events[-1]["reason"] == "finished"


def test_every_method_trains_in_fp16(shards, tmp_path):
    for method in "accumulate", "randomk", "efsignsgd", "powersgd", "oktopk", "qsgd", "fp16":
        events = train(shards, tmp_path / method, 2, precision="fp16", compress=method, interval=2, steps=6, check_every=1,
                       compress_start=2, density=0.05, bucket_mib=0.02, initial_loss_scale=2 ** 32)
        assert steps_of(events)[0]["skipped"] == 1 and steps_of(events)[0]["bytes_sent"] > 0


def test_what_no_scale_helps_has_diverged(shards, tmp_path):
    fixed = run(train_command(shards, tmp_path / "fixed", precision="fp16", loss_scale=2 ** 32), code=DIVERGED)
    assert "diverged" in fixed.stderr and "--loss-scale dynamic" in fixed.stderr
    dynamic = run(train_command(shards, tmp_path / "dynamic", precision="fp16", lr=1e6, warmup=0, clip=0, optimizer="sgd", steps=60),
                  code=DIVERGED)
    assert "diverged" in dynamic.stderr and "--precision bf16" in dynamic.stderr
    assert steps_of(read_events(tmp_path / "dynamic"))[-1]["skipped"] == 0
    assert read_events(tmp_path / "dynamic")[-1]["reason"] == "diverged"


def test_summary_counts_skipped_steps(shards, tmp_path):
    done = run(train_command(shards, tmp_path, precision="fp16", initial_loss_scale=2 ** 32, steps=12))
    skipped = sum(step["skipped"] for step in steps_of(read_events(tmp_path)))
    assert done.stderr.count("is skipped") == skipped > 0
    assert f"of them skipped            {skipped}" in done.stdout


@pytest.mark.parametrize("precision", HALF)
def test_what_is_saved_is_fp32(shards, tmp_path, precision):
    train(shards, tmp_path, precision=precision, steps=3)
    raw = weights(tmp_path)
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    assert {entry["dtype"] for name, entry in header.items() if name != "__metadata__"} == {"F32"}
    low = memoryview(raw)[8 + int.from_bytes(raw[:8], "little"):].cast("I")
    assert sum(bits & 0x1fff != 0 for bits in low) > len(low) / 2  # more bits than either format has


@pytest.mark.parametrize("precision", FORMATS)
def test_generating(trained, precision):
    command = [TANDEM, "generate", f"--checkpoint={trained}", "--prompt=a", "--tokens=40", "--temperature=0", "--threads=1",
               f"--precision={precision}"]
    text = run(command).stdout
    assert len(text) == 42 and run(command).stdout == text


def test_comparing_precisions(shards, tmp_path):
    printed, result, methods = compare(shards, tmp_path, seeds=2, methods="none,none:precision=bf16,none:precision=fp16")
    assert set(methods) == {"none", "none:precision=bf16", "none:precision=fp16"}
    for method in methods:
        assert method in printed


@pytest.mark.parametrize("options,words", [
    ({"precision": "tf32"}, ["--precision tf32", "cpu", "fp32|bf16|fp16"]), ({"precision": "float16"}, ["fp16"]),
    ({"loss_scale": "1000"}, ["--loss-scale", "1000", "power of two"]), ({"loss_scale": "often"}, ["--loss-scale", "often"]),
    ({"precision": "fp16", "initial_loss_scale": 3}, ["--initial-loss-scale", "power of two"])])
@pytest.mark.parametrize("ranks", [0, 2])
def test_mistakes(shards, tmp_path, ranks, options, words):
    done = run(train_command(shards, tmp_path / "x", ranks, **options), code=USAGE)
    for word in words:
        assert word in done.stderr
    assert done.stderr.count("tandem train: ") == 1
