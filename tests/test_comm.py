"""What the C tests of comm/ cannot see from inside: how a job ends when a rank goes away; races that ThreadSanitizer finds."""
import os
import re
import socket
import time

import pytest

from conftest import ROOT, mpirun, run


@pytest.fixture(scope="module")
def comm_stop():
    run(["make", "build/tests/comm_stop"], timeout=600)
    return ROOT / "build" / "tests" / "comm_stop"


@pytest.mark.parametrize("operation,how,named", [
    ("all-reduce", "stop", "all-reduce of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("all-reduce", "sleep", "all-reduce of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("all-reduce-mpi", "stop", "all-reduce of 12000000 bytes: nothing heard for 1.5 s from any of the other ranks:"),
    ("broadcast", "stop", "broadcast of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("reduce", "stop", "reduce of 8 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("barrier", "sleep", "barrier of 1 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("close", "stop", "barrier of 1 bytes: nothing heard for 1.5 s from rank 1 on {host}"),
    ("send", "stop", "[rank 0 {host}] comm/mpi/messages.c:{line}: send of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("receive", "stop", "receive of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("receive", "sleep", "receive of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("split", "stop", "split of 8 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    # rank 0 of the child is rank 1 of the world
    ("child", "stop", "[rank 2 {host}] comm/mpi/messages.c:{line}: all-reduce of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    # rank 2 waits for rank 0, which waits for rank 1: both say so
    ("chain", "stop", "[rank 0 {host}] comm/mpi/messages.c:{line}: receive of 12000000 bytes: nothing heard for 1.5 s from rank 1 on {host}:"),
    ("chain", "stop", "[rank 2 {host}] comm/mpi/messages.c:{line}: receive of 12000000 bytes: nothing heard for 1.5 s from rank 0 on {host}:"),
])
def test_rank_that_goes_away_ends_the_job(comm_stop, operation, how, named):
    start = time.monotonic()
    done = run(mpirun(3, comm_stop, operation, "1", how), timeout=60, code=5)
    named = re.escape(named.replace("{host}", socket.gethostname())).replace(re.escape("{line}"), "[0-9]+")
    assert re.search(named, done.stderr), done.stderr
    assert time.monotonic() - start < 40, "the job outlives its timeout by far"


@pytest.mark.parametrize("operation", ["all-reduce", "receive"])
def test_rank_that_is_killed_ends_the_job(comm_stop, operation):
    """mpirun sees this itself, names the rank and exits with 128 + 9."""
    done = run(mpirun(3, comm_stop, operation, "1", "kill"), timeout=60, code=137)
    assert "rank 1 " in done.stderr


@pytest.mark.parametrize("operation,said", [
    ("short", "receive: 400 bytes came from rank 1 on "), ("long", "MPI_ERR_TRUNCATE"),
])
def test_message_of_another_length_ends_the_job(comm_stop, operation, said):
    assert said in run(mpirun(2, comm_stop, operation, "1", "stop"), timeout=60, code=1).stderr


def test_program_without_mpi_says_what_to_install(tmp_path):
    source = tmp_path / "open.c"
    source.write_text('#include <stdio.h>\n#include "comm/comm.h"\n'
                      "int main(void) { struct comm *c; struct error e; struct comm_options o = {0};\n"
                      'int code = comm_open(&c, "mpi", &o, &e); puts(e.text); return code == -1 && !c ? 0 : 1; }\n')
    parts = ["comm/comm.c", "comm/comm_self.c", "comm/mpi_absent.c", "kernels/base.c", "kernels/tensor.c"]
    run(["cc", "-std=gnu11", "-I.", "-o", tmp_path / "open", source, *parts])
    assert "libopenmpi-dev" in run([tmp_path / "open"]).stdout


def test_bucket_engine_has_no_race():
    """The engine and the queue under ThreadSanitizer, over a communicator without MPI, which is not free of its warnings."""
    program = "build/variant-nompi-thread/tests/test_bucket_threads"
    run(["make", "MPI=0", "SAN=thread", program], timeout=600)
    done = run([program], timeout=120)
    assert "WARNING: ThreadSanitizer" not in done.stderr


def test_communication_thread_has_no_race():
    """Messages and collectives of several communicators under ThreadSanitizer, which looks at our side of MPI only."""
    program = "build/variant-thread/tests/test_comm_messages"
    run(["make", "-j", os.cpu_count() or 1, "SAN=thread", program], timeout=600)
    environment = {**os.environ, "TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}
    done = run(mpirun(2, ROOT / program), timeout=240, env=environment)
    assert "WARNING: ThreadSanitizer" not in done.stderr
