"""Load the same safetensors files to a GPU with other loaders, from a warm page cache, and time them.

usage: peers.py [--device cuda:0] [--runs N] [--peers NAME,...] [--json FILE] FILE...

Each loader runs in a process of its own: CUDA is up before its first run, and memory that a run gave back to torch
may be taken again by the next. A run ends when every tensor is on the device. The sum of each tensor's bytes is
compared between loaders. One that cannot be imported or fails is reported with its reason; no figure stands for it.
"""

import argparse
import gc
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time


def pinned_copy(torch, files, device):
    """What the link takes: one copy from one pinned buffer of as many bytes."""
    total = sum(os.path.getsize(name) for name in files)
    source = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    source.fill_(1)
    target = torch.empty(total, dtype=torch.uint8, device=device)

    def run():
        target.copy_(source, non_blocking=True)
        return {}

    return run


def load_file(_torch, files, device):
    import safetensors.torch

    def run():
        tensors = {}
        for name in files:
            tensors.update(safetensors.torch.load_file(name, device=device))
        return tensors

    return run


def safe_open(_torch, files, device):
    import safetensors

    def run():
        tensors = {}
        for name in files:
            with safetensors.safe_open(name, framework="pt", device=device) as opened:
                for key in opened.keys():
                    tensors[key] = opened.get_tensor(key)
        return tensors

    return run


def fastsafetensors(_torch, files, device):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def run():
        loader = SafeTensorsFileLoader(SingleGroup(), device, nogds=True)
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        tensors = {key: buffers.get_tensor(key) for key in loader.get_keys()}
        loader.close()
        return tensors

    return run


def runai(_torch, files, device):
    from runai_model_streamer import SafetensorsStreamer

    def run():
        tensors = {}
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files, owned=False)  # each tensor is copied before the next is asked for
            for key, tensor in streamer.get_tensors():
                tensors[key] = tensor.to(device)
        return tensors

    return run


def instanttensor(_torch, files, device):
    import instanttensor as package

    def run():
        with package.safe_open(list(files), framework="pt", device=device) as opened:
            return dict(opened.tensors())

    return run


# Name, what makes its run, the package whose version it states.
PEERS = {
    "pinned-copy": (pinned_copy, "torch"),
    "safetensors-load-file": (load_file, "safetensors"),
    "safetensors-safe-open": (safe_open, "safetensors"),
    "fastsafetensors": (fastsafetensors, "fastsafetensors"),
    "runai-model-streamer": (runai, "runai-model-streamer"),
    "instanttensor": (instanttensor, "instanttensor"),
}


def byte_sums(torch, tensors):
    return {
        key: int(tensor.reshape(-1).view(torch.uint8).sum(dtype=torch.int64).item())
        for key, tensor in sorted(tensors.items())
    }


def run_one(name, files, device, runs):
    """In this process: times of a first run and `runs` more, and the tensors' sums."""
    import torch

    torch.zeros(1, device=device)
    make, package = PEERS[name]
    run = make(torch, files, device)
    torch.cuda.synchronize()
    seconds, tensors = [], {}
    for _ in range(runs + 1):
        tensors = {}
        gc.collect()
        torch.cuda.synchronize()
        start = time.perf_counter()
        tensors = run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    sums = byte_sums(torch, tensors)
    return {
        "version": importlib.metadata.version(package),
        "torch": torch.__version__,
        "tensors": len(tensors),
        "seconds": seconds,
        "sums": sums,
    }


def run_apart(name, arguments):
    """The same in a child, whose last line of output is the result."""
    command = [sys.executable, os.path.abspath(__file__), "--one", name, "--device", arguments.device]
    command += ["--runs", str(arguments.runs), *arguments.files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {arguments.timeout} s"}
    if done.returncode != 0:
        return {"error": f"exit status {done.returncode}: {done.stderr.strip()[-600:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def rate(total, seconds):
    return total / seconds / 1e9


def describe(name, result, total):
    if "error" in result:
        return f"{name:24} failed: {result['error'].splitlines()[-1]}"
    first, later = result["seconds"][0], statistics.median(result["seconds"][1:])
    return f"{name:24} {result['version']:10} first {rate(total, first):6.2f}, then {rate(total, later):6.2f} GB/s"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=int, default=90, help="seconds for one loader")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="+")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.one:
        print(json.dumps(run_one(arguments.one, arguments.files, arguments.device, arguments.runs)))
        return 0
    for name in arguments.files:
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 26):
                pass
    total = sum(os.path.getsize(name) for name in arguments.files)
    results, sums = {}, None
    failed = False
    for name in arguments.peers.split(","):
        result = run_apart(name, arguments)
        found = result.pop("sums", None)
        if found:
            sums = sums or found
            result["same_bytes"] = found == sums
            failed |= found != sums
        if "error" not in result:
            result["bytes_per_s"] = total / statistics.median(result["seconds"][1:])
            result["first_bytes_per_s"] = total / result["seconds"][0]
        results[name] = result
        print(describe(name, result, total), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"program": "peers.py", "bytes": total, "files": len(arguments.files), "runs": arguments.runs,
                       "peers": results}, file, indent=1)  # fmt: skip
    if failed:
        print("peers.py: the loaders do not agree on the tensors' bytes", file=sys.stderr)
    return 1 if failed or all("error" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
