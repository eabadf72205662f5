"""Main of a process that loads one artifact when it is told; imported by name in that process."""

from maskfeed_cache.store import hash_blob
from maskfeed_workers.shared_files import SharedFiles

__all__ = ["BLOB", "HASH", "load_in_another_process"]

BLOB = bytes(range(256)) * 1_000
HASH = hash_blob(BLOB)


def load_in_another_process(directory, connection):
    files = SharedFiles(directory)

    def fetch():
        connection.send("fetching")
        connection.recv()
        return BLOB

    connection.send("started")
    connection.recv()
    buffer = files.load(HASH, fetch)
    connection.send(buffer == BLOB)
    connection.recv()
