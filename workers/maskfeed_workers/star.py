"""The connections between the ranks of one engine: a star with rank 0 in the middle.

UNIX sockets where the ranks share a host, TCP where they don't; a collective library is no alternative, because its
groups have no deadline that they survive. It knows how to connect and to move frames; it does not know what they
mean. Each `Peer` belongs to one thread. Invariants: nothing here waits except `connect_star`, and that not longer
than told; what can't be sent is kept up to a bound; a peer that is gone, talks nonsense or does not read raises
RankFailure, for ever.
"""

import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maskfeed_automata.errors import RankFailure
from maskfeed_workers.frames import TOKEN_BYTES, Frame, FrameReader, Kind, encode_hello

__all__ = ["Exchange", "Peer", "connect_star"]

# A frame has about 50 bytes: a peer that has not read this many for seconds never will.
_MAX_UNSENT_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 1 << 16
# A peer that acknowledges nothing for this long (ms), be it data or a probe after a quiet time (s), is gone.
_TCP_OPTIONS: Final = (
    (socket.TCP_NODELAY, 1),
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 20_000),
)
# Room for strangers beside the members.
_BACKLOG: Final = 128

# What is broadcast: (family, socket address, token), or None when rank 0 could not listen.
_Invitation = tuple[int, str | tuple[str, int], bytes]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the engine's own machinery lends for finding each other.

    `broadcast_address` is called once by every rank: with rank 0's invitation on rank 0, with None on the others; it
    returns rank 0's argument on all of them (`lambda address: get_tp_group().broadcast_object(address, src=0)`).
    """

    broadcast_address: Callable[[object | None], object]
    # this host's address for the others, where ranks span hosts; None = UNIX sockets
    tcp_host: str | None = None


class Peer:
    """One end of a connection between rank 0 and a member. Not thread-safe.

    Args:
        rank: of the other end.
        connection: connected; owned from now on.
    """

    def __init__(self, rank: int, connection: socket.socket, reader: FrameReader | None = None) -> None:
        self.rank = rank
        self._connection = connection
        self._reader = reader or FrameReader()
        self._unsent = bytearray()
        connection.setblocking(False)

    def fileno(self) -> int:
        """For poll."""
        return self._connection.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether poll should look for room to send."""
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Send an encoded frame, or keep what the socket does not take now.

        Raises:
            RankFailure: the peer is gone, or has stopped reading.
        """
        self._unsent += frame
        self.flush()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            raise RankFailure(f"rank {self.rank} does not read", reason="peer-stuck")

    def flush(self) -> None:
        """Send what was kept, as far as the socket takes it.

        Raises:
            RankFailure: the peer is gone.
        """
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            raise RankFailure(f"rank {self.rank} is gone: {error}", reason="peer-gone") from error

    def receive(self) -> list[Frame]:
        """The frames that have arrived; [] if none is complete.

        Raises:
            RankFailure: the peer is gone, or has sent something that is no frame.
        """
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise RankFailure(f"rank {self.rank} is gone: {error}", reason="peer-gone") from error
        if not data:
            raise RankFailure(f"rank {self.rank} is gone", reason="peer-gone")
        return self._reader.feed(data)

    def close(self) -> None:
        """End the connection; the other end sees it at once. Idempotent."""
        self._connection.close()


def connect_star(*, rank: int, size: int, exchange: Exchange, timeout_s: float) -> list[Peer]:
    """Connect all ranks; every rank calls it once, at the same point of its start.

    Returns:
        On rank 0 the members, by rank; on a member rank 0 alone.

    Raises:
        RankFailure: the star was not complete after `timeout_s`, or rank 0 could not listen.
    """
    ends_at = time.monotonic() + timeout_s
    try:
        return _accept_members(size, exchange, ends_at) if rank == 0 else [_join(rank, exchange, ends_at)]
    except OSError as error:
        raise RankFailure(f"rank {rank} of {size} could not connect: {error}", reason="star") from error


def _accept_members(size: int, exchange: Exchange, ends_at: float) -> list[Peer]:
    # The folder lives only while members connect; afterwards nobody can find the socket.
    with tempfile.TemporaryDirectory(prefix="maskfeed-") as folder:
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            listener = _listen(exchange.tcp_host, Path(folder))
        except OSError:
            # The others are waiting in the broadcast and must learn of it.
            exchange.broadcast_address(None)
            raise
        with listener:
            exchange.broadcast_address((int(listener.family), _address(listener), token))
            return _accept(listener, token, size, ends_at)


def _accept(listener: socket.socket, token: bytes, size: int, ends_at: float) -> list[Peer]:
    members: dict[int, Peer] = {}
    try:
        while len(members) < size - 1:
            listener.settimeout(_remaining(ends_at))
            connection, _ = listener.accept()
            peer = _greet(connection, token, size, ends_at)
            if peer is not None:
                members[peer.rank] = peer
    except OSError:
        for peer in members.values():
            peer.close()
        raise
    return [members[rank] for rank in sorted(members)]


def _listen(tcp_host: str | None, folder: Path) -> socket.socket:
    listener = socket.socket(_family(tcp_host), socket.SOCK_STREAM)
    try:
        listener.bind(str(folder / "feed") if tcp_host is None else (tcp_host, 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _family(tcp_host: str | None) -> socket.AddressFamily:
    if tcp_host is None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in tcp_host else socket.AF_INET


def _address(listener: socket.socket) -> str | tuple[str, int]:
    name: str | tuple[str, int] | tuple[str, int, int, int] = listener.getsockname()
    return name if isinstance(name, str) else (name[0], name[1])


def _greet(connection: socket.socket, token: bytes, size: int, ends_at: float) -> Peer | None:
    """Whoever connected, if it is one of our members; a stranger is sent away and costs no more than a moment."""
    reader = FrameReader()
    frames: list[Frame] = []
    with suppress(RankFailure, OSError):
        connection.settimeout(min(1.0, _remaining(ends_at)))
        while not frames and (data := connection.recv(_RECEIVE_BYTES)):
            frames = reader.feed(data)
        if _is_member(frames, token, size):
            _watch_closely(connection)
            return Peer(frames[0].round_number, connection, reader)
    connection.close()
    return None


def _is_member(frames: list[Frame], token: bytes, size: int) -> bool:
    if len(frames) != 1 or frames[0].kind is not Kind.HELLO or not 0 < frames[0].round_number < size:
        return False
    return secrets.compare_digest(frames[0].token(), token)


def _join(rank: int, exchange: Exchange, ends_at: float) -> Peer:
    invitation = exchange.broadcast_address(None)
    if invitation is None:
        raise RankFailure("rank 0 could not listen", reason="star")
    family, address, token = _read_invitation(invitation)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_remaining(ends_at))
        connection.connect(address)
        _watch_closely(connection)
        connection.sendall(encode_hello(rank, token))
    except OSError:
        connection.close()
        raise
    return Peer(0, connection)


def _read_invitation(invitation: object) -> _Invitation:
    match invitation:
        case [int(family), str(path), bytes(token)]:
            return family, path, token
        case [int(family), [str(host), int(port)], bytes(token)]:
            return family, (host, port), token
        case _:
            raise RankFailure(f"rank 0 broadcast {type(invitation).__name__}, no invitation", reason="star")


def _watch_closely(connection: socket.socket) -> None:
    """Between hosts: send frames at once, and notice within seconds that the other host is gone without a word."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _TCP_OPTIONS:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _remaining(ends_at: float) -> float:
    remaining = ends_at - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("not all ranks have connected in time")
    return remaining
