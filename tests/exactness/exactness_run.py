"""`make exactness`: masks of every tokenizer and every set against brute force, xgrammar and llguidance.

Prints a table and exits with 1 if any mask differs, if a difference from an engine has no class, or if too little was
visited. `--quick` takes three tokenizers and a few sets, and no engines.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brute_force import BruteForce, Tokens
from candidate_sets import CANDIDATE_SET_NAMES, candidate_set
from grammar_engines import ENGINES, EngineCounts, compare_engine, make_engine
from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.errors import CandidateError
from nasty_sets import NASTY_SET_NAMES, nasty_set, token_edges
from tokenizer_files import FAMILY_NAMES, tokenizer_directory
from walks import Counts, compare_walks

_MOST_CANDIDATES = 5_000
_WANTED = 500
_WANTED_IN_ALL = 100_000
# Sets that are walked with a leading space too.
_SPACED = ("nasty_whitespace", "numeric_ids", "places_names", "prefix_pairs", "spaces", "not_utf8")
# Tokenizers that transformers loads from the directory, so that the engines see what their users give them.
_FOR_ENGINES = ("smollm2", "qwen3", "llama3", "gemma3", "gpt4o", "deepseek_v3", "llama2")
_ENGINE_CANDIDATES = 150
_ENGINE_WALKS = 20
_ENGINE_BYTES = 200

_QUICK_TOKENIZERS = ("smollm2", "gemma3", "llama3")
_QUICK_SETS = ("nested_runs", "not_utf8", "prefix_pairs", "emoji", "icd10cm_codes", "mcp_tools", "token_edges")


@dataclass(slots=True)
class Report:
    """What one tokenizer gave."""

    name: str
    size: int
    n_sets: int = 0
    counts: Counts = field(default_factory=Counts)
    engines: dict[str, EngineCounts] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def examine(name: str, quick: bool) -> Report:
    """All sets under one tokenizer."""
    start = time.process_time()
    vocabulary = Vocabulary.from_tokenizer(tokenizer_directory(name))
    token_bytes = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]
    # A vocabulary without control tokens of its own borrows its last id: a stop id may be any.
    stop_ids = vocabulary.stop_token_ids or (vocabulary.size - 1,)
    tokens = Tokens(token_bytes, stop_ids)
    report = Report(name, vocabulary.size)
    wanted = 150 if quick else _WANTED
    for set_name, candidates, leading_space in _sets(token_bytes, quick):
        label = f"{name} x {set_name} ({leading_space})"
        oracle = BruteForce(tokens, candidates, leading_space)
        if oracle.can_end is not None:
            report.faults += _refusal_faults(vocabulary, oracle, candidates, leading_space, label)
            spaces = {"never": [b""], "always": [b" "], "optional": [b"", b" "]}[leading_space]
            candidates = [c for c in candidates if all(space + c in oracle.members for space in spaces)]
            if not candidates:
                continue
            oracle = BruteForce(tokens, candidates, leading_space)
        automaton = compile(vocabulary, candidates, stop_token_ids=stop_ids, leading_space=leading_space)
        counts, _ = compare_walks(automaton, oracle, token_bytes, wanted, label)
        if counts.visited < wanted:
            report.faults.append(f"{label}: only {counts.visited} prefixes visited")
        report.faults += [f"{label}: {what}" for what in counts.mismatches[:3]]
        report.counts.add(counts)
        report.n_sets += 1
    if not quick and name in _FOR_ENGINES:
        _examine_engines(report, vocabulary, token_bytes, tokens)
    report.seconds = time.process_time() - start
    return report


def _refusal_faults(
    vocabulary: Vocabulary, oracle: BruteForce, candidates: Sequence[bytes], leading_space: str, label: str
) -> list[str]:
    """A list with candidates that no tokens spell is refused with the index of the first of them."""
    exact = [] if leading_space == "always" else [b""]
    spaces = exact if leading_space == "never" else [*exact, b" "]
    lost = [k for k, c in enumerate(candidates) if not any(space + c in oracle.members for space in spaces)]
    try:
        compile(vocabulary, candidates, leading_space=leading_space)
    except CandidateError as error:
        return [] if lost and error.context["index"] == lost[0] else [f"{label}: refused {error}, not {lost[:1]}"]
    return [f"{label}: candidate {lost[0]} was not refused"] if lost else []


def _sets(token_bytes: Sequence[bytes | None], quick: bool) -> Iterator[tuple[str, list[bytes], str]]:
    """Name, candidates and leading-space mode."""
    for name in (*NASTY_SET_NAMES, "token_edges", *CANDIDATE_SET_NAMES):
        if quick and name not in _QUICK_SETS:
            continue
        if name == "token_edges":
            candidates = token_edges(token_bytes)
        elif name in NASTY_SET_NAMES:
            candidates = nasty_set(name)
        else:
            candidates = _part_of([text.encode() for text in candidate_set(name)])
        yield name, candidates, "never"
        if name in _SPACED:
            yield name, candidates, "optional"
            yield name, candidates, "always"


def _part_of(candidates: list[bytes]) -> list[bytes]:
    """At most 5,000: half of them neighbours in sorted order (shared beginnings), the others from everywhere."""
    if len(candidates) <= _MOST_CANDIDATES:
        return candidates
    choose = random.Random(len(candidates))
    candidates.sort()
    start = choose.randrange(len(candidates) - _MOST_CANDIDATES // 2)
    part = set(candidates[start : start + _MOST_CANDIDATES // 2])
    part |= set(choose.sample(candidates, _MOST_CANDIDATES // 2))
    return choose.sample(sorted(part), len(part))


def _examine_engines(
    report: Report, vocabulary: Vocabulary, token_bytes: Sequence[bytes | None], tokens: Tokens
) -> None:
    made = {
        name: make_engine(name, tokenizer_directory(report.name), vocabulary.size, tokens.stop_token_ids)
        for name in ENGINES
    }
    report.engines = {name: EngineCounts() for name in ENGINES}
    for set_name, candidates, leading_space in _sets(token_bytes, quick=False):
        fitting = [text for text in candidates if len(text) < _ENGINE_BYTES and _is_text(text)]
        fitting = random.Random(set_name).sample(fitting, min(len(fitting), _ENGINE_CANDIDATES))
        oracle = BruteForce(tokens, fitting)
        if leading_space != "never" or not oracle.variants:
            continue
        automaton = compile(vocabulary, oracle.variants, stop_token_ids=tokens.stop_token_ids)
        counts, walks = compare_walks(automaton, oracle, token_bytes, 60, f"{report.name} x {set_name} for engines")
        report.faults += counts.mismatches[:3]
        for name, engine in made.items():
            found = compare_engine(engine, oracle, walks[:_ENGINE_WALKS], f"{name}, {report.name} x {set_name}")
            report.engines[name].add(found)
    report.faults += [what for counts in report.engines.values() for what in counts.unclassified]


def _is_text(candidate: bytes) -> bool:
    try:
        candidate.decode()
    except UnicodeDecodeError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and say whether everything is as it should be (0) or not (1)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few thousand prefixes, three tokenizers, no engines")
    parser.add_argument("--tokenizers", nargs="+", choices=FAMILY_NAMES, help="only these")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    names = options.tokenizers or (_QUICK_TOKENIZERS if options.quick else FAMILY_NAMES)
    start = time.perf_counter()
    # A fork would copy the locks of whoever's threads call this.
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        waiting = [pool.submit(examine, name, options.quick) for name in names]
        for done in as_completed(waiting):
            report = done.result()
            what = f"{report.counts.visited:,} prefixes, {len(report.faults)} faults"
            print(f"{report.name}: {what}, {report.seconds:.0f} s of CPU", file=sys.stderr, flush=True)
        reports = [done.result() for done in waiting]
    total = Report("all", 0)
    for report in reports:
        total.n_sets += report.n_sets
        total.counts.add(report.counts)
        total.faults += report.faults
    if not (options.quick or options.tokenizers) and total.counts.visited < _WANTED_IN_ALL:
        total.faults.append(f"{total.counts.visited} prefixes visited, {_WANTED_IN_ALL} are wanted")
    _print_masks([*reports, total])
    _print_engines(reports)
    for fault in total.faults:
        print(f"FAULT {fault}")
    print(f"{len(total.faults)} faults, {time.perf_counter() - start:.0f} s")
    print(verdict(reports, total, is_all=not (options.quick or options.tokenizers)))
    return 1 if total.faults else 0


def verdict(reports: Sequence[Report], total: Report, *, is_all: bool) -> str:
    """What the counts allow to say, in a sentence.

    Args:
        reports: of the tokenizers.
        total: their sum; its faults are what must not be.
        is_all: whether nothing was left out.
    """
    engines = {name: EngineCounts() for name in ENGINES}
    for report in reports:
        for name, counts in report.engines.items():
            engines[name].add(counts)
    compared = {name: counts for name, counts in engines.items() if counts.n_masks}
    judges = ["brute force", *(["a full grammar engine"] if compared else [])]
    scope = "every tokenizer and every set we could find" if is_all else "the tokenizers and sets that were asked for"
    figures = [f"{len(reports)} tokenizers, {total.n_sets} pairs with a set, {total.counts.visited:,} prefixes"]
    figures.append(f"{len(total.counts.mismatches):,} masks differ from brute force")
    for name, counts in compared.items():
        known, unknown = counts.classes.total(), len(counts.unclassified)
        figures.append(
            f"of {counts.n_masks:,} of {name} {known:,} for known reasons of its own, {unknown:,} for unknown ones"
        )
    equal = f"{'not ' if total.faults else ''}equal to {' and to '.join(judges)} on {scope}"
    return f"{equal} ({'; '.join(figures)})"


def _print_masks(reports: Sequence[Report]) -> None:
    columns = ("visited", "distinct", "branching", "terminal", "inside_character", "batch", "refused")
    heads = ("prefixes", "distinct", "branching", "terminal", "mid-character", "batch rows", "refused")
    print("Masks, over the whole vocabulary, against brute force")
    print(f"{'tokenizer':12}{'ids':>8}{'sets':>6}" + "".join(f"{head:>15}" for head in heads) + f"{'mismatches':>12}")
    for report in reports:
        numbers = "".join(f"{getattr(report.counts, column):>15,}" for column in columns)
        print(f"{report.name:12}{report.size:>8}{report.n_sets:>6}{numbers}{len(report.counts.mismatches):>12}")


def _print_engines(reports: Sequence[Report]) -> None:
    for name in ENGINES if any(report.engines for report in reports) else ():
        total = EngineCounts()
        for report in reports:
            if report.engines:
                total.add(report.engines[name])
        n_different = total.classes.total()
        print(
            f"\n{name}: {total.n_masks:,} masks, {n_different:,} different and classified, "
            f"{len(total.unclassified)} unclassified, {total.refusals.total()} sets not taken"
        )
        for what, count in (total.classes + total.refusals).most_common():
            print(f"{count:>9,}  {what}")


if __name__ == "__main__":
    sys.exit(main())
