"""The C library's canonical JSON and identity keys against Python's json and hashlib, on generated documents.

Usage: canonical_test.py CANONICAL_TOOL [SEED [COUNT]]

Three comparisons, each repeatable from the seed that is printed:
  documents   values of every kind, spelt at random, must encode to json.dumps(sort_keys=True, ...)
  mutations   broken spellings: both refuse, or both accept with equal bytes, or the tool is stricter in one of
              the ways that stricter() lists
  identities  the key must be the SHA-256 of Python's encoding
"""

import hashlib
import json
import math
import random
import struct
import subprocess
import sys

MOST_DEPTH = 127
MOST_DIGITS = 4000  # Python refuses integers of more than 4300


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def integer(self):
        r = self.random
        bits = r.choice([1, 4, 8, 31, 32, 53, 63, 64, 65, 128, 400])
        near = r.choice([0, 2**31, 2**32, 2**53, 2**63, 2**64, 10**17])
        return r.choice([r.getrandbits(bits), near + r.randint(-2, 2), -r.getrandbits(bits), -near])

    def real(self):
        r = self.random
        kind = r.randrange(9)
        if kind == 0:
            value = struct.unpack("<d", struct.pack("<Q", r.getrandbits(64)))[0]
            return value if math.isfinite(value) else 0.5
        if kind == 1:
            return r.getrandbits(r.randint(1, 52)) * 5e-324  # subnormal
        if kind == 2:
            return math.ldexp(1.0, r.randint(-1074, 1023))  # where doubles become twice as dense
        if kind == 3:
            value = math.ldexp(1.0, r.randint(-1022, 1023))
            return r.choice([math.nextafter(value, 0.0), math.nextafter(value, math.inf)])
        if kind == 4:
            return float("%de%d" % (r.randint(1, 99), r.randint(-324, 306)))
        if kind == 5:
            return (2**51 + r.getrandbits(52)) / 2  # a half, at the edge of 53 bits
        if kind == 6:
            return r.choice([0.0, -0.0, 1e15, 1e16, 1e17, 1e-4, 1e-5, 1.7976931348623157e308, 2.2250738585072014e-308,
                             5e-324, 9999999999999998.0, 99999999999999990.0, 0.1, 1 / 3, 1e22, 1e23])
        return r.choice([1, -1]) * round(r.uniform(0, 10 ** r.randint(-8, 18)), r.randint(0, 8))

    def character(self):
        r = self.random
        low, high = r.choice([(0x20, 0x7e), (0x20, 0x7e), (0, 0x1f), (0x7f, 0xff), (0x100, 0xd7ff), (0xe000, 0xffff),
                              (0x10000, 0x10ffff), (0x22, 0x22), (0x5c, 0x5c), (0x2f, 0x2f), (0x2028, 0x2029)])
        return chr(r.randint(low, high))

    def string(self):
        r = self.random
        if r.random() < 0.1:
            return r.choice(["", "a", "\uffff", "\U00010000", "\u00e9", "e\u0301", "\x7f", "\x00"])
        return "".join(self.character() for _ in range(r.choice([0, 1, 2, 5, 20])))

    def value(self, depth=0):
        r = self.random
        kind = r.randrange(12) if depth < 6 else r.randrange(6)
        if kind == 0:
            return r.choice([None, True, False])
        if kind == 1:
            return self.integer()
        if kind in (2, 3):
            return self.real()
        if kind in (4, 5):
            return self.string()
        size = r.choice([0, 1, 2, 3, 8])
        if kind < 9:
            return [self.value(depth + 1) for _ in range(size)]
        return {self.string(): self.value(depth + 1) for _ in range(size)}

    def space(self):
        return "".join(self.random.choice(" \t\r") for _ in range(self.random.choice([0, 0, 0, 1, 2])))

    def spell_string(self, value):
        out = []
        for c in value:
            point = ord(c)
            if self.random.random() < 0.3 or point < 0x20 or c in '"\\':
                short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f",
                         "/": "\\/"}.get(c)
                units = c.encode("utf-16-be")
                digits = "".join("\\u" + units[i:i + 2].hex() for i in range(0, len(units), 2))
                if self.random.random() < 0.5:
                    digits = digits.upper().replace("\\U", "\\u")
                out.append(short if short and self.random.random() < 0.7 else digits)
            else:
                out.append(c)
        return '"' + "".join(out) + '"'

    def spell_real(self, value):
        forms = [repr(value), "%.17g" % value, "%.20e" % value, "%.30E" % value]
        text = self.random.choice(forms)
        return text if any(c in text for c in ".eE") else text + ".0"

    def spell(self, value):
        """One of the many texts of a value, in one line."""
        s = self.space
        if value is None or isinstance(value, bool):
            text = json.dumps(value)
        elif isinstance(value, int):
            text = "-0" if value == 0 and self.random.random() < 0.3 else str(value)
        elif isinstance(value, float):
            text = self.spell_real(value)
        elif isinstance(value, str):
            text = self.spell_string(value)
        elif isinstance(value, list):
            text = "[" + ",".join(self.spell(v) for v in value) + s() + "]"
        else:
            members = list(value.items())
            self.random.shuffle(members)
            text = "{" + ",".join(s() + self.spell_string(k) + s() + ":" + self.spell(v) for k, v in members) + s() + "}"
        return s() + text + s()

    def mutate(self, text):
        """Bytes near a text: one to three small changes."""
        r = self.random
        data = bytearray(text)
        pieces = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b"-", b"+", b".", b"e", b"1", b"NaN",
                  b"Infinity", b"null", b"\\u", b"\\ud800", b"\\udc00", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x01",
                  b"\x7f", b"\x00", b"/**/", b"'", b" ", b"\xef\xbb\xbf", b"e400", b"1e400", b"00", b"\xf0\x9f\x98\x80"]
        for _ in range(r.randint(1, 3)):
            at = r.randint(0, len(data))
            change = r.randrange(4)
            if change == 0:
                del data[at:at + r.randint(1, 4)]
            elif change == 1:
                data[at:at] = r.choice(pieces)
            elif change == 2:
                data[at:at + 1] = r.choice(pieces)
            else:
                end = min(len(data), at + r.randint(1, 12))
                data[at:at] = data[at:end]
        return bytes(data).replace(b"\n", b" ")


def ask(tool, lines, *arguments):
    """The tool's answer to each line, as (bytes or None, error)."""
    done = subprocess.run([tool, *arguments], input=b"".join(line + b"\n" for line in lines), stdout=subprocess.PIPE,
                          check=True)
    answers = done.stdout.split(b"\n")
    assert answers.pop() == b"" and len(answers) == len(lines), "an answer a line"
    return [(None, a[1:].decode()) if a[:1] == b"!" else (a, "") for a in answers]


class Strict(Exception):
    """What Python's reader lets pass and the library does not."""


def unique(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise Strict("a key twice")
    return dict(pairs)


def refuse_constant(text):
    raise ValueError(text)


def check_strings(value, depth=0):
    if isinstance(value, str) and any(0xd800 <= ord(c) <= 0xdfff for c in value):
        raise Strict("a lone surrogate")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("beyond a double")
    if isinstance(value, (list, dict)):
        if depth == MOST_DEPTH:
            raise Strict("too deep")
        for part in value:
            check_strings(part, depth + 1)
        if isinstance(value, dict):
            for part in value.values():
                check_strings(part, depth + 1)


def oracle(data):
    """Python's canonical bytes; ValueError where it refuses, Strict where only the library does."""
    value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse_constant)
    check_strings(value)
    return canonical(value).encode()


def compare_documents(tool, seed, count):
    generator = Generator(seed)
    values = [generator.value() for _ in range(count)]
    lines = [generator.spell(v).encode() for v in values]
    for value, line, (answer, error) in zip(values, lines, ask(tool, lines)):
        wanted = canonical(value).encode()
        assert answer == wanted, f"seed {seed}: {line!r}: got {answer!r} {error}, not {wanted!r}"
    # Whole, these are the numbers that matter most: one real a document says which one was wrong.
    reals = [generator.real() for _ in range(4 * count)]
    lines = [generator.spell_real(v).encode() for v in reals]
    for value, line, (answer, error) in zip(reals, lines, ask(tool, lines)):
        assert answer == repr(value).encode(), f"seed {seed}: {line!r}: got {answer!r} {error}, not {value!r}"
    long = [str(generator.random.getrandbits(4 * MOST_DIGITS // 2)).encode() for _ in range(20)]
    assert [a for a, _ in ask(tool, long)] == long


def compare_mutations(tool, seed, count):
    generator = Generator(seed + 1)
    lines = [generator.mutate(generator.spell(generator.value(3)).encode()) for _ in range(count)]
    for depth in (126, 127, 128, 129):
        lines += [b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth]
    outcomes = {"accepted": 0, "refused": 0, "stricter": 0}
    for line, (answer, error) in zip(lines, ask(tool, lines)):
        try:
            wanted = oracle(line)
        except Strict as why:
            outcomes["stricter"] += 1
            assert answer is None and error.startswith("E_CORRUPT"), f"seed {seed}: {line!r}: {why}: got {answer!r}"
        except ValueError as why:
            outcomes["refused"] += 1
            assert answer is None and error.startswith("E_CORRUPT"), f"seed {seed}: {line!r}: {why}: got {answer!r}"
        else:
            outcomes["accepted"] += 1
            assert answer == wanted, f"seed {seed}: {line!r}: got {answer!r} {error}, not {wanted!r}"
    assert all(outcomes.values()), f"each outcome was seen: {outcomes}"
    return outcomes


def random_identity(generator):
    r = generator.random

    def name():
        return "x" + generator.string().replace("\x00", "")

    size = r.choice([1, 2, 8, 2**32, 2**64 - 1])
    kind = r.choice(["base", "merged-lora", name()])
    return {
        "schema_version": 1,
        "source": {"model_id": name(), "revision": name(), "fingerprint": name(), "metadata": generator.value(2)},
        "component": {"name": name(), "ownership": name(), "metadata": generator.value(3)},
        "representation": {"name": name(), "dtype": "torch.bfloat16", "metadata": generator.value(3)},
        "layout": {"name": name(), "tensor_parallel_size": size, "tensor_parallel_rank": r.randrange(size),
                   "sequence_parallel_size": r.randint(1, 8), "sequence_parallel_backend": name(),
                   "metadata": generator.value(3)},
        "adaptation": {"kind": kind, "fingerprint": name() if kind != "base" else r.choice([None, name()]),
                       "metadata": generator.value(3)},
        "producer": {"producer_id": name(), "version": name(), "implementation_fingerprint": name(),
                     "manifest_schema": name(), "restorer_schema": name()},
    }


def compare_identities(tool, seed, count):
    generator = Generator(seed + 2)
    identities = [random_identity(generator) for _ in range(count)]
    lines = [generator.spell(i).encode() for i in identities]
    for identity, line, (answer, error) in zip(identities, lines, ask(tool, lines, "identity")):
        wanted = canonical(identity).encode()
        key = hashlib.sha256(wanted).hexdigest().encode()
        assert answer == key + b" " + wanted, f"seed {seed}: {line!r}: got {answer!r} {error}"
    # A key more, a key less, a value of another type.
    broken = []
    for identity in identities:
        section = generator.random.choice(sorted(set(identity) - {"schema_version"}))
        fields = identity[section]
        key = generator.random.choice(sorted(set(fields) - {"metadata"}))
        change = generator.random.randrange(3)
        if change == 0:
            del fields[key]
        elif change == 1:
            fields[key + "_"] = 1
        else:
            fields[key] = generator.random.choice([True, 1.0, [], {}])
        broken.append(generator.spell(identity).encode())
    for line, (answer, error) in zip(broken, ask(tool, broken, "identity")):
        assert answer is None and error.startswith("E_INVALID"), f"seed {seed}: {line!r}: got {answer!r} {error}"


def main(tool, seed=6414, count=4000):
    seed, count = int(seed), int(count)
    compare_documents(tool, seed, count)
    outcomes = compare_mutations(tool, seed, 2 * count)
    compare_identities(tool, seed, count // 4)
    print(f"seed {seed}: {5 * count + 20} values, mutations {outcomes}, {2 * (count // 4)} identities")


if __name__ == "__main__":
    main(*sys.argv[1:])
