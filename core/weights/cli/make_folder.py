"""Makes a folder of safetensors files for weights_cli_test.sh, with the Python standard library alone.

Usage: make_folder.py FOLDER KIND [ARGUMENT]. Each KIND is a function below.
"""

import json
import os
import struct
import sys

FOLDER = sys.argv[1]


def content(size, seed):
    return bytes((i * 7 + seed) % 251 for i in range(size))


def write(name, tensors, change=lambda header: None, text=None, pad=True, extra=b""):
    """tensors: (name, dtype, shape, bytes); `change` edits the header; `text` edits its JSON."""
    header, data = {}, b""
    for seed, (tensor, dtype, shape, size) in enumerate(tensors):
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += content(size, seed)
    change(header)
    encoded = json.dumps(header)
    encoded = (text(encoded) if text else encoded).encode()
    if pad:
        encoded += b" " * (-len(encoded) % 8)
    with open(os.path.join(FOLDER, name), "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded + data + extra)


def index(weight_map, **metadata):
    with open(os.path.join(FOLDER, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": metadata, "weight_map": weight_map}, file)


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAP = {"a": ONE, "b": ONE, "c": TWO}


def one():
    write("model.safetensors", [("w.b", "F32", [2, 3], 24), ("w.a", "BF16", [4], 8), ("scale", "F32", [], 4)])


def big(size):
    write("model.safetensors", [("w%d" % i, "U8", [int(size) // 4], int(size) // 4) for i in range(4)])


def sharded():
    write(ONE, [("b", "F32", [2], 8), ("a", "U8", [5], 5)])
    write(TWO, [("c", "I64", [2], 16)])
    index(MAP, total_size=29)


def wrong_total():
    sharded()
    index(MAP, total_size=1)


def missing():  # the index has a tensor that no file has
    sharded()
    index(dict(MAP, d=TWO))


def extra():  # a file has a tensor that the index lacks
    sharded()
    index({"a": ONE, "c": TWO})


def elsewhere():  # the index has it in another file
    sharded()
    index(dict(MAP, b=TWO))


def twice():  # two files have one tensor
    write(ONE, [("b", "F32", [2], 8), ("a", "U8", [5], 5)])
    write(TWO, [("c", "I64", [2], 16), ("a", "U8", [5], 5)])
    index(MAP)


def shards_only():  # a download without its index
    sharded()
    os.remove(os.path.join(FOLDER, "model.safetensors.index.json"))


def strange():  # names that a terminal would obey, beside files of no concern
    write("model.safetensors", [("a/../b\x1b[31m\n", "U8", [2], 2), ("..", "U8", [1], 1)])
    for name in ["config.json", "pytorch_model.bin", "consolidated.safetensors"]:
        with open(os.path.join(FOLDER, name), "w") as file:
            file.write("{}")


def no_file():  # the index names a file that is not there
    sharded()
    os.remove(os.path.join(FOLDER, TWO))


def escaping():
    sharded()
    index(dict(MAP, b="../" + ONE))


def no_map():
    with open(os.path.join(FOLDER, "model.safetensors.index.json"), "w") as file:
        file.write('{"weights": {}}')


def bad_json():
    with open(os.path.join(FOLDER, "model.safetensors.index.json"), "w") as file:
        file.write('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')


def both():
    sharded()
    one()


def truncated():
    one()
    path = os.path.join(FOLDER, "model.safetensors")
    os.truncate(path, os.path.getsize(path) - 1)


def garbage():
    with open(os.path.join(FOLDER, "model.safetensors"), "wb") as file:
        file.write(b"\xff" * 64)


def no_tensor():
    write("model.safetensors", [])


def odd():  # all that the tolerant reader lets pass
    write("model.safetensors", [("x", "U8", [1], 1), ("y", "F32", [2], 8)],
          change=lambda header: header["x"].update(note="from elsewhere"),
          text=lambda encoded: " " + encoded[:-1] + ', "__metadata__": null}', pad=False)


def cached():  # the layout of a Hugging Face cache: a snapshot of links to blobs
    global FOLDER
    top = FOLDER
    FOLDER = os.path.join(top, "blobs")
    os.makedirs(FOLDER)
    sharded()
    snapshot = os.path.join(top, "snapshots", "0123")
    os.makedirs(snapshot)
    for number, name in enumerate([ONE, TWO, "model.safetensors.index.json"]):
        os.rename(os.path.join(FOLDER, name), os.path.join(FOLDER, "blob%d" % number))
        os.symlink("../../blobs/blob%d" % number, os.path.join(snapshot, name))


def pipe():
    os.mkfifo(os.path.join(FOLDER, "model.safetensors"))


os.makedirs(FOLDER, exist_ok=True)
globals()[sys.argv[2]](*sys.argv[3:])
