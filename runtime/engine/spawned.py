"""The first thing that an engine's process runs. No torch here.

    python -m firmtoken.runtime.engine.spawned SOCKET POSITION STACKS PARENT     (file descriptors, process number)

Importing torch takes seconds, in which the parent may be killed or want to know what goes on; so the tie to it and the
answer to its question come first: SIGUSR1 writes the stacks of all threads to STACKS, whatever they do. In the same
seconds the system can look for the pages of the segments.
"""

import ctypes
import faulthandler
import gc
import importlib
import mmap
import os
import signal
import socket
import sys

from firmtoken.runtime.engine.channel import Channel
from firmtoken.runtime.engine.messages import Start
from firmtoken.runtime.engine.position import POSITION_BYTES, Position
from firmtoken.runtime.exit_codes import DONE
from firmtoken.runtime.memory.segment_pages import begin_to_take

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties the process to its parent, then runs the engine, which is imported only now."""
    die_with_parent()
    if os.getppid() != int(sys.argv[4]):
        sys.exit(DONE)  # it was gone before it could be tied to: nobody is left to tell
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=int(sys.argv[3]), all_threads=True)
    position = Position(mmap.mmap(int(sys.argv[2]), POSITION_BYTES))
    position.answer()
    # What is made from here to ready stays. To look through it again and again takes a fifth of the time of importing
    # torch and half of that of reading headers (Qwen3.6, 2-core VM).
    gc.disable()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    first = channel.wait()
    taking = begin_to_take(first.segments.values()) if isinstance(first, Start) else ()
    child = importlib.import_module("firmtoken.runtime.engine.child")
    sys.exit(child.run(channel, first, position, taking))


def die_with_parent() -> None:
    """The kernel kills us when the thread that started us ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
