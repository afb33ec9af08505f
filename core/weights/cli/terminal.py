"""Runs a command on a terminal of its own and prints what it wrote there. Usage: terminal.py COMMAND …"""

import os
import pty
import sys

child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        chunk = os.read(terminal, 65536)
    except OSError:  # the last writer has gone
        break
    if not chunk:
        break
    sys.stdout.buffer.write(chunk)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
