#!/usr/bin/env -S python3 -B
"""The lists of mutations still fit the sources: each original occurs once, each named target and case exists, and
table.md has the same ids in the same order. Reads the sources of other packages where they are."""

import os
import sys

import mutations

ROOT = os.path.dirname(os.path.dirname(mutations.HERE))


def read(*path):
    """A file of the sources."""
    with open(os.path.join(ROOT, *path), encoding="utf-8") as text:
        return text.read()


def check(mutation):
    """What is wrong with one mutation, or None."""
    package, name = mutation["test"][2:].split(":")
    try:
        mutations.mutate(mutation, read(mutation["file"]))
        # A macro may write the name; :catching_tests in BUILD asks Bazel itself.
        if f'"{name}"' not in read(package, "BUILD"):
            return f"{mutation['id']}: no target {mutation['test']}"
        if mutation["case"] and f"HL_CASE({mutation['case']})" not in read(package, name + ".c"):
            return f"{mutation['id']}: {mutation['test']} has no case {mutation['case']}"
    except (OSError, mutations.ListError) as error:
        return f"{mutation['id']}: {error}"
    return None


def main():
    """Prints what is wrong; 1 when something is."""
    listed = mutations.load()
    wrong = [fault for fault in map(check, listed) if fault]
    if mutations.table_ids(os.path.join(mutations.HERE, "table.md")) != [mutation["id"] for mutation in listed]:
        wrong.append("table.md has other ids than the lists: run run.py and commit the table that it writes")
    if len(listed) < 24:
        wrong.append(f"only {len(listed)} mutations are left")
    for fault in wrong:
        print(f"FAILED {fault}")
    print(f"{len(listed)} mutations, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
