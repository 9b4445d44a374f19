"""Runs every C test program. A program that says `ranks: 1 2 3` in its first lines runs under mpirun with each count."""
import os
import pathlib
import re
import subprocess

import pytest

from conftest import ROOT, mpirun, run


def cases():
    for source in sorted((ROOT / "tests").glob("test_*.c")):
        head = "\n".join(source.read_text().splitlines()[:12])
        ranks = re.search(r"ranks:((?: \d+)+)", head)
        for count in (ranks.group(1).split() if ranks else ["0"]):
            yield pytest.param(source.stem, int(count), id=f"{source.stem}-{count}" if ranks else source.stem)


@pytest.mark.parametrize("name,ranks", cases())
def test_program(name, ranks):
    program = ROOT / "build" / "tests" / name
    run(mpirun(ranks, program) if ranks else [program], timeout=240)
