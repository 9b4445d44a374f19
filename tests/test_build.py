"""The build: without warnings, without MPI, installed; and the sources' layers."""
import os
import re
import shutil

import pytest

from conftest import ROOT, mpirun, run

# A room may include headers of those listed, and of itself.
ROOMS = {"kernels": set(), "comm": {"kernels"}, "model": {"kernels"}, "data": {"kernels"},
         "train": {"kernels", "comm", "model", "data"}, "tests": {"kernels", "comm", "model", "data", "train"}}


def sources(*rooms):
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*") if path.suffix in (".c", ".h", ".def", ".cu"))


def jobs():
    return f"-j{os.cpu_count() or 1}"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the sources, built from nothing without MPI, with its tests; and what make printed."""
    copy = tmp_path_factory.mktemp("fresh")
    for room in [*ROOMS, "scripts"]:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("text", "shards", "ref", "__pycache__"))
    for name in "Makefile", "VERSION":
        shutil.copy(ROOT / name, copy)
    done = run(["make", jobs(), "MPI=0", "all", "unit-tests", "bench-programs"], cwd=copy, timeout=900)
    return copy, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(fresh):
    return fresh[0] / "build" / "variant-nompi" / "tandem"


def test_no_warnings(fresh):
    copy, log = fresh
    mpi = [path.relative_to(ROOT).with_suffix(".o") for path in sources("comm/mpi") if path.suffix == ".c"]
    assert mpi
    done = run(["make", jobs(), *[f"build/{path}" for path in mpi]], cwd=copy, timeout=600)
    assert "warning:" not in log + done.stdout + done.stderr
    assert "-Wall -Wextra" in (copy / "build" / "flags").read_text()


def test_without_mpi_it_trains_in_one_process(alone, shards, tmp_path):
    words = ["train", f"--data={shards}", f"--run-dir={tmp_path}", "--steps=2", "--batch-size=4", "--eval-batches=1"]
    assert "one process, no communication" in run([alone, *words]).stdout
    run([alone, "generate", f"--checkpoint={tmp_path}", "--tokens=2"])
    libraries = run(["ldd", alone]).stdout
    assert "libdnnl" in libraries and "libmpi" not in libraries
    done = run([alone, *words, "--comm=mpi"], code=2)
    assert "this build has no MPI" in done.stderr and "libopenmpi-dev" in done.stderr and done.stderr.count("\n") == 1
    assert "this build has no MPI" in run(mpirun(2, alone, *words), code=2).stderr


def test_nothing_is_built_twice(fresh):
    done = run(["make", "MPI=0", "all"], cwd=fresh[0])
    assert "cc " not in done.stdout and "link" not in done.stdout
    (fresh[0] / "train" / "sampler.h").touch()
    done = run(["make", "MPI=0", "all"], cwd=fresh[0])
    assert "cc    train/sampler.c" in done.stdout and "train/options.c" not in done.stdout


def test_install(fresh, tmp_path):
    run(["make", "MPI=0", "install", f"PREFIX={tmp_path}/usr"], cwd=fresh[0], timeout=600)
    version = (ROOT / "VERSION").read_text().strip()
    assert run([tmp_path / "usr" / "bin" / "tandem", "--version"]).stdout == f"tandem {version}\n"
    run(["make", "MPI=0", "install", f"DESTDIR={tmp_path}/image"], cwd=fresh[0], timeout=600)
    assert (tmp_path / "image" / "usr" / "local" / "bin" / "tandem").exists()


def test_help_lists_every_target():
    text = run(["make", "help"]).stdout
    for target in "all", "help", "deps", "demo", "test", "bench", "install", "format", "lint", "clean":
        assert re.search(rf"^  make {target}\s+\S", text, re.M), target
    assert "MPI=0" in text and "SAN=address|thread" in text


def test_includes_point_one_way():
    seen = 0
    for path in sources(*ROOMS):
        room = path.relative_to(ROOT).parts[0]
        for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
            seen += 1
            assert (ROOT / header).is_file(), f"{path}: {header} is no path from the root"
            assert header.split("/")[0] in ROOMS[room] | {room}, f"{path} includes {header}"
    assert seen > 100


def test_only_comm_mpi_knows_mpi():
    for path in sources(*ROOMS):
        known = "comm/mpi/" in str(path) or path.relative_to(ROOT).parts[0] == "tests"
        assert known or not re.search(r"#\s*include\s*<mpi\.h>|\bMPI_\w+\(", path.read_text()), path


def test_no_conditional_compilation_outside_the_cpu_kernels():
    for path in sources("kernels", "comm", "model", "data", "train"):
        if "kernels/cpu/" in str(path):
            continue
        text = re.sub(r"^#ifndef TANDEM_\w+_H\n", "", path.read_text(), flags=re.M)
        assert not re.search(r"^\s*#\s*(if|ifdef|ifndef)\b", text, re.M), path
