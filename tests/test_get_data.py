"""scripts/get_data.sh: what it fetches, what it refuses, and that it leaves no half file behind."""
import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import zlib

import pytest

from conftest import ROOT, run

SCRIPT = ROOT / "scripts" / "get_data.sh"
STORY = b"Once upon a time there was a gradient.\n" * 100
STORY_SUM = hashlib.sha256(STORY).hexdigest()
SHAKESPEARE_SUM = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def get(*words, code=0, url="http://127.0.0.1:9/nothing", path=os.environ["PATH"], timeout=300):
    """Runs the script with no way to the internet but `url`; port 9 refuses every connection."""
    environment = {**os.environ, "TANDEM_DATA_URL": str(url), "PATH": str(path), "no_proxy": "127.0.0.1"}
    return run([shutil.which("bash"), SCRIPT, *words], code=code, env=environment, timeout=timeout)


def folder_with(tmp_path, *commands):
    """A folder for PATH with these commands and no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in commands:
        (folder / command).symlink_to(shutil.which(command))
    return folder


@pytest.fixture
def server(tmp_path):
    """Serves STORY on 127.0.0.1, from a process of its own."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "story.txt").write_bytes(STORY)
    code = ("import functools, http.server as h\n"
            "s = h.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(h.SimpleHTTPRequestHandler, directory=%r))\n"
            "print(s.server_address[1], flush=True)\n"
            "s.serve_forever()" % str(served))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}/story.txt"
    process.kill()
    process.wait()


def test_download(tmp_path, server):
    out = tmp_path / "new" / "story.txt"
    done = get("tinystories", out, "--sha256", STORY_SUM, url=server)
    assert done.stdout.splitlines()[-1] == str(out)
    assert out.read_bytes() == STORY
    assert os.listdir(out.parent) == ["story.txt"]


@pytest.mark.skipif(not shutil.which("wget"), reason="no wget here")
def test_download_with_wget(tmp_path, server):
    path = folder_with(tmp_path, "dirname", "sha256sum", "mkdir", "mktemp", "basename", "mv", "rm", "timeout", "wget")
    done = get("tinystories", tmp_path / "o" / "story.txt", f"--sha256={STORY_SUM}", url=server, path=path)
    assert (tmp_path / "o" / "story.txt").read_bytes() == STORY
    assert done.stdout == f"{tmp_path}/o/story.txt\n"
    (path / "wget").unlink()
    done = get("tinystories", tmp_path / "o" / "more.txt", url=server, path=path, code=2)
    assert "neither curl nor wget" in done.stderr


def test_second_run_needs_no_network(tmp_path, server):
    out = tmp_path / "o" / "story.txt"
    get("tinystories", out, "--sha256", STORY_SUM, url=server)
    before = out.stat()
    done = get("tinystories", out, "--sha256", STORY_SUM)
    assert done.stdout == f"{out}\n" and "there already" in done.stderr
    assert out.stat() == before


def test_unknown_checksum_is_refused_and_shown(tmp_path, server):
    out = tmp_path / "o" / "story.txt"
    done = get("tinystories", out, url=server, code=2)
    assert "no checksum of tinystories is known" in done.stderr and f"--sha256 {STORY_SUM}" in done.stderr
    assert done.stdout == "" and os.listdir(out.parent) == []


def test_wrong_checksum_is_refused(tmp_path, server):
    out = tmp_path / "o" / "text.txt"
    done = get("shakespeare", out, url=server, code=2)
    assert STORY_SUM in done.stderr and f"expected {SHAKESPEARE_SUM}" in done.stderr
    assert done.stdout == "" and os.listdir(out.parent) == []


def test_other_file_is_left_alone(tmp_path):
    out = tmp_path / "mine.txt"
    out.write_text("my own words\n")
    done = get("shakespeare", out, code=2)
    assert "not the expected text" in done.stderr and "move it away" in done.stderr
    assert out.read_text() == "my own words\n"
    assert "not a file" in get("shakespeare", tmp_path, code=2).stderr


@pytest.mark.parametrize("name", ["shakespeare", "tinystories"])
def test_no_network(tmp_path, name):
    out = tmp_path / "o" / "text.txt"
    done = get(name, out, code=2)
    assert "cannot fetch http://127.0.0.1:9/nothing" in done.stderr and "is there internet?" in done.stderr
    assert done.stdout == "" and os.listdir(out.parent) == []


def test_no_package_manager(tmp_path):
    path = folder_with(tmp_path, "dirname", "sha256sum", "mkdir", "mktemp", "basename", "mv", "rm")
    for name in "austen", "kjv":
        done = get(name, tmp_path / "o" / "text.txt", path=path, code=2)
        assert f"{name} comes from a Debian package" in done.stderr and "no apt-get here" in done.stderr
    assert os.listdir(tmp_path / "o") == []


def test_no_package_mirror(tmp_path):
    """A package manager that cannot fetch anything, whatever it is asked for."""
    path = folder_with(tmp_path, "dirname", "sha256sum", "mkdir", "mktemp", "basename", "mv", "rm", "id")
    for name in "apt-get", "sudo":
        (path / name).write_text(f"#!{shutil.which('bash')}\nexit 100\n")
        (path / name).chmod(0o755)
    done = get("austen", tmp_path / "o" / "text.txt", path=path, code=2)
    assert "cannot fetch r-cran-janeaustenr" in done.stderr and "package mirror" in done.stderr
    assert done.stdout == "" and os.listdir(tmp_path / "o") == []


@pytest.mark.parametrize("words,message", [
    (["austn"], 'no text "austn"; the texts are: austen, kjv, shakespeare, tinystories'),
    (["austen", "a", "b"], "found 3 words"),
    (["--sha", "x"], "no option --sha"),
    (["kjv", "--sha256"], "needs a checksum"),
    (["kjv", "--sha256", "ABC"], "64 lower-case hexadecimal digits"),
])
def test_usage(tmp_path, words, message):
    done = get(*words, code=2)
    assert message in done.stderr and done.stdout == ""


def test_help():
    done = get("--help")
    for word in "austen", "kjv", "shakespeare", "tinystories", "--sha256", "TANDEM_DATA_URL":
        assert word in done.stdout


def fetch(name, tmp_path):
    """Fetches a text from the package mirror; skips the test where there is none."""
    out = tmp_path / "o" / f"{name}.txt"
    done = get(name, out, code=None)
    if done.returncode == 2 and ("cannot fetch" in done.stderr or "no apt-get" in done.stderr):
        pytest.skip("no package mirror here: " + done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)
    assert os.listdir(out.parent) == [out.name]
    return out.read_text(encoding="utf-8")


def test_austen(tmp_path):
    text = fetch("austen", tmp_path)
    assert 3_900_000 < len(text) < 4_200_000
    phrases = ["The family of Dashwood had long been settled in Sussex",
               "It is a truth universally acknowledged, that a single man in possession",
               "About thirty years ago Miss Maria Ward",
               "Emma Woodhouse, handsome, clever, and rich, with a comfortable home\nand happy disposition",
               "No one who had ever seen Catherine Morland in her infancy",
               "Sir Walter Elliot, of Kellynch Hall, in Somersetshire"]
    places = [text.find(phrase) for phrase in phrases]
    assert -1 not in places and places == sorted(places)
    assert "£20,000" in text and text.endswith("Finis\n")
    get("austen", tmp_path / "o" / "austen.txt", path=folder_with(tmp_path, "dirname", "sha256sum"))


def test_kjv(tmp_path):
    text = fetch("kjv", tmp_path)
    lines = text.splitlines()
    assert len(lines) == 31102
    assert lines[0] == "Ge1:1 In the beginning God created the heaven and the earth."
    assert lines[-1].startswith("Rev22:21 The grace of our Lord Jesus Christ")


def xdr(*numbers):
    return struct.pack(f">{len(numbers)}i", *numbers)


def charsxp(text, flags=0x40009):
    return xdr(flags, -1) if text is None else xdr(flags, len(text)) + text


def strsxp(*texts, flags=16):
    return xdr(flags, len(texts)) + b"".join(texts)


def names_attribute(*names):
    return xdr(0x402, 1) + charsxp(b"names") + strsxp(*map(charsxp, names)) + xdr(254)


def write_database(prefix, version, objects, compress):
    """A lazy-load database as R would write it, from serialized objects by name."""
    head = b"X\n" + xdr(version, 0x40201, 0x20300) + (xdr(5) + b"UTF-8" if version == 3 else b"")
    data, places = b"", b""
    for body in objects.values():
        chunk = xdr(len(head + body)) + zlib.compress(head + body)
        places += xdr(13, 2, len(data), len(chunk))
        data += chunk
    variables = xdr(0x213, len(objects)) + places + names_attribute(*(name.encode() for name in objects))
    index = xdr(0x213, 1) + variables + names_attribute(b"variables")
    prefix.with_suffix(".rdb").write_bytes(data)
    prefix.with_suffix(".rdx").write_bytes(compress(head + index))


@pytest.mark.parametrize("version,compress", [(2, zlib.compress), (3, gzip.compress)])
def test_read_rdb(tmp_path, version, compress):
    poem = strsxp(charsxp(b"caf\xe9", 0x4009), charsxp(None, 9), charsxp("naïve".encode(), 0x8009), charsxp(b""))
    write_database(tmp_path / "db", version, {"numbers": xdr(13, 2, 4, 5), "poem": poem, "one": strsxp(charsxp(b"1"))},
                   compress)
    reader = [sys.executable, ROOT / "scripts" / "read_rdb.py", tmp_path / "db"]
    assert run([*reader, "one", "poem"]).stdout == "1\ncafé\n\nnaïve\n\n"
    assert "has no prose; it has numbers, poem, one" in run([*reader, "prose"], code=1).stderr
    (tmp_path / "db.rdb").write_bytes((tmp_path / "db.rdb").read_bytes()[:-20])
    assert "read_rdb.py:" in run([*reader, "one"], code=1).stderr
    (tmp_path / "db.rdx").write_bytes(b"nonsense")
    assert "read_rdb.py:" in run([*reader, "one"], code=1).stderr
