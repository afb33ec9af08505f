"""Merge the gcov JSON files of one test run into an lcov tracefile with branch data.

Called by Bazel's collect_coverage with --coverage_dir, --output_file and --source_file_manifest. Only sources that
the manifest lists are kept, so that system headers do not dilute the percentage.
"""

import collections
import gzip
import json
import pathlib
import sys


class Source:
    """Counters of one source file, summed over the objects it was compiled into."""

    def __init__(self):
        self.functions = {}
        self.lines = collections.Counter()
        self.branches = collections.Counter()

    def add(self, record):
        for function in record["functions"]:
            name = function["name"]
            start, count = self.functions.get(name, (function["start_line"], 0))
            self.functions[name] = (start, count + function["execution_count"])
        for line in record["lines"]:
            number = line["line_number"]
            self.lines[number] += line["count"]
            for index, branch in enumerate(line.get("branches", [])):
                self.branches[number, index] += branch["count"]

    def write(self, path, out):
        out.write(f"SF:{path}\n")
        for name, (start, count) in sorted(self.functions.items(), key=lambda item: item[1][0]):
            out.write(f"FN:{start},{name}\nFNDA:{count},{name}\n")
        for (number, index), count in sorted(self.branches.items()):
            out.write(f"BRDA:{number},0,{index},{count}\n")
        for number, count in sorted(self.lines.items()):
            out.write(f"DA:{number},{count}\n")
        hit = sum(1 for count in self.lines.values() if count)
        out.write(f"LH:{hit}\nLF:{len(self.lines)}\nend_of_record\n")


def main(argv):
    options = dict(word[2:].split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    manifest = pathlib.Path(options["source_file_manifest"]).read_text().split("\n")
    wanted = {line.strip() for line in manifest if line.strip() and not line.strip().endswith(".gcno")}
    sources = collections.defaultdict(Source)
    for path in pathlib.Path(options["coverage_dir"]).rglob("*.gcov.json.gz"):
        with gzip.open(path, "rt") as stream:
            for record in json.load(stream)["files"]:
                if record["file"] in wanted:
                    sources[record["file"]].add(record)
    with open(options["output_file"], "w") as out:
        for path in sorted(sources):
            sources[path].write(path, out)


if __name__ == "__main__":
    main(sys.argv[1:])
