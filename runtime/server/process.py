"""The engine's process: spawned with a socket and the shared segments, watched, ended."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

ENGINE_COMMAND = (sys.executable, "-P", "-m", "firmtoken.runtime.engine.spawned")
"""`-P`: the working directory is not searched for modules, so a user's `schema.py` is not imported."""

READ_BYTES = 256 * 2**10
LAST_LINES = 20
LONGEST_LINE_BYTES = 2000
"""Of its output; a line may be a megabyte long, or never end."""
DRAIN_S = 0.3
"""How long the pipes of a dead process are still read; a grandchild could hold them open for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Anonymous shared memory that outlives the engine (D11): name to file descriptor."""

    descriptors: Mapping[str, int]

    def close(self) -> None:
        """Give the memory back, once no process maps it."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)


class NoSegments(Exception):
    """The system does not give the shared memory that the plan needs."""


def create_segments(sizes: Mapping[str, int]) -> Segments:
    """One memfd per name; pages are taken when first touched. Raises `NoSegments`."""
    descriptors: dict[str, int] = {}
    for name, size in sizes.items():
        try:
            descriptors[name] = os.memfd_create(f"ft-{name}", os.MFD_CLOEXEC)
            os.ftruncate(descriptors[name], size)
        except OSError as error:
            Segments(descriptors=descriptors).close()
            raise NoSegments(
                f"{size:,} bytes of shared memory for `{name}` were refused: {error.strerror}"
            ) from error
    return Segments(descriptors=descriptors)


class EngineProcess(asyncio.Protocol):
    """A running child, its socket and its output; owned by one client.

    It is the socket's protocol itself: a reader in a task of its own would wake twice for every token.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pipe: asyncio.ReadTransport,
        output: asyncio.StreamReader,
        receive: Callable[[bytes], bool],
    ) -> None:
        self._process = process
        self._pipe = pipe
        self._output = output
        self._receive = receive
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._hung_up = asyncio.Event()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        """The end of its output."""
        # asyncio's own subprocess waits for the end of every pipe too, which a grandchild may hold open.
        threading.Thread(target=self._reap, args=(asyncio.get_running_loop(),), daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended, as far as we have heard."""
        return not self._ended.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's side: our end of the socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio's side: what the child wrote to its socket."""
        if not self._receive(data):
            self._abort()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's side: no more will come; a reset is an end like any other."""
        self._hung_up.set()

    def write(self, data: bytes) -> None:
        """Queue bytes for the child; nothing is written to a child that is gone."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    async def hung_up(self) -> None:
        """Return once nothing more can come from the socket."""
        await self._hung_up.wait()

    async def lines(self) -> AsyncIterator[str]:
        """What the child writes to stdout and stderr, line by line."""
        rest = b""
        while data := await self._output.read(READ_BYTES):
            *whole, rest = (rest + data).split(b"\n")
            rest = rest[:LONGEST_LINE_BYTES]
            for line in whole:
                yield self._keep_line(line)
        if rest:
            yield self._keep_line(rest)

    async def wait(self, timeout_s: float) -> bool:
        """True if the child has ended within that time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL; harmless when it is already gone."""
        self._process.kill()

    def ask_for_stacks(self) -> None:
        """SIGUSR1; harmless when it is already gone."""
        self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Our ends of socket and pipe."""
        self._abort()
        self._pipe.close()

    @property
    def ended_by(self) -> int:
        """The signal that ended it; 0 if none did."""
        return max(0, -(self._process.returncode or 0))

    def ending(self) -> str:
        """How it ended, for people."""
        code = self._process.returncode
        if code is None:
            return "closed its socket"
        if code < 0:
            known = -code in set(signal.Signals)  # those between SIGRTMIN and SIGRTMAX have no name
            return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
        return f"ended with exit code {code}"

    def _keep_line(self, line: bytes) -> str:
        text = line[:LONGEST_LINE_BYTES].decode("utf-8", errors="replace").rstrip()
        self.last_lines.append(text)
        return text

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._note_end, loop)

    def _note_end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended.set()
        # Whoever else holds the socket must not keep us waiting.
        loop.call_later(DRAIN_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def spawn(
    command: Sequence[str],
    segments: Segments,
    environment: Mapping[str, str],
    receive: Callable[[bytes], bool],
    *,
    shared: Sequence[int],
) -> EngineProcess:
    """Start `command`; its last arguments are the numbers of its socket, the `shared` descriptors and this process.

    `receive` gets what it writes there, and answers False if it cannot be listened to any more.
    A process group of its own, so that Ctrl-C reaches the server alone, which then drains.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), *map(str, shared), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(), *shared, *segments.descriptors.values()),
            env=dict(environment),
            process_group=0,
        )
    assert process.stdout is not None
    output = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), process.stdout
    )
    ours.setblocking(False)
    engine = EngineProcess(process, pipe, output, receive)
    await asyncio.get_running_loop().create_connection(lambda: engine, sock=ours)
    return engine
