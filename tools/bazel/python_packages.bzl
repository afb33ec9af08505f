"""Python packages of tests that Debian does not have, each pinned to one version and the digests of its wheels.

pip installs into the external repository, not into the system: @NAME//:files is all of it, and its folder goes on
PYTHONPATH. The repository is fetched when a target that names it is first built, which needs a package index (pip's
own configuration says which), and then kept until the pins below change.
"""

_PYTHON = "/usr/bin/python3"

def _fail_without(result, what, remedy):
    if result.return_code != 0:
        fail("%s\n%s\n%s" % (what, (result.stdout + result.stderr).strip(), remedy))

def _python_packages_impl(repository_ctx):
    pins = ["%s --hash=%s\n" % (name, " --hash=".join(hashes)) for name, hashes in repository_ctx.attr.packages.items()]
    repository_ctx.file("requirements.txt", "".join(pins))
    _fail_without(
        repository_ctx.execute([_PYTHON, "-m", "pip", "--version"]),
        "@%s needs pip for %s, and there is none:" % (repository_ctx.name, _PYTHON),
        "Install the Debian package python3-pip (as root, ./run does).",
    )
    _fail_without(
        repository_ctx.execute([
            _PYTHON,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            "--no-cache-dir",
            "--no-compile",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--requirement=requirements.txt",
            "--target=packages",
        ]),
        "@%s: pip could not install %s:" % (repository_ctx.name, ", ".join(repository_ctx.attr.packages.keys())),
        "A package index must be within reach when these tests are built for the first time. Without one, leave out " +
        "the targets that depend on @%s: bazel test //... --build_tag_filters=-python-packages " % repository_ctx.name +
        "--test_tag_filters=-python-packages,-requires-gpu,-requires-engine",
    )
    repository_ctx.file("BUILD", """
filegroup(
    name = "files",
    srcs = glob(["packages/**"]),
    visibility = ["//visibility:public"],
)

# A file at the root of what goes on PYTHONPATH, for $(location).
exports_files(["requirements.txt"])
""")

_python_packages = repository_rule(
    implementation = _python_packages_impl,
    attrs = {
        "packages": attr.string_list_dict(
            mandatory = True,
            doc = "NAME==VERSION: digests (sha256:HEX) of its wheels, one for each kind of machine",
        ),
    },
)

def python_packages(name):
    """The repository with the pinned packages below.

    Args:
      name: of the repository.
    """
    _python_packages(
        name = name,
        packages = {
            # The wheels for CPython 3.10 and later on x86_64 and aarch64. 0.8 is the first that knows every dtype.
            "safetensors==0.8.0": [
                "sha256:fd6f3f93c9a0a7cc2788ee63fb763353d4bd2e89b0751bc78fcf7dda00bea774",
                "sha256:7a46e5ff292c356d6991e60942ba7f79817682d3a2cef0702136448cb9c4d235",
            ],
        },
    )
