"""Pipelines train what one rank trains: over stages, chunks, schedules and replicas."""
import json
import struct

import pytest

from conftest import TANDEM, checkpoint_of, run, steps_of, train, train_command

# Three layers make up to five stages.
MODEL = {"layers": 3, "batch_size": 16, "micro_batch": 2, "steps": 4, "warmup": 2, "eval_batches": 2, "check_every": 1,
         "timeout": 60}
# (replicas, stages, chunks, schedule): every schedule, more stages than layers, up to eight ranks.
PIPELINES = [(1, 1, 1, "gpipe"), (1, 1, 1, "zb-h1"), (1, 2, 1, "gpipe"), (1, 2, 1, "1f1b"), (1, 3, 1, "1f1b"), (1, 5, 1, "1f1b"),
             (1, 2, 2, "interleaved"), (1, 4, 1, "zb-h1"), (2, 2, 1, "1f1b"), (2, 2, 2, "interleaved"), (2, 3, 1, "zb-h1"),
             (2, 4, 1, "1f1b"), (4, 2, 1, "gpipe")]


def shares(done):
    """What does not depend on time."""
    return [(step["loss"], step["accuracy"], step["grad_norm"]) for step in steps_of(done)] + \
           [event["val_loss"] for event in done if event["event"] == "eval"]


def flat(values):
    return [x for entry in values for x in (entry if isinstance(entry, tuple) else (entry,))]


def assert_close(found, expected, tolerance):
    for x, y in zip(flat(found), flat(expected), strict=True):
        assert abs(x - y) <= tolerance * abs(y), (found, expected)


def weights_of(run_dir):
    """The bytes of every tensor of a saved model, by name."""
    tensors = {}
    for path in sorted(checkpoint_of(run_dir).glob("model*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:start]).items():
            first, end = entry["data_offsets"]
            assert name not in tensors
            tensors[name] = data[start + first:start + end]
    return tensors


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


@pytest.fixture(scope="module")
def trained_alone(shards, tmp_path_factory):
    """Runs without a pipeline, by options; each once."""
    known = {}

    def get(**options):
        key = tuple(sorted(options.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("alone")
            known[key] = folder, shares(train(shards, folder, options.get("dp", 1), **{**MODEL, **options}))
        return known[key]
    return get


def pipeline(shards, folder, dp, pp, chunks=1, schedule="1f1b", **options):
    return shares(train(shards, folder, dp * pp, dp=dp, pp=pp, chunks=chunks, schedule=schedule, **{**MODEL, **options}))


@pytest.mark.parametrize("dp,pp,chunks,schedule", PIPELINES)
def test_trains_bit_for_bit_as_without_a_pipeline(shards, tmp_path, trained_alone, dp, pp, chunks, schedule):
    folder, expected = trained_alone(dp=dp, tie_embeddings="off")
    assert pipeline(shards, tmp_path, dp, pp, chunks, schedule, tie_embeddings="off") == expected
    assert weights_of(tmp_path) == weights_of(folder)


@pytest.mark.parametrize("dp,pp,chunks,schedule", [(1, 2, 1, "1f1b"), (2, 2, 2, "interleaved"), (1, 5, 1, "gpipe"),
                                                   (2, 3, 1, "zb-h1")])
def test_tied_embedding_on_two_stages(shards, tmp_path, trained_alone, dp, pp, chunks, schedule):
    """The two parts of its gradient are summed in another order than on one stage. --check-every compares the copies."""
    folder, expected = trained_alone(dp=dp)
    assert_close(pipeline(shards, tmp_path, dp, pp, chunks, schedule), expected, 1e-5)
    found, alone = weights_of(tmp_path), weights_of(folder)
    assert found.keys() == alone.keys()
    for name, data in found.items():
        assert max(abs(x - y) for x, y in zip(floats(data), floats(alone[name]))) < 1e-4


@pytest.mark.parametrize("options,pp,chunks,schedule", [
    ({"dropout": 0.2}, 2, 2, "interleaved"), ({"dropout": 0.2}, 3, 1, "zb-h1"), ({"recompute": "on"}, 2, 2, "interleaved"),
    ({"recompute": "on"}, 3, 1, "1f1b"), ({"precision": "bf16"}, 3, 1, "zb-h1"), ({"precision": "fp16"}, 2, 2, "interleaved"),
    ({"micro_batch": 8}, 4, 1, "1f1b"),  # fewer micro-batches than stages
    ({"micro_batch": 4, "eval_batches": 0}, 3, 1, "1f1b"),  # all windows: the last micro-batch is not full
    ({"micro_batch": 4, "eval_batches": 0}, 2, 2, "interleaved"),
], ids=str)
def test_other_options_change_nothing(shards, tmp_path, trained_alone, options, pp, chunks, schedule):
    _, expected = trained_alone(tie_embeddings="off", **options)
    assert pipeline(shards, tmp_path, 1, pp, chunks, schedule, tie_embeddings="off", **options) == expected


METHODS = [{"compress": "none"}, {"compress": "covap", "interval": 3}, {"compress": "topk", "density": 0.05},
           {"compress": "powersgd", "rank": 2, "compress_start": 2}, {"compress": "oktopk", "density": 0.05},
           {"compress": "randomk", "density": 0.05}, {"compress": "qsgd"}]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["compress"])
def test_compressors_keep_both_embeddings_equal_and_overlap_changes_no_bit(shards, tmp_path, method):
    """MODEL checks every step that replicas and both copies of the embedding hold the same bits."""
    on = pipeline(shards, tmp_path / "on", 2, 2, overlap="on", **{**method, "steps": 7})
    assert on == pipeline(shards, tmp_path / "off", 2, 2, overlap="off", **{**method, "steps": 7})


def test_interval_is_decided_at_the_same_step_by_all_stages(shards, tmp_path):
    done = train(shards, tmp_path, 4, dp=2, pp=2, **{**MODEL, "steps": 24, "compress": "covap", "interval": "auto"})
    assert len(steps_of(done)) == 24


DELAYS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
/* Every rank sends late, each by other times. */
int MPI_Isend(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r) {
    static int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
    static unsigned seed;
    if (!send) seed = (unsigned)getpid() * 7919u, *(void **)&send = dlsym(RTLD_NEXT, "MPI_Isend");
    nanosleep(&(struct timespec){0, rand_r(&seed) % 4000000}, NULL);
    return send(b, n, t, to, tag, c, r);
}
"""


@pytest.fixture(scope="module")
def late_sends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    (folder / "late.c").write_text(DELAYS)
    run(["mpicc", "-shared", "-fPIC", "-o", folder / "late.so", folder / "late.c", "-ldl"])
    return folder / "late.so"


@pytest.mark.parametrize("pp,chunks,schedule", [(2, 2, "interleaved"), (4, 1, "1f1b"), (4, 1, "zb-h1"), (4, 1, "gpipe")])
def test_late_messages_change_nothing(shards, tmp_path, trained_alone, late_sends, pp, chunks, schedule):
    _, expected = trained_alone(tie_embeddings="off")
    command = train_command(shards, tmp_path, pp, pp=pp, chunks=chunks, schedule=schedule, tie_embeddings="off", **MODEL)
    at = command.index("-x")
    run(command[:at] + ["-x", f"LD_PRELOAD={late_sends}"] + command[at:], timeout=120)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert shares(events) == expected


@pytest.mark.parametrize("compress", [{}, {"compress": "topk", "density": 0.05}], ids=str)
def test_goes_on_from_a_checkpoint(shards, tmp_path, compress):
    """On the same ranks and stages bit for bit; on others, whatever lies where."""
    options = {**MODEL, **compress, "lr_schedule": "constant"}
    whole = shares(train(shards, tmp_path / "whole", 4, dp=2, pp=2, **{**options, "steps": 6}))
    for dp, pp, same in ((2, 2, True), (1, 3, False), (2, 1, False)):
        folder = tmp_path / f"{dp}x{pp}"
        train(shards, folder, 4, dp=2, pp=2, **{**options, "steps": 3})
        rest = shares(train(shards, folder, dp * pp, dp=dp, pp=pp, resume="auto", **{**options, "steps": 6}))
        if same:
            assert rest[5] == whole[5] and rest[-1] == whole[-1]
        else:
            assert_close(rest[5:6], whole[5:6], 1e-5 if not compress else 0.1)


def test_samples_from_a_model_saved_in_parts(shards, tmp_path):
    train(shards, tmp_path, 3, pp=3, **MODEL)
    assert len(list(checkpoint_of(tmp_path).glob("model-0000?-of-00003.safetensors"))) == 3
    run([TANDEM, "generate", "--checkpoint", tmp_path, "--tokens", 8, "--prompt", "a"], code=0)


def test_metrics_know_the_bubble_and_the_whole_model(shards, tmp_path):
    events = train(shards, tmp_path, 2, pp=2, **MODEL)
    alone = train(shards, tmp_path / "alone", **MODEL)
    assert all(0 < step["bubble_ms"] <= step["step_ms"] for step in steps_of(events))
    assert all(step["bubble_ms"] == 0 for step in steps_of(alone))
    assert events[0]["parameters"] == alone[0]["parameters"]


@pytest.mark.parametrize("ranks,options,expected", [
    (4, {"pp": 3}, "dp x pp: 4 x 1, 2 x 2, 1 x 4"),
    (2, {"pp": 2, "chunks": 2}, "interleaved"),
    (2, {"pp": 2, "chunks": 3, "schedule": "interleaved"}, "at most 5"),
    (1, {"chunks": 2, "schedule": "interleaved"}, "--pp of at least 2"),
    (2, {"pp": 2, "schedule": "zb-h1", "recompute": "on"}, "--recompute off"),
    (2, {"pp": 2, "micro_batch": 3}, "a replica's share of the batch, 16"),
    (2, {"pp": 2, "schedule": "2f2b"}, "gpipe"),
], ids=str)
def test_refusals_say_what_is_valid(shards, tmp_path, ranks, options, expected):
    done = run(train_command(shards, tmp_path, ranks, **{**MODEL, **options}), code=2)
    assert expected in done.stderr and done.stderr.count("tandem train:") == 1


def test_shows_mesh_and_stages(shards, tmp_path):
    done = run(train_command(shards, tmp_path, 4, dp=2, pp=2, **MODEL))
    for text in ("2 replicas x 2 stages", "schedule 1f1b, 4 micro-batches a step, bubble 20.0 %", "stage 0     embedding, layer",
                 "head"):
        assert text in done.stdout
