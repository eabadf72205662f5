"""The star: who may join, how fast an end is seen, and that nothing waits for ever."""

import contextlib
import select
import socket
import threading

import pytest

from maskfeed_automata.errors import RankFailure
from maskfeed_workers.frames import TOKEN_BYTES, Kind, Vote, encode_ack, encode_hello, encode_round, encode_vote
from maskfeed_workers.star import Exchange, Peer, connect_star

HASH = "ab" * 32


class Broadcast:
    """What the engine's collective does: hands rank 0's object to everybody, between threads."""

    def __init__(self):
        self.sent = threading.Event()
        self.invitation = None

    def as_rank_0(self, invitation):
        self.invitation = invitation
        self.sent.set()
        return invitation

    def as_member(self, nothing):
        assert nothing is None
        assert self.sent.wait(10)
        return self.invitation


def connect_all(size, *, tcp_host=None, on_invitation=lambda invitation: None, timeout_s=10.0):
    broadcast = Broadcast()
    stars = {}

    def announce(invitation):
        on_invitation(invitation)
        return broadcast.as_rank_0(invitation)

    def join(rank):
        exchange = Exchange(announce if rank == 0 else broadcast.as_member, tcp_host)
        stars[rank] = connect_star(rank=rank, size=size, exchange=exchange, timeout_s=timeout_s)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    return stars


def close(stars):
    for peers in stars.values():
        for peer in peers:
            peer.close()


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    peers = Peer(1, left), Peer(0, right)
    yield peers
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("tcp_host", [None, "127.0.0.1"], ids=["unix", "tcp"])
def test_every_member_is_connected_to_rank_0(tcp_host):
    stars = connect_all(4, tcp_host=tcp_host)
    assert [peer.rank for peer in stars[0]] == [1, 2, 3]
    for member in stars[0]:
        member.send(encode_round(member.rank, HASH))
    for rank in (1, 2, 3):
        (root,) = stars[rank]
        (frame,) = wait_for_frames(root)
        assert (frame.kind, frame.round_number) == (Kind.ROUND, rank)
        root.send(encode_vote(rank, Vote.READY))
    for member in stars[0]:
        (frame,) = wait_for_frames(member)
        assert frame.round_number == member.rank
    close(stars)


def wait_for_frames(peer):
    frames = []
    while not frames:
        assert select.select([peer], [], [], 10)[0], "nothing came"
        frames = peer.receive()
    return frames


def test_strangers_are_sent_away_and_do_not_hold_up_the_others():
    strangers = []

    def intrude(invitation):
        family, address, _ = invitation
        for greeting in (
            encode_hello(1, b"x" * TOKEN_BYTES),
            encode_hello(1, b"short"),
            encode_ack(1),
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
        ):
            stranger = socket.socket(family)
            stranger.connect(address)
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            strangers.append(stranger)

    stars = connect_all(2, tcp_host="127.0.0.1", on_invitation=intrude)
    assert [peer.rank for peer in stars[0]] == [1]
    for stranger in strangers:
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    close(stars)


def test_a_member_that_never_comes_is_an_error_by_the_deadline():
    with pytest.raises(RankFailure):
        connect_star(rank=0, size=2, exchange=Exchange(lambda invitation: invitation), timeout_s=0.05)


def test_members_learn_that_rank_0_could_not_listen():
    told = []
    with pytest.raises(RankFailure):
        connect_star(rank=0, size=2, exchange=Exchange(told.append, "203.0.113.1"), timeout_s=1)
    assert told == [None]
    with pytest.raises(RankFailure):
        connect_star(rank=1, size=2, exchange=Exchange(lambda nothing: None), timeout_s=1)


@pytest.mark.parametrize("invitation", ["/tmp/x", (1, 2), (1, "/tmp/x", "text"), {"a": 1}])
def test_what_is_no_invitation_is_an_error(invitation):
    with pytest.raises(RankFailure):
        connect_star(rank=1, size=2, exchange=Exchange(lambda nothing: invitation), timeout_s=1)


def test_an_address_where_nobody_listens_is_an_error(tmp_path):
    invitation = (socket.AF_UNIX, "/nowhere/feed", b"t" * TOKEN_BYTES)
    with pytest.raises(RankFailure):
        connect_star(rank=1, size=2, exchange=Exchange(lambda nothing: invitation), timeout_s=1)


def test_the_end_of_a_peer_is_seen_at_once(pair):
    ours, theirs = pair
    assert ours.receive() == []
    theirs.close()
    with pytest.raises(RankFailure):
        ours.receive()
    with pytest.raises(RankFailure):
        ours.send(encode_ack(1))


def test_a_peer_that_talks_nonsense_counts_as_gone():
    ours, theirs = socket.socketpair()
    peer = Peer(1, ours)
    theirs.sendall(b"\xff" * 64)
    with pytest.raises(RankFailure):
        peer.receive()
    peer.close()
    theirs.close()


def test_what_the_socket_does_not_take_is_kept_and_sent_in_order(pair):
    ours, theirs = pair
    n_sent = 0
    while not ours.wants_to_send:
        n_sent += 1
        ours.send(encode_ack(n_sent))
    received = []
    while len(received) < n_sent:
        received += [frame.round_number for frame in theirs.receive()]
        ours.flush()
    assert received == list(range(1, n_sent + 1))
    assert not ours.wants_to_send


def test_a_peer_that_does_not_read_counts_as_gone_before_memory_runs_out(pair):
    ours, _ = pair
    with pytest.raises(RankFailure):
        send_all(ours, [encode_round(n, HASH) for n in range(100_000)])


def send_all(peer, frames):
    for frame in frames:
        peer.send(frame)
