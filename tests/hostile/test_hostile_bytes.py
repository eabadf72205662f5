"""What reads artifacts, vocabularies and kept automata, under attack. `make hostile` does the same a million times."""

import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hostile.campaign import attack
from hostile.corpus import CORPUS, read_corpus
from hostile.mutations import mutation
from hostile.targets import targets
from maskfeed_automata import Automaton
from maskfeed_automata.errors import CorruptArtifact
from maskfeed_cache.store import hash_blob
from maskfeed_workers.loading import artifact_loader
from maskfeed_workers.shared_files import SharedFiles

TESTS = Path(__file__).resolve().parents[1]


def test_every_kept_mutation_is_refused_with_a_typed_error_or_in_bounds():
    report = attack(CORPUS)
    assert report.failures == []
    assert report.n_mutations == sum(1 for _ in read_corpus(CORPUS)) > 150
    assert CORPUS.stat().st_size < 200_000


def test_twenty_thousand_fresh_mutations_are_refused_with_a_typed_error_or_in_bounds():
    report = attack(10_000_000, 10_020_000)
    assert report.failures == []
    assert report.n_mutations == 20_000
    assert min(report.outcomes()[kind] for kind in ("refused", "equal", "sound")) > 1_000


@pytest.mark.parametrize("check", ["trie_is_sound", "ranks_are_sound", "rows_are_sound"])
def test_the_guard_pages_kill_a_process_that_leaves_out_a_check(check, tmp_path):
    """So a silent campaign means something."""
    progress = tmp_path / "progress"
    progress.write_bytes(struct.pack("<q", -1))
    code = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from hostile import victim
from maskfeed_automata import codec
codec.{check} = lambda *arguments: True
victim.main([{str(progress)!r}, "0", "8000"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    (seed,) = struct.unpack("<q", progress.read_bytes())
    assert mutation(seed).sealed


def test_a_sound_set_of_other_masks_has_another_hash_and_the_loader_refuses_it(tmp_path):
    """A checksum can be made right, the hash under which a set is asked for can't."""
    tmp_path.chmod(0o700)
    files = SharedFiles(tmp_path)
    originals = {target.name: hash_blob(target.blob) for target in targets()}
    n_refused = 0
    for each in read_corpus(CORPUS):
        if not each.sealed or each.target.automaton is None or each.blob == each.target.blob:
            continue
        load = artifact_loader(files, _Liar(each.blob), each.target.vocabulary)
        with pytest.raises(CorruptArtifact):
            load(originals[each.target.name], lambda: None)
        assert files.names() == []
        n_refused += 1
    assert n_refused > 100
    honest = targets()[0]
    load = artifact_loader(files, _Liar(honest.blob), honest.vocabulary)
    assert isinstance(load(originals[honest.name], lambda: None), Automaton)
    files.close()


class _Liar:
    """A store that answers with the same bytes whatever is asked for."""

    def __init__(self, blob):
        self._blob = blob

    def get(self, artifact_hash):
        return self._blob
