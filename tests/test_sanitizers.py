"""Every C test that needs no mpirun, and the program itself, under AddressSanitizer (leaks included) and
UndefinedBehaviorSanitizer. Without MPI, whose own leaks would have to be excused; races are tests/test_comm.py's."""
import os
import re

import pytest

from conftest import ROOT, TINY, run

BUILD = ROOT / "build" / "variant-nompi-address"
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:strict_string_checks=1",
               "UBSAN_OPTIONS": "print_stacktrace=1", "OMP_NUM_THREADS": "2"}


def needs_mpirun(source):
    return re.search(r"ranks:(?: \d+)+", "\n".join(source.read_text().splitlines()[:12]))


PROGRAMS = sorted(source.stem for source in (ROOT / "tests").glob("test_*.c") if not needs_mpirun(source))


@pytest.fixture(scope="module")
def build():
    targets = [BUILD / "tandem"] + [BUILD / "tests" / name for name in PROGRAMS]
    run(["make", "-j", os.cpu_count() or 1, "MPI=0", "SAN=address"] + [path.relative_to(ROOT) for path in targets], timeout=900)
    return BUILD


def clean(command, **options):
    done = run(command, env=ENVIRONMENT, timeout=400, **options)
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(build, name):
    clean([build / "tests" / name])


def test_a_sanitizer_that_finds_something_fails(build):
    """The option is really on: a leak made on purpose is seen."""
    source = build / "leak.c"
    source.write_text("#include <stdlib.h>\nvoid *volatile p; int main(void) { p = malloc(7); p = 0; return 0; }\n")
    run(["cc", "-fsanitize=address", "-o", build / "leak", source])
    assert "LeakSanitizer" in run([build / "leak"], code=None, env=ENVIRONMENT).stderr


def test_the_whole_program(build, text_file, tmp_path):
    tandem, run_dir, options = build / "tandem", tmp_path / "run", tmp_path / "options"
    clean([tandem, "data", "build", text_file, "--out", tmp_path / "shards"])
    clean([tandem, "data", "inspect", tmp_path / "shards"])
    options.write_text(f"data = {tmp_path / 'shards'}\noptimizer = adamw\noptimizer = sgd\n")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**TINY, "steps": 4, "layers": 3}.items()]
    words += ["--config", options, "--run-dir", run_dir, "--dropout=0.1", "--micro-batch=4", "--eval-every=2"]
    clean([tandem, "train", *words, "--recompute"])
    clean([tandem, "train", *words, "--tie-embeddings=off", "--checkpoint-every=1"])
    clean([tandem, "generate", "--checkpoint", run_dir, "--tokens=30"])
    clean([tandem, "info"])
    clean([tandem, "train", "--help"])


def test_the_whole_program_on_mistakes(build, shards, tmp_path):
    tandem = build / "tandem"
    for words in ["--stepps=3"], ["--steps=x"], ["--config", tmp_path], ["--heads=5"], ["--data", tmp_path], ["word"], \
            ["--comm=mpi"], ["--run-dir", "/proc/none"], ["--device=cuda"]:
        clean([tandem, "train", "--data", shards, "--run-dir", tmp_path, *words], code=2)
    clean([tandem, "train", "--data", shards, "--run-dir", tmp_path, "--lr=1e6", "--optimizer=sgd", "--clip=0", "--steps=50",
           "--warmup=0", "--eval-batches=1"], code=3)
    clean([tandem, "generate", "--checkpoint", tmp_path], code=2)
    clean([tandem, "data", "build", tmp_path / "none", "--out", tmp_path], code=2)
