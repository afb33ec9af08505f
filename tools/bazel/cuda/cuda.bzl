"""cuda_fatbin: one .cu compiled to a fatbin and embedded in an object, so that nothing links cudart or libcuda."""

load("@local_cuda//:defs.bzl", "CUDA_FOUND", "CUDA_NVCC", "CUDA_VERSION")

_GENCODE = " ".join(
    ["-gencode arch=compute_%s,code=sm_%s" % (arch, arch) for arch in ["80", "90", "100"]] +
    ["-gencode arch=compute_80,code=compute_80"],
)

def cuda_fatbin(name, src, hdrs = []):
    """Defines the cc_library `name` with the symbols NAME and NAME_end around the fatbin; empty without a toolkit.

    `nvcc -fatbin` writes the same bytes each time; an object from `nvcc -c` does not.
    """
    if not CUDA_FOUND:
        native.cc_library(name = name)
        return
    native.genrule(
        name = name + "_compile",
        srcs = [src] + hdrs,
        outs = [name + ".fatbin"],
        cmd = "# toolkit %s\n%s -fatbin -std=c++17 -O3 -I. %s -o $@ $(location %s)" % (CUDA_VERSION, CUDA_NVCC, _GENCODE, src),
        message = "Compiling kernels for sm_80, sm_90, sm_100 and PTX",
    )

    # The digest makes the assembler's input change with the fatbin: what .incbin reads is in no dependency list, so that
    # Bazel would take the object of an earlier fatbin for this one.
    native.genrule(
        name = name + "_wrap",
        srcs = [name + ".fatbin"],
        outs = [name + "_blob.S"],
        cmd = ("printf '.section .rodata\\n.balign 16\\n.globl {n}\\n{n}:\\n.incbin \"%s\"\\n.globl {n}_end\\n{n}_end:\\n" +
               ".byte 0\\n.section .note.GNU-stack,\"\",@progbits\\n/* %s */\\n' " +
               "$(location {n}.fatbin) $$(sha256sum <$(location {n}.fatbin) | cut -d' ' -f1) > $@").format(n = name),
    )
    native.cc_library(
        name = name,
        srcs = [name + "_blob.S"],
        alwayslink = True,
        copts = ["-g0"],  # the assembler would write the sandbox's path into debug information
        textual_hdrs = [name + ".fatbin"],
    )
