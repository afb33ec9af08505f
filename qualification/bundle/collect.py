"""Describe the machine and the binaries of one GPU run as JSON on stdout: collect.py BUNDLE RESULTS."""

import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys


def output_of(*command):
    """The command's output, or None where the command is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def field(path, key):
    for line in pathlib.Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def main(bundle, results):
    bundle, results = pathlib.Path(bundle), pathlib.Path(results)
    query = "name,uuid,pci.bus_id,driver_version,vbios_version,memory.total,clocks.sm,clocks.mem,mig.mode.current"
    gpus = output_of("nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader")
    digests = dict(reversed(line.split(maxsplit=1)) for line in (bundle / "digests").read_text().splitlines())
    json.dump(
        {
            "finished": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": (bundle / "commit").read_text().split("\n")[:-1],
            "binaries_sha256": digests,
            "kernel": platform.uname()._asdict() | {"node": None},
            "cpu": field("/proc/cpuinfo", "model name"),
            "cpus": os.cpu_count(),
            "memory_total": field("/proc/meminfo", "MemTotal"),
            "gpu_fields": query.split(","),
            "gpus": [line.split(", ") for line in gpus.splitlines()] if gpus else None,
            "results": sorted(path.name for path in results.iterdir()),
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
