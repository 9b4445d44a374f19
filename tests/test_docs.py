"""Every command in README.md and docs/ runs: each line of each ```sh block, in order, as a reader would type it.

Two stand-ins keep the time short and the test finite: `make demo` makes fewer steps, and `make test` and `make bench`, which
would run this test again or measure for many minutes, are only asked whether make knows how to do them.
"""
import os
import re
import shutil

import pytest

from conftest import ROOT, run

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
STAND_INS = {"make test": "make -n test", "make bench": "make -n bench"}


def commands(page):
    text = (ROOT / page).read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line.strip()


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A folder as a reader has it after building: the repository with its build, runs apart from those of others."""
    home = tmp_path_factory.mktemp("reader")
    for name in ["Makefile", "VERSION", "README.md", "scripts", "build", "docs", "kernels", "comm", "model", "train", "tests"]:
        os.symlink(ROOT / name, home / name)
    (home / "data").mkdir()
    for source in (ROOT / "data").iterdir():
        if source.name not in ("text", "shards"):
            os.symlink(source, home / "data" / source.name)
    if (ROOT / "data" / "text" / "austen.txt").exists():  # fetched before: not again
        (home / "data" / "text").mkdir()
        shutil.copy(ROOT / "data" / "text" / "austen.txt", home / "data" / "text")
    return home


def skip_reason(command):
    if "virtual_cluster" in command and os.geteuid() != 0:
        return "network namespaces need root"
    return None


@pytest.mark.parametrize("page,command", [pytest.param(p, c, id=f"{p}: {c}") for p in PAGES for c in commands(p)])
def test_command(reader, page, command):
    if skip_reason(command):
        pytest.skip(skip_reason(command))
    # What the README says about root and small machines, for mpirun typed by hand.
    environment = {**os.environ, "DEMO_STEPS": "12", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1", "PWD": str(reader)}
    run(["bash", "-c", STAND_INS.get(command, command)], timeout=280, cwd=reader, env=environment)


def test_the_readme_opens_with_the_two_commands():
    assert list(commands("README.md"))[:2] == ["make demo", "make test"]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
