"""The mutations as Python sees them: each list is data that both Bazel and Python read."""

import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
LISTS = (("core.bzl", "CORE"), ("manager.bzl", "MANAGER"), ("engine.bzl", "ENGINE"), ("weights.bzl", "WEIGHTS"))
FIELDS = ("id", "rule", "breaks", "file", "edits", "test", "case", "config", "hangs")
CONFIGS = ("", "tsan", "asan")


class ListError(Exception):
    """A list is not what the head of mutations.bzl says, or does not fit the sources."""


def _entries(name, variable):
    scope = {"__builtins__": {"dict": dict}}
    path = os.path.join(HERE, name)
    with open(path, encoding="utf-8") as text:
        exec(compile(text.read(), path, "exec"), scope)  # pylint: disable=exec-used
    return scope[variable]


def load():
    """Every mutation as a dict with all of FIELDS. Raises ListError."""
    result, seen = [], set()
    for entry in [entry for name, variable in LISTS for entry in _entries(name, variable)]:
        mutation = {"case": "", "config": "", "hangs": False, **entry}
        unknown = set(mutation) - set(FIELDS)
        missing = set(FIELDS) - set(mutation)
        if unknown or missing:
            raise ListError(f"{entry.get('id')}: unknown {sorted(unknown)}, missing {sorted(missing)}")
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mutation["id"]) or mutation["id"] in seen:
            raise ListError(f"{mutation['id']}: no id, or a second one")
        if mutation["config"] not in CONFIGS:
            raise ListError(f"{mutation['id']}: config is {mutation['config']!r}, not one of {CONFIGS}")
        seen.add(mutation["id"])
        result.append(mutation)
    return result


def mutate(mutation, text):
    """The file's text with the mutation in it. Each original is replaced where it stands in `text` itself."""
    places = []
    for original, replacement in mutation["edits"]:
        count = text.count(original)
        if count != 1:
            raise ListError(f"{mutation['id']}: an original occurs {count} times in {mutation['file']}: {original!r}")
        if original == replacement:
            raise ListError(f"{mutation['id']}: changes nothing")
        places.append((text.index(original), original, replacement))
    places.sort()
    for before, after in zip(places, places[1:]):
        if before[0] + len(before[1]) > after[0]:
            raise ListError(f"{mutation['id']}: two originals overlap")
    for at, original, replacement in reversed(places):
        text = text[:at] + replacement + text[at + len(original):]
    return text


def table_ids(path):
    """The ids in the first column of table.md."""
    with open(path, encoding="utf-8") as text:
        return re.findall(r"^\| `([a-z0-9-]+)` \|", text.read(), re.MULTILINE)
