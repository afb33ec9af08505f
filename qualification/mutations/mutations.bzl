"""The seeded mutations: each breaks one rule of the protocol or of the host-weight store, and some test must notice.

The lists are read by Bazel (BUILD: the drift test's inputs) and by Python (mutations.py), so they hold nothing but data.

  id      names the mutation in the table and on run.py's command line
  rule    the invariant (I1 to I10, docs/protocol.md) or requirement (docs/requirements.md) that it breaks
  breaks  what the mutated program does
  file    the source that is changed
  edits   pairs of an original text, which occurs once in the file, and what stands there instead
  test    the target that must fail
  case    its case that is run, alone; none for a test without cases
  config  "tsan" for an ordering that only the thread sanitizer sees; plain when left out
  hangs   whether a test that does not end counts as one that failed
"""

load(":core.bzl", "CORE")
load(":engine.bzl", "ENGINE")
load(":manager.bzl", "MANAGER")
load(":weights.bzl", "WEIGHTS")

MUTATIONS = CORE + MANAGER + ENGINE + WEIGHTS
