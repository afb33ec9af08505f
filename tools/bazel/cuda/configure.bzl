"""Finds the CUDA toolkit once and publishes it as @local_cuda, with a dummy in its place when there is none.

@local_cuda//:defs.bzl carries CUDA_FOUND, CUDA_NVCC and CUDA_VERSION; the version is part of the kernels' compile
action, so that another toolkit rebuilds them. @local_cuda//:headers is cuda.h (empty without a toolkit).
"""

def _find(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME", "")
    candidates = [home] if home else ["/usr/local/cuda", "/usr/lib/cuda", "/opt/cuda"]
    for candidate in candidates:
        nvcc = repository_ctx.path(candidate + "/bin/nvcc")
        header = repository_ctx.path(candidate + "/include/cuda.h")
        if nvcc.exists and header.exists:
            return candidate
    return None

def _cuda_configure_impl(repository_ctx):
    home = _find(repository_ctx)
    if home:
        result = repository_ctx.execute([home + "/bin/nvcc", "--version"])
        if result.return_code != 0:
            fail("%s/bin/nvcc --version failed: %s" % (home, result.stderr))
        version = [line for line in result.stdout.splitlines() if "release" in line][0].split(", V")[1].strip()
        for header in ["cuda.h", "cudaTypedefs.h"]:
            repository_ctx.symlink(home + "/include/" + header, "include/" + header)
    else:
        # buildifier: disable=print
        print("no CUDA toolkit (CUDA_HOME, /usr/local/cuda): only the software device is built")
        version = ""
    repository_ctx.file("defs.bzl", "CUDA_FOUND = %s\nCUDA_NVCC = %r\nCUDA_VERSION = %r\n" % (
        bool(home),
        (home + "/bin/nvcc") if home else "",
        version,
    ))
    repository_ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h"], allow_empty = True),
    includes = ["include"],
)
""")

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
