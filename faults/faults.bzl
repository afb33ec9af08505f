"""Tests and programs of the *_faults build: they link with the twins only."""

def hl_fault_binary(name, srcs, deps = [], plain_deps = [], linkopts = []):
    """A test's program, compiled with HL_FAULTS=1 against the *_faults twins of `deps`."""
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = linkopts,
        local_defines = ["HL_FAULTS=1"],
        deps = [_twin(d) for d in deps] + plain_deps,
    )

def hl_fault_test(name, srcs, deps = [], plain_deps = [], size = "small", tags = [], data = [], args = [], env = None, shard_count = None, linkopts = []):
    """A CUnit test of faults. Unlike the twin of an hl_test it runs in every pass, under sanitizers too."""
    native.cc_test(
        name = name,
        srcs = srcs,
        local_defines = ["HL_FAULTS=1"],
        deps = [_twin(d) for d in deps] + plain_deps + ["//core/testing:cunit"],
        linkopts = linkopts,
        size = size,
        tags = tags,
        data = data,
        args = args,
        env = env,
        shard_count = shard_count,
    )

def _twin(label):
    if ":" not in label:
        label = label + ":" + label.rsplit("/", 1)[-1]
    return label + "_faults"
