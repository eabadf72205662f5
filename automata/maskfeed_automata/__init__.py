"""The pure core: vocabularies, candidate sets, compiled automata, cursors and batches.

It knows no network, no clock, no threads; one module reads files (tokenizers, and the automata kept of them).
"""

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.batch import Batch, Rows
from maskfeed_automata.bitmask import allocate_bitmask, bitmask_width
from maskfeed_automata.builder import build, check_fits, compile, shortest_tokenisation
from maskfeed_automata.candidates import FORMAT_VERSION, CandidateSet, LeadingSpace, Limits
from maskfeed_automata.catalogue import Catalogue
from maskfeed_automata.cursor import Cursor
from maskfeed_automata.loader import load_tokenizer_automaton
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton
from maskfeed_automata.vocabulary import Vocabulary
from maskfeed_automata.warming import warm_kernels

__all__ = [
    "FORMAT_VERSION",
    "Automaton",
    "Batch",
    "CandidateSet",
    "Catalogue",
    "Cursor",
    "LeadingSpace",
    "Limits",
    "Rows",
    "TokenizerAutomaton",
    "Vocabulary",
    "allocate_bitmask",
    "bitmask_width",
    "build",
    "check_fits",
    "compile",
    "load_tokenizer_automaton",
    "shortest_tokenisation",
    "warm_kernels",
]
