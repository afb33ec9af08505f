"""The project's build macros: every library has a twin with fault points, built in the same invocation."""

_FAULTS = "_faults"

def _twin(label):
    """The *_faults label beside a label of this repository; labels of other repositories have no twin."""
    if label.startswith("@"):
        return label
    if ":" not in label:
        label = label + ":" + label.rsplit("/", 1)[-1]
    return label + _FAULTS

def hl_library(name, srcs = [], hdrs = [], deps = [], plain_deps = [], linkopts = [], local_defines = [], visibility = None, testonly = False, alwayslink = False):
    """A C library and its twin NAME_faults, compiled with HL_FAULTS=1 against the twins of `deps`.

    Args:
      name: the library; `deps` name such libraries, `plain_deps` targets without a twin (embedded kernels, headers).
    """
    for suffix, defines in (("", []), (_FAULTS, ["HL_FAULTS=1"])):
        native.cc_library(
            name = name + suffix,
            srcs = srcs,
            hdrs = hdrs,
            deps = (deps if not suffix else [_twin(d) for d in deps]) + plain_deps,
            linkopts = linkopts,
            local_defines = local_defines + defines,
            testonly = testonly or bool(suffix),
            alwayslink = alwayslink,
            visibility = visibility or ["//visibility:public"],
        )

def hl_test(name, srcs, deps = [], plain_deps = [], size = "small", tags = [], data = [], args = [], env = None, faults = True):
    """A CUnit test program, run against the production libraries and again as NAME_faults against their twins.

    The twin carries the tag "faults", so that a pass that needs one build only (the sanitizers) can leave it out.
    """
    for suffix in ("", _FAULTS) if faults else ("",):
        native.cc_test(
            name = name + suffix,
            srcs = srcs,
            deps = (deps if not suffix else [_twin(d) for d in deps]) + plain_deps + ["//core/testing:cunit"],
            local_defines = ["HL_FAULTS=1"] if suffix else [],
            size = size,
            tags = tags + (["faults"] if suffix else []),
            data = data,
            args = args,
            env = env,
        )
