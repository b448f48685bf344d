"""The engine's end of the socket: a thread reads messages into an inbox, the engine thread writes."""

import queue
import socket
import threading

import msgspec

from firmtoken.runtime.engine.messages import Down, Frames, Stop, Up, frame

READ_BYTES = 256 * 2**10


class Channel:
    """Owns the socket. When the server is gone, the inbox says `Stop`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unsent = bytearray()
        self._inbox: queue.SimpleQueue[Down] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def put(self, message: Up) -> None:
        """Keeps one message until the next `flush`: the server wakes once for all of a step."""
        self._unsent += frame(message)

    def flush(self) -> None:
        """Writes what was kept; raises `OSError` when nobody reads any more."""
        if self._unsent:
            unsent, self._unsent = self._unsent, bytearray()
            self._socket.sendall(unsent)

    def send(self, message: Up) -> None:
        """Writes one message at once, after those that were kept."""
        self.put(message)
        self.flush()

    def wait(self) -> Down:
        """The next message, however long it takes; costs nothing meanwhile."""
        return self._inbox.get()

    def arrived(self) -> list[Down]:
        """Messages that are here already."""
        messages = []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def _read(self) -> None:
        frames = Frames(msgspec.msgpack.Decoder(Down))
        try:
            while data := self._socket.recv(READ_BYTES):
                for message in frames.feed(data):
                    self._inbox.put(message)
        except OSError:
            pass  # a reset is an end like any other
        finally:
            self._inbox.put(Stop())
