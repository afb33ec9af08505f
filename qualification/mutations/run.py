#!/usr/bin/env -S python3 -B
"""Breaks one rule after the other in a copy of the sources and demands that a test notices.

The copy has the tracked files of the working tree and a Bazel output base of its own, both in the scratch folder, which
is kept: a second run builds little. First every test that the list names must pass on the unchanged copy, each with
the cases that are relied on. Then, for each mutation: apply it, run its case, restore. Caught is a mutation whose test
ran and failed. One that does not build is an error of the list; a test that does not end is a catch only where the
list says so. Ends with "N caught, M survived"; the exit status is 1 when one survived, did not build, or hung
unannounced, and 2 when the unchanged copy fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import mutations

ROOT = os.path.dirname(os.path.dirname(mutations.HERE))
TABLE = os.path.join(mutations.HERE, "table.md")
TEST_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 1800
CAUGHT, SURVIVED, BROKEN, HUNG = "caught", "SURVIVED", "DID NOT BUILD", "HUNG"


def git(*arguments):
    """What git says about the working tree."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout


class Copy:
    """A copy of the sources, and Bazel in it."""

    def __init__(self, scratch):
        self.sources = os.path.join(scratch, "sources")
        self.output = os.path.join(scratch, "bazel")
        self.cache = os.path.join(scratch, "cache")
        self.events = os.path.join(scratch, "events.json")

    def refresh(self):
        """Makes the copy equal to the tracked files, and writes only what differs: Bazel then builds only that."""
        wanted = {name for name in git("ls-files", "-z").split("\0") if name and os.path.lexists(os.path.join(ROOT, name))}
        present = set()
        for folder, folders, files in os.walk(self.sources):
            folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
            present.update(os.path.relpath(os.path.join(folder, name), self.sources) for name in files)
        for name in present - wanted:
            os.unlink(os.path.join(self.sources, name))
        for name in wanted:
            self._refresh_file(name)

    def _refresh_file(self, name):
        source, target = os.path.join(ROOT, name), os.path.join(self.sources, name)
        mode = os.stat(source).st_mode & 0o777
        with open(source, "rb") as file:
            content = file.read()
        try:
            with open(target, "rb") as file:
                same = file.read() == content
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            same = False
        if not same:
            with open(target, "wb") as file:
                file.write(content)
        if os.stat(target).st_mode & 0o777 != mode:
            os.chmod(target, mode)

    def read(self, name):
        """A source's text."""
        with open(os.path.join(self.sources, name), encoding="utf-8") as text:
            return text.read()

    def write(self, name, text):
        """Replaces a source's text."""
        with open(os.path.join(self.sources, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test(self, config, targets, cases, cached=True):
        """Runs the cases of the targets; not `cached`: also where Bazel has a result. Returns Bazel's exit status, its output, and {target: (status, log)}."""
        if os.path.exists(self.events):
            os.unlink(self.events)
        command = ["bazel", f"--output_base={self.output}", "test", f"--disk_cache={self.cache}", "--keep_going"]
        command += [f"--test_timeout={TEST_TIMEOUT_S}", "--test_output=summary", "--noshow_progress"]
        command += ["--test_tag_filters=", f"--build_event_json_file={self.events}"]
        command += [f"--config={config}"] if config else []
        command += [] if cached else ["--nocache_test_results"]
        command += [f"--test_arg={case}" for case in cases] + targets
        done = subprocess.run(command, cwd=self.sources, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=BUILD_TIMEOUT_S, check=False)
        return done.returncode, done.stdout, self._results()

    def _results(self):
        results = {}
        if not os.path.exists(self.events):
            return results
        with open(self.events, encoding="utf-8") as events:
            for line in events:
                event = json.loads(line)
                if "testResult" not in event:
                    continue
                result = event["testResult"]
                logs = [output["uri"] for output in result.get("testActionOutput", []) if output["name"] == "test.log"]
                text = ""
                for uri in logs:
                    with open(uri.removeprefix("file://"), encoding="utf-8", errors="replace") as log:
                        text += log.read()
                results[event["id"]["testResult"]["label"]] = (result["status"], text)
        return results


def how_it_failed(log):
    """What stopped the test, from its log."""
    sanitizer = re.search(r"(?:WARNING|ERROR): (\w+Sanitizer): (.*?)(?: \(pid.*\)| on .*)?$", log, re.MULTILINE)
    if sanitizer:
        return f"{sanitizer[1]}: {sanitizer[2]}"
    asserted = re.search(r"([\w./]+):(\d+): (\w+): Assertion `", log)
    if asserted:
        return f"assertion in {asserted[3]}()"
    checked = re.search(r"^ *(?:[\w.]+/)*([\w.]+\.[ch]):\d+: ", log, re.MULTILINE)
    if checked:
        return f"check in {checked[1]}"
    if not re.search(r"^\d+ passed, \d+ failed$", log, re.MULTILINE):
        return "the test died"
    return "the test failed"


def run_baseline(copy, chosen):
    """Whether each named case passes on the unchanged copy; prints what does not."""
    good = True
    for config in sorted({mutation["config"] for mutation in chosen}):
        cases = {}
        for mutation in chosen:
            if mutation["config"] == config:
                cases.setdefault(mutation["test"], set()).add(mutation["case"])
        groups = [{t: c for t, c in cases.items() if "" not in c}, {t: set() for t, c in cases.items() if "" in c}]
        for group in filter(None, groups):
            status, output, results = copy.test(config, sorted(group), sorted(set().union(*group.values())))
            for target, wanted in group.items():
                outcome, log = results.get(target, ("NO STATUS", ""))
                passed = re.findall(r"^(\d+) passed, 0 failed$", log, re.MULTILINE)
                if outcome != "PASSED" or (wanted and (not passed or int(passed[-1]) < len(wanted))):
                    print(f"unchanged, {target}: {outcome}, {passed} of {len(wanted)} cases passed")
                    good = False
            if status != 0:
                print(output[-4000:])
                good = False
    return good


def run_one(copy, mutation):
    """Applies the mutation, runs its case, restores. Returns the outcome, how, and the output to show."""
    pristine = copy.read(mutation["file"])
    copy.write(mutation["file"], mutations.mutate(mutation, pristine))
    try:
        cases = [mutation["case"]] if mutation["case"] else []
        status, output, results = copy.test(mutation["config"], [mutation["test"]], cases, cached=False)
    finally:
        copy.write(mutation["file"], pristine)
    outcome, log = results.get(mutation["test"], ("NO STATUS", ""))
    if outcome == "PASSED" and status == 0:
        return SURVIVED, "", ""
    if outcome == "FAILED" and status == 3:
        return CAUGHT, how_it_failed(log), ""
    if outcome == "TIMEOUT":
        return (CAUGHT if mutation["hangs"] else HUNG), "the test did not end", log[-1500:]
    return BROKEN, "", output[-3000:]


def write_table(path, commit, rows):
    """The committed table."""
    with open(path, "w", encoding="utf-8") as table:
        table.write("# Seeded mutations and the tests that catch them\n\n")
        table.write(f"Written by `run.py` from the sources of commit {commit}; not edited by hand. Each row breaks one rule in\n")
        table.write("a copy of the sources; the case named failed on it and passes without it.\n\n")
        table.write(f"{len(rows)} mutations, {sum(row['outcome'] == CAUGHT for row in rows)} caught.\n\n")
        table.write("| mutation | rule | what the mutated program does | file | test | failing case | noticed by |\n")
        table.write("|---|---|---|---|---|---|---|\n")
        for row in rows:
            test = row["test"] + (f" ({row['config']})" if row["config"] else "")
            how = row["how"] if row["outcome"] == CAUGHT else row["outcome"]
            table.write(f"| `{row['id']}` | {row['rule']} | {row['breaks']} | {row['file']} | {test} | {row['case']} | {how} |\n")


def options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutations and stop")
    parser.add_argument("--only", action="append", metavar="ID", help="run this one (may be repeated); writes no table")
    parser.add_argument("--scratch", default=os.path.join(tempfile.gettempdir(), "hostlane-mutations"), metavar="DIR",
                        help="the copy and Bazel's output base, kept between runs (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="the results (default: SCRATCH/results.json)")
    parser.add_argument("--table", default=TABLE, metavar="FILE", help="the table (default: %(default)s)")
    return parser.parse_args()


def main():
    """Runs what was chosen."""
    chosen_by = options()
    listed = mutations.load()
    chosen = [mutation for mutation in listed if not chosen_by.only or mutation["id"] in chosen_by.only]
    if chosen_by.only and len(chosen) != len(set(chosen_by.only)):
        print(f"unknown: {sorted(set(chosen_by.only) - {mutation['id'] for mutation in listed})}", file=sys.stderr)
        return 2
    if chosen_by.list:
        for mutation in chosen:
            print(f"{mutation['id']:42} {mutation['rule']:4} {mutation['file']:34} {mutation['breaks']}")
        return 0
    commit = git("rev-parse", "--short=12", "HEAD").strip()
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!qualification/mutations").strip():
        commit += " with changes"
    copy = Copy(os.path.abspath(chosen_by.scratch))
    copy.refresh()
    for mutation in chosen:
        mutations.mutate(mutation, copy.read(mutation["file"]))
    if not run_baseline(copy, chosen):
        print("the unchanged sources fail: nothing can be said about mutations")
        return 2
    rows = {}
    for mutation in sorted(chosen, key=lambda mutation: mutation["config"]):
        begin = time.monotonic()
        outcome, how, shown = run_one(copy, mutation)
        seconds = time.monotonic() - begin
        rows[mutation["id"]] = {**mutation, "outcome": outcome, "how": how, "seconds": round(seconds, 1)}
        print(f"{outcome:13} {mutation['id']:42} {seconds:5.1f} s  {how}", flush=True)
        if shown:
            print(shown)
    rows = [rows[mutation["id"]] for mutation in chosen]
    with open(chosen_by.json or os.path.join(chosen_by.scratch, "results.json"), "w", encoding="utf-8") as file:
        json.dump({"commit": commit, "mutations": rows}, file, indent=1)
    if not chosen_by.only:
        write_table(chosen_by.table, commit, rows)
    caught = sum(row["outcome"] == CAUGHT for row in rows)
    print(f"{caught} caught, {len(rows) - caught} survived")
    return 0 if caught == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
