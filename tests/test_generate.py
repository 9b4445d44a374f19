"""What was trained can be read and used: names and shapes as in Hugging Face's GPT-2, logits as an independent plain
implementation has them, and samples that depend on the seed alone."""
import json
import math
import re
import shutil
import struct
from operator import mul

import pytest

from conftest import ROOT, TANDEM, checkpoint_of, run, train


def read_model(checkpoint):
    """config.json, and {name: (shape, values)} of model.safetensors."""
    data = (checkpoint / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // 4}f", data[start + begin:start + end]))
    assert sum(4 * len(values) for _, values in tensors.values()) == len(data) - start
    return json.loads((checkpoint / "config.json").read_text()), tensors


def gpt2_shapes(config):
    """GPT2LMHeadModel's parameters: linear layers are Conv1D, so their matrices are (inputs, outputs)."""
    c, shapes = config["n_embd"], {}
    shapes["transformer.wte.weight"] = [config["vocab_size"], c]
    shapes["transformer.wpe.weight"] = [config["n_positions"], c]
    for layer in range(config["n_layer"]):
        for name, sizes in (("ln_1", [c]), ("attn.c_attn", [c, 3 * c]), ("attn.c_proj", [c, c]), ("ln_2", [c]),
                            ("mlp.c_fc", [c, 4 * c]), ("mlp.c_proj", [4 * c, c])):
            shapes[f"transformer.h.{layer}.{name}.weight"] = sizes
            shapes[f"transformer.h.{layer}.{name}.bias"] = sizes[-1:]
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = [c]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], c]
    return shapes


class PlainGpt2:
    """GPT-2 in plain Python and double precision, one position after the other."""

    def __init__(self, config, tensors):
        self.heads, self.layers, self.context = config["n_head"], config["n_layer"], config["n_positions"]
        self.tensors = tensors
        self.columns = {name: [values[k::shape[1]] for k in range(shape[1])]
                        for name, (shape, values) in tensors.items() if len(shape) == 2}
        self.head = "lm_head.weight" if "lm_head.weight" in tensors else "transformer.wte.weight"

    def row(self, name, i):
        shape, values = self.tensors[name]
        return values[i * shape[1]:(i + 1) * shape[1]]

    def linear(self, x, name):
        bias = self.tensors[name + ".bias"][1]
        return [sum(map(mul, x, column)) + b for column, b in zip(self.columns[name + ".weight"], bias)]

    def norm(self, x, name):
        mean = sum(x) / len(x)
        scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + 1e-5)
        weight, bias = self.tensors[name + ".weight"][1], self.tensors[name + ".bias"][1]
        return [(v - mean) * scale * w + b for v, w, b in zip(x, weight, bias)]

    def attend(self, query, keys, values):
        size, out = len(query) // self.heads, []
        for part in (slice(h * size, (h + 1) * size) for h in range(self.heads)):
            score = [sum(map(mul, query[part], key[part])) / math.sqrt(size) for key in keys]
            weight = [math.exp(s - max(score)) for s in score]
            out += [sum(map(mul, weight, column)) / sum(weight) for column in zip(*(v[part] for v in values))]
        return out

    def logits(self, tokens):
        """Of the position behind the last token."""
        cache = [([], []) for _ in range(self.layers)]
        for position, token in enumerate(tokens):
            x = [a + b for a, b in zip(self.row("transformer.wte.weight", token), self.row("transformer.wpe.weight", position))]
            for layer, (keys, values) in enumerate(cache):
                name, c = f"transformer.h.{layer}.", len(x)
                qkv = self.linear(self.norm(x, name + "ln_1"), name + "attn.c_attn")
                keys.append(qkv[c:2 * c])
                values.append(qkv[2 * c:])
                x = [a + b for a, b in zip(x, self.linear(self.attend(qkv[:c], keys, values), name + "attn.c_proj"))]
                wide = self.linear(self.norm(x, name + "ln_2"), name + "mlp.c_fc")
                wide = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ** 3))) for v in wide]
                x = [a + b for a, b in zip(x, self.linear(wide, name + "mlp.c_proj"))]
        x = self.norm(x, "transformer.ln_f")
        return [sum(map(mul, x, self.row(self.head, i))) for i in range(self.tensors[self.head][0][0])]


def generate(checkpoint, *words, **options):
    return run(["env", "OMP_NUM_THREADS=1", TANDEM, "generate", "--checkpoint", checkpoint, *words], **options).stdout


@pytest.fixture(scope="module")
def untied(shards, tmp_path_factory):
    folder = tmp_path_factory.mktemp("untied")
    train(shards, folder, tie_embeddings="off", heads=4, vocab=300, steps=60, lr=5e-3)
    return folder


@pytest.mark.parametrize("model", ["trained", "untied"])
def test_names_and_shapes_are_those_of_gpt2(model, request):
    config, tensors = read_model(checkpoint_of(request.getfixturevalue(model)))
    assert {name: shape for name, (shape, _) in tensors.items()} == gpt2_shapes(config)
    assert config["model_type"] == "gpt2" and config["architectures"] == ["GPT2LMHeadModel"]
    assert config["activation_function"] == "gelu_new" and config["layer_norm_epsilon"] == 1e-5
    assert config["tie_word_embeddings"] == (model == "trained")
    assert all(math.isfinite(value) for _, values in tensors.values() for value in values)


@pytest.mark.parametrize("model", ["trained", "untied"])
def test_greedy_text_is_that_of_a_plain_implementation(model, text_file, request):
    """Also past the context, where only the newest tokens are looked at. A near tie may go either way."""
    run_dir = request.getfixturevalue(model)
    plain = PlainGpt2(*read_model(checkpoint_of(run_dir)))
    prompt = text_file.read_text()[1000:1000 + plain.context - 4]
    text = generate(run_dir, "--temperature=0", "--tokens=9", "--prompt", prompt)
    assert text.startswith(prompt) and text.endswith("\n") and len(text) == len(prompt) + 10
    for end in range(len(prompt), len(prompt) + 9):
        logits = plain.logits(text[max(0, end - plain.context):end].encode("latin1"))
        assert logits[ord(text[end])] > max(logits[:256]) - 1e-4


def test_samples_depend_on_the_seed_alone(trained):
    options = ["--tokens=30", "--prompt", "a"]
    first = generate(trained, *options, "--seed=1")
    assert first == generate(checkpoint_of(trained), *options, "--seed=1")
    assert first != generate(trained, *options, "--seed=2")
    assert generate(trained, *options, "--temperature=0") == generate(trained, *options, "--top-k=1")
    assert generate(trained, *options, "--temperature=0") == generate(trained, *options, "--top-p=0")


def test_samples_look_like_the_text(trained, text_file):
    """Of all pairs of letters a fifth occurs in the text."""
    text = text_file.read_text()
    pairs = {text[i:i + 2] for i in range(len(text) - 1)}
    sample = generate(trained, "--tokens=300", "--temperature=0.5", "--prompt", " ")
    assert sum(sample[i:i + 2] in pairs for i in range(300)) > 0.8 * 300


def complaint(*words):
    done = run([TANDEM, "generate", *words], code=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("tandem generate: ")
    return done.stderr


@pytest.fixture
def copy(trained, tmp_path):
    """A model as it may come from elsewhere: config.json and model.safetensors, and no checksums."""
    return shutil.copytree(checkpoint_of(trained), tmp_path / "copy", ignore=shutil.ignore_patterns("training.json", "optimizer*"))


def edit_config(checkpoint, **changes):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, **changes}))


def test_mistakes_are_told_in_one_line(trained, tmp_path):
    assert "no checkpoint in" in complaint("--checkpoint", tmp_path)
    assert "--prompt is empty" in complaint("--checkpoint", trained, "--prompt=")
    assert "--temperature: found '-1'" in complaint("--checkpoint", trained, "--temperature=-1")
    assert "--top-p: found '2'" in complaint("--checkpoint", trained, "--top-p=2")
    assert "did you mean 'temperature'" in complaint("--temprature=1")
    assert "found 'word'" in complaint("word")
    assert re.search("cuda.*not", complaint("--checkpoint", trained, "--device=cuda"))


def test_bad_checkpoints_are_told_in_one_line(copy):
    edit_config(copy, n_head=3)
    assert "does not split into n_head 3" in complaint("--checkpoint", copy)
    edit_config(copy, n_head=2, n_layer=3)
    assert "no tensor 'transformer.h.2." in complaint("--checkpoint", copy)
    edit_config(copy, n_layer=2, tandem_tokenizer="words")
    assert "words" in complaint("--checkpoint", copy)
    edit_config(copy, tandem_tokenizer="bytes", vocab_size=100)
    assert "--prompt holds token 122" in complaint("--checkpoint", copy, "--prompt=z")
    edit_config(copy, vocab_size=256)
    model = copy / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    assert "is truncated or damaged" in complaint("--checkpoint", copy)
    (copy / "config.json").write_text("{")
    assert "is not JSON" in complaint("--checkpoint", copy)


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("generate", "--help"), ("data", "--help"), ("info",)])
def test_help_and_info(words):
    done = run([TANDEM, *words])
    assert done.stderr == "" and len(done.stdout.splitlines()) > 3


def test_version_and_unknown_commands():
    assert run([TANDEM, "--version"]).stdout == f"tandem {(ROOT / 'VERSION').read_text().strip()}\n"
    assert "did you mean 'train'" in run([TANDEM, "trian"], code=2).stderr
    assert "usage: tandem" in run([TANDEM], code=2).stderr
