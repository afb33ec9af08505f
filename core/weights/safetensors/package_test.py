"""The C library's safetensors files beside those of the Python package, in both directions.

Usage: package_test.py SAFETENSORS_TOOL [SEED [ROUNDS]]

Three comparisons, each repeatable from the seed that is printed:
  written   files of the C layout, in both orders, are read by the package: equal dtypes, shapes, bytes, metadata
  read      files of the package are read by the C readers with equal dtypes, shapes, offsets and bytes
  mutated   files changed a little: what the package refuses, both C readers refuse; where one accepts, it finds what
            the package finds; where the tolerant one refuses what the package accepts, it is for a listed reason
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy
import safetensors
import safetensors.numpy

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
NUMPY = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
         "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
         "U64": "uint64"}
# What the package writes besides, without numpy: its name of the type.
OTHERS = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
          "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2"}

# Why the tolerant reader refuses what the package lets pass.
STRICTER = ("is given twice", "empty name", "a NUL in", "its name holds a NUL", "the entry is array",
            "dtype is object", "has more bits of", "dimensions, of which 64 are allowed")


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def name(self, number):
        r = self.random
        part = "".join(chr(r.choice([r.randint(0x20, 0x7e), r.randint(0xa0, 0x2ff), r.randint(0x3040, 0x30ff),
                                     r.randint(0x1f600, 0x1f64f), 0x7f, 0x22, 0x5c, 0x0a]))
                       for _ in range(r.randint(0, 6)))
        return r.choice(["", "model.layers.", "A", "z", "_"]) + part + str(number)

    def shape(self, dtype):
        r = self.random
        shape = [r.choice([0, 1, 1, 2, 3, 5, 8]) for _ in range(r.choice([0, 0, 1, 1, 2, 3, 5]))]
        if BITS[dtype] % 8:
            shape = (shape or [0])[:-1] + [r.choice([0, 4, 8])]
        return shape

    def data(self, dtype, shape):
        size = BITS[dtype] * count(shape) // 8
        if dtype == "BOOL":
            return bytes(self.random.getrandbits(1) for _ in range(size))
        return self.random.randbytes(size)

    def tensors(self, dtypes):
        tensors = {}
        for number, dtype in enumerate(dtypes):
            shape = self.shape(dtype)
            tensors[self.name(number)] = (dtype, shape, self.data(dtype, shape))
        return tensors

    def metadata(self):
        return {self.name(i): self.name(i) for i in range(self.random.choice([0, 1, 3]))}


def count(shape):
    product = 1
    for dimension in shape:
        product *= dimension
    return product


class Tool:
    def __init__(self, path, folder):
        self.path, self.folder, self.files = path, folder, 0

    def place(self, data=None):
        self.files += 1
        path = os.path.join(self.folder, f"{self.files}.safetensors")
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def read(self, paths):
        done = subprocess.run([self.path, "read"], input="".join(p + "\n" for p in paths), stdout=subprocess.PIPE,
                              check=True, encoding="utf-8")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(paths), "an answer a file"
        return answers

    def write(self, tensors, metadata, order):
        spec = {"order": order, "metadata": metadata,
                "tensors": [{"name": n, "dtype": d, "shape": s} for n, (d, s, _) in tensors.items()]}
        paths = [self.place(json.dumps(spec).encode()), self.place(b"".join(t[2] for t in tensors.values())),
                 self.place()]
        subprocess.run([self.path, "write", *paths], check=True)
        return paths[2]


def load(path):
    with open(path, "rb") as file:
        return file.read()


def of_package(data):
    """What the package finds: {name: (dtype, shape, bytes)}."""
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}


def of_tool(answer, data):
    """What the C reader found, with the bytes of the ranges that it gave."""
    start = answer["data_offset"]
    return {t["name"]: (t["dtype"], t["shape"], data[start + t["begin"]:start + t["end"]]) for t in answer["tensors"]}


def check_written(tool, generator, seed, rounds):
    for number in range(rounds):
        dtypes = list(BITS) if number == 0 else generator.random.choices(list(BITS), k=generator.random.randint(0, 12))
        tensors, metadata = generator.tensors(dtypes), generator.metadata()
        for order in ("by_name", "aligned"):
            path = tool.write(tensors, metadata, order)
            data = load(path)
            assert of_package(data) == tensors, f"seed {seed}, written {number}, {order}: {path}"
            with safetensors.safe_open(path, framework="numpy") as file:
                assert (file.metadata() or {}) == metadata, f"seed {seed}, written {number}, {order}"
                for name, (dtype, shape, content) in tensors.items():
                    if dtype in NUMPY:
                        array = file.get_tensor(name)
                        assert array.dtype == NUMPY[dtype] and list(array.shape) == shape, name
                        assert array.tobytes() == content, f"seed {seed}, written {number}, {order}: {name!r}"


def serialized(tensors, metadata):
    """The package's file, of types that numpy need not know."""
    kept, specs = [], {}
    for name, (dtype, shape, content) in tensors.items():
        array = numpy.frombuffer(content + b"\0", dtype="uint8").copy()
        kept.append(array)
        # The package counts pairs of this type, and writes the count of its halves.
        listed = shape[:-1] + [shape[-1] // 2] if dtype == "F4" else shape
        specs[name] = safetensors.TensorSpec(dtype={**NUMPY, **OTHERS}[dtype], shape=listed,
                                             data_ptr=array.ctypes.data, data_len=len(content))
    return bytes(safetensors.serialize(specs, metadata=metadata))


def check_read(tool, generator, seed, rounds):
    files = []
    for number in range(rounds):
        known = list(NUMPY) + list(OTHERS)
        dtypes = known if number == 0 else generator.random.choices(known, k=generator.random.randint(0, 12))
        tensors, metadata = generator.tensors(dtypes), generator.metadata()
        files.append((tool.place(serialized(tensors, metadata or None)), tensors, metadata))
        arrays = {n: numpy.frombuffer(c, dtype=NUMPY[d]).reshape(s) for n, (d, s, c) in tensors.items() if d in NUMPY}
        path = tool.place()
        safetensors.numpy.save_file(arrays, path, metadata=metadata or None)
        files.append((path, {n: t for n, t in tensors.items() if t[0] in NUMPY}, metadata))
    for (path, tensors, metadata), answer in zip(files, tool.read([f[0] for f in files])):
        for mode in ("strict", "tolerant"):
            found = answer[mode]
            assert isinstance(found, dict), f"seed {seed}: {mode}: {path}: {found}"
            assert of_tool(found, load(path)) == tensors, f"seed {seed}: {mode}: {path}"
            assert found["metadata"] == metadata and found["tolerated"] == 0, f"seed {seed}: {mode}: {path}"


def spell(header, data, pad=True, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def change_bytes(r, data):
    """Bytes of the length and the header, or the file's end."""
    data = bytearray(data)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    pieces = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b"1", b"-", b".", b"e1", b"null", b"\\u0000",
              b"\\ud800", b"\xff", b"\xc0\xaf", b"\x00", b" ", b"18446744073709551616", b"U8", b"F64", b"true"]
    for _ in range(r.randint(1, 2)):
        at = r.randrange(8, header) if r.random() < 0.9 else r.randrange(8)
        piece = r.choice(pieces)
        data[at:at + len(piece)] = piece
    if r.random() < 0.2:
        data = data[:r.randrange(len(data) + 1)] if r.random() < 0.5 else data + b"\0" * r.randint(1, 9)
    return bytes(data)


def change_number(r, value):
    return r.choice([value, 0, 1, value + 1, max(0, value - 1), value * 2, 2**32, 2**61, 2**63, 2**64 - 1, 2**64, -1,
                     float(value), str(value), None, True, [value]])


def change_meaning(r, data):
    """The header's meaning: numbers, types, fields, entries, metadata."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    names = [n for n in header if n != "__metadata__"]
    tail, pad = data[8 + size:], True
    for _ in range(r.randint(1, 2)):
        change = r.randrange(14)
        name = r.choice(names) if names else None
        entry = header.get(name)
        if change == 0:
            header["__metadata__"] = r.choice([None, {}, {"k": 1}, {"k": None}, [], "x", {"": ""}, {"k": "\0"}])
        elif change == 1:
            tail = r.choice([tail[:-1], tail + b"\0", tail + tail])
        elif change == 2:
            pad = not pad
        elif not isinstance(entry, dict) or set(entry) < {"dtype", "shape", "data_offsets"}:
            continue
        elif change == 3 and entry["shape"]:
            at = r.randrange(len(entry["shape"]))
            if isinstance(entry["shape"][at], int):
                entry["shape"][at] = change_number(r, entry["shape"][at])
        elif change == 4:
            at = r.randrange(2)
            if isinstance(entry["data_offsets"][at], int):
                entry["data_offsets"][at] = change_number(r, entry["data_offsets"][at])
        elif change == 5:
            entry["dtype"] = r.choice([*BITS, "u8", "", None, 8, {entry["dtype"]: None} if
                                       isinstance(entry["dtype"], str) else 0])
        elif change == 6:
            del entry[r.choice(sorted(entry))]
        elif change == 7:
            entry[r.choice(["x", "Dtype", "strides", "shape "])] = r.choice([1, None, [[]], {"a": {}}])
        elif change == 8:
            header[r.choice(["", "new", "a\0b"])] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
        elif change == 9:
            header[name] = r.choice([None, 0, "x", [], [entry["dtype"], entry["shape"], entry["data_offsets"]]])
        elif change == 10:
            entry["shape"] = r.choice([[], entry["shape"] + [1], [1] + entry["shape"], [0, 2**64 - 1, 2],
                                       [2**64 - 1, 2, 0], [1] * 70 + entry["shape"]])
        elif change == 11:
            by = r.choice([1, 8, -1, -8])
            if all(isinstance(o, int) for o in entry["data_offsets"]):
                entry["data_offsets"] = [o + by for o in entry["data_offsets"]]
        elif change == 12:
            header[name] = header[r.choice(names)]
        elif change == 13:
            return change_text(r, header, tail)
    return spell(header, tail, pad)


def change_text(r, header, tail):
    """What a dictionary cannot say: white space, a name or a field twice."""
    text = json.dumps(header)
    change = r.randrange(5)
    if change == 0:
        text = r.choice([" ", "\n\t ", "\ufeff"]) + text
    elif change == 1:
        text += r.choice(["\n", "\t\r\n ", "\0", "x", "{}"])
    elif change == 2:
        name, entry = r.choice(list(header.items()))
        text = text[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}" + "}"
    elif change == 3:
        text = text.replace('"dtype":', r.choice(['"dtype": "U8", "dtype":', '"x": 1e400, "dtype":', '"x": 1, "dtype":']))
    else:
        text = text.replace("[", r.choice(["[ ", "[\n", "[/**/", "[,", "[-"]), r.randint(1, 3))
    return spell(text.encode(), tail)


def check_mutated(tool, generator, seed, rounds):
    r = generator.random
    bases = []
    for _ in range(20):
        tensors = generator.tensors(r.choices(list(BITS), k=r.randint(1, 5)))
        bases.append(load(tool.write(tensors, generator.metadata(), r.choice(["by_name", "by_name", "aligned"]))))
    files = [r.choice([change_bytes, change_meaning, change_meaning])(r, r.choice(bases)) for _ in range(rounds)]
    outcomes = {"refused": 0, "accepted": 0, "tolerated": 0, "stricter": 0}
    for data, answer in zip(files, tool.read([tool.place(f) for f in files])):
        strict, tolerant = answer["strict"], answer["tolerant"]
        say = f"seed {seed}: {data[:600]!r}: {strict}, {tolerant}"
        try:
            wanted = of_package(data)
        except Exception as why:
            assert isinstance(strict, str) and isinstance(tolerant, str), f"{say}: {why}"
            outcomes["refused"] += 1
            continue
        for found in (strict, tolerant):
            assert isinstance(found, str) or of_tool(found, data) == wanted, say
        if isinstance(strict, dict):
            assert isinstance(tolerant, dict) and tolerant["tolerated"] == 0, say
            outcomes["accepted"] += 1
        elif isinstance(tolerant, dict):
            assert tolerant["tolerated"] > 0, say
            outcomes["tolerated"] += 1
        else:
            assert any(reason in tolerant for reason in STRICTER), say
            outcomes["stricter"] += 1
    assert all(outcomes.values()), f"each outcome was seen: {outcomes}"
    return outcomes


def main(path, seed=6414, rounds=4000):
    seed, rounds = int(seed), int(rounds)
    generator = Generator(seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        tool = Tool(path, folder)
        check_written(tool, generator, seed, rounds // 80)
        check_read(tool, generator, seed, rounds // 20)
        outcomes = check_mutated(tool, generator, seed, rounds)
    print(f"safetensors {safetensors.__version__}, seed {seed}: {rounds // 80} written twice, {rounds // 20} read twice, "
          f"mutated {outcomes}")


if __name__ == "__main__":
    main(*sys.argv[1:])
