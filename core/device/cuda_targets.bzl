"""The CUDA back end's sources and tests: all of them where a toolkit was found, else the stand-in that says so."""

load("@local_cuda//:defs.bzl", "CUDA_FOUND")
load("//tools/bazel:hostlane.bzl", "hl_test")
load("//tools/bazel/cuda:cuda.bzl", "cuda_fatbin")

CUDA_SRCS = [
    "cuda.c",
    "cuda_copy.c",
    "cuda_device.h",
    "cuda_driver.c",
    "cuda_driver.h",
    "cuda_kernels.c",
    "cuda_memory.c",
    "cuda_stream.c",
] if CUDA_FOUND else ["cuda_absent.c"]

CUDA_DEPS = [
    ":hl_kernels",
    "@local_cuda//:headers",
] if CUDA_FOUND else []

def _fake_driver(name, entry):
    """lib`name`.so: answers as a CUDA driver with the entry point that cuda_fake_driver.c says."""
    native.cc_binary(
        name = "lib%s.so" % name,
        srcs = [
            "cuda_fake_driver.c",
            "cuda_fake_driver.h",
        ],
        linkshared = True,
        local_defines = ["FAKE_ENTRY=%d" % entry],
        testonly = True,
        deps = ["@local_cuda//:headers"],
    )

def cuda_targets(conformance_srcs):
    """Defines the embedded kernels and the CUDA tests; without a toolkit those that need none."""
    cuda_fatbin(
        name = "hl_kernels",
        src = "kernel.cu",
        hdrs = ["kernel_ptx.cuh"],
    )

    # The kernels compiled for the host.
    native.cc_library(
        name = "kernel_source",
        testonly = True,
        textual_hdrs = [
            "kernel.cu",
            "kernel_ptx.cuh",
        ],
    )
    native.cc_test(
        name = "kernel_test",
        size = "small",
        srcs = [
            "kernel_host.h",
            "kernel_test.cc",
        ],
        copts = [
            "-std=c++17",
            "-Wno-unknown-pragmas",
        ],
        linkopts = ["-lstdc++"],
        deps = [
            ":kernel_source",
            "//core/testing:cunit",
        ],
    )
    if not CUDA_FOUND:
        hl_test(
            name = "cuda_absent_test",
            srcs = ["cuda_absent_test.c"],
            deps = [":device"],
        )
        return

    _fake_driver("fake_no_driver", 0)
    _fake_driver("fake_cuda_11", 1)
    _fake_driver("fake_cuda", 2)
    hl_test(
        name = "cuda_driver_test",
        srcs = [
            "cuda_driver_test.c",
            "cuda_fake_driver.h",
        ],
        data = [
            ":libfake_cuda.so",
            ":libfake_cuda_11.so",
            ":libfake_no_driver.so",
        ],
        deps = [":device"],
    )

    # Drivers with the batched copy of CUDA 13.0, with that of 12.8, and with none.
    for name, version in (("cuda_test", "13000"), ("cuda_12080_test", "12080"), ("cuda_12060_test", "12060")):
        hl_test(
            name = name,
            srcs = [
                "cuda_fake_driver.h",
                "cuda_test.c",
            ],
            data = [":libfake_cuda.so"],
            env = {"FAKE_CUDA_VERSION": version},
            deps = [":device"],
        )

    hl_test(
        name = "kernel_embedded_test",
        srcs = ["kernel_embedded_test.c"],
        faults = False,
        plain_deps = [":hl_kernels"],
    )

    # The same program as device_conformance_test, on a GPU.
    native.cc_test(
        name = "device_conformance_cuda_test",
        size = "medium",
        srcs = conformance_srcs,
        env = {"HOSTLANE_TEST_DEVICE": "cuda"},
        tags = [
            "exclusive",
            "external",
            "local",
            "manual",
            "requires-gpu",
        ],
        deps = [
            ":device",
            "//core/base",
            "//core/testing:cunit",
        ],
    )
