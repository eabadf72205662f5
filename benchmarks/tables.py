"""The results of a run as text."""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["render", "verdict"]

# Sizes at which compile + first mask is to be this many times faster than the best peer.
_JUDGED = (10_000, 100_000)
_WANTED = 10.0
_PARTS = ("encode", "sort", "merge", "candidate_set", "trie", "masks", "to_bytes", "from_bytes")


def render(results: dict[str, Any]) -> str:
    """The tables of the sections that there are, one after the other, and the verdict."""
    sections: Sequence[tuple[str, str, Callable[[dict[str, Any]], list[list[str]]]]] = (
        ("start", "first use in a second process, seconds; kernels and automaton come from disk", _start),
        (
            "compile",
            "compile + first mask of a fresh list, ms; root masks equal (*: but for other tokens of forced text)",
            _compile,
        ),
        ("compile", "its parts, ms; candidate_set = encode + sort + merge + hash", _parts),
        ("apply", "the whole apply(), ms for all rows, mean of the first four steps, root step included", _apply),
        ("step", "the walk alone: Batch.step over 16 sets of 10,000 names", _step),
        ("catalogue", "a part of a catalogue by index, ms; equal to the compiled strings, byte for byte", _catalogue),
        (
            "forced_text",
            "tokens in forced text, % (the end of the answer counted as a step in brackets)",
            _forced,
        ),
        ("generate", "generate() of transformers, ms; masked scores equal", _generate),
        ("memory", "memory of a compile, MB", _memory_compile),
        ("memory", "memory of a tokenizer, MB", _memory_resident),
    )
    tables = [f"\n{title}\n{_table(rows(results))}" for key, title, rows in sections if key in results]
    if "compile" in results:
        tables.append(f"\n{verdict(results)}\n")
    return "\n".join(tables)


def verdict(results: dict[str, Any]) -> str:
    """Whether compiling is ten times faster than the best peer, in a sentence, with the least ratio of each size."""
    worst = {k: min(_ratios(results, k), default=None) for k in _JUDGED}
    if None in worst.values():
        return f"no word on ten times: no peer answered at {' and '.join(f'{k:,}' for k in _JUDGED)} candidates"
    found = [f"{ratio:.1f} times at {k:,} {kind} ({peer})" for k, (ratio, kind, peer) in worst.items()]
    reached = all(ratio >= _WANTED for ratio, _, _ in worst.values())
    claim = "ten times faster than the best of them" if reached else "not ten times faster than the best of them"
    kinds = list(dict.fromkeys(row["kind"] for row in results["compile"]))
    return f"{claim}: {', '.join(found)}; compile + first mask, the least of {', '.join(kinds)}"


def _ratios(results: dict[str, Any], k: int) -> list[tuple[float, str, str]]:
    """For each kind of set: how many times our time the best peer's is, the kind, and the peer."""
    found = []
    for row in results["compile"]:
        answers = [peer for peer in row["peers"] if "gave_up" not in peer] if row["k"] == k else []
        if answers:
            best = min(answers, key=lambda peer: peer["compile_and_first_mask"])
            ratio = best["compile_and_first_mask"] / row["compile_and_first_mask"]
            found.append((ratio, row["kind"], f"{best['peer']} {best['version']}"))
    return found


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) + "\n" for row in rows)


def _peer_columns(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((peer["peer"], peer["age"]) for row in rows for peer in row["peers"]))


def _peer_heads(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names with the version that was asked, like "xgrammar 0.2.8"."""
    versions = {(p["peer"], p["age"]): p["version"] for row in rows for p in row["peers"] if p["version"]}
    return [f"{name} {versions.get((name, age), age)}" for name, age in _peer_columns(rows)]


def _peer_cells(row: dict[str, Any], columns: Sequence[tuple[str, str]], ours: float, value: Any) -> list[str]:
    """A peer's figure and how many times ours it is; the reason if it failed; "-" if not asked."""
    answers = {(peer["peer"], peer["age"]): peer for peer in row["peers"]}
    cells = []
    for column in columns:
        answer = answers.get(column)
        if answer is None:
            cells.append("-")
        elif "gave_up" in answer:
            cells.append(f"failed: {answer['gave_up'][:24]}")
        else:
            mark = "*" if answer.get("difference") else ""
            cells.append(f"{value(answer):.2f} ({value(answer) / ours:.1f}x){mark}")
    return cells


def _start(results: dict[str, Any]) -> list[list[str]]:
    heads = [key for key in results["start"][0] if key != "tokenizer"]
    rows = [[row["tokenizer"], *(f"{row[head]:.3f}" for head in heads)] for row in results["start"]]
    return [["tokenizer", *(head.removesuffix("_s") for head in heads)], *rows]


def _compile(results: dict[str, Any]) -> list[list[str]]:
    measured = results["compile"]
    columns = _peer_columns(measured)
    rows = [["kind", "candidates", "maskfeed", *_peer_heads(measured)]]
    for row in measured:
        ours = row["compile_and_first_mask"]
        cells = _peer_cells(row, columns, ours, lambda answer: answer["compile_and_first_mask"])
        rows.append([row["kind"], f"{row['k']:,}", f"{ours:.3f}", *cells])
    return rows


def _parts(results: dict[str, Any]) -> list[list[str]]:
    rows = [["kind", "candidates", *_PARTS, "artifact MB", "nodes", "mask ids"]]
    for row in results["compile"]:
        sizes = [f"{row['artifact_bytes'] / 1e6:.2f}", f"{row['n_nodes']:,}", f"{row['n_mask_ids']:,}"]
        rows.append([row["kind"], f"{row['k']:,}", *(f"{row[part]:.3f}" for part in _PARTS), *sizes])
    return rows


def _apply(results: dict[str, Any]) -> list[list[str]]:
    measured = results["apply"]
    columns = _peer_columns(measured)
    rows = [["rows", "sets", "maskfeed", "bare fill", "ratio", "root ratio", *_peer_heads(measured)]]
    for row in measured:
        ours, bare = _mean(row["ms"]), _mean(row["bare_ms"])
        cells = _peer_cells(row, columns, ours, lambda answer: _mean(answer["ms"]))
        ratios = [f"{row['ratio']:.3f}", f"{row['root_ratio']:.3f}"]
        rows.append([f"{row['n_rows']}", f"{row['n_sets']}", f"{ours:.3f}", f"{bare:.3f}", *ratios, *cells])
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _step(results: dict[str, Any]) -> list[list[str]]:
    rows = [["rows", "step", "us", "us/row", "us/row warm", "ids/row"]]
    for row in results["step"]:
        figures = [f"{row['us']:.1f}", f"{row['us_per_row']:.3f}", f"{row['warm_us_per_row']:.3f}"]
        rows.append([f"{row['n_rows']}", f"{row['step']}", *figures, f"{row['ids_per_row']:.1f}"])
    return rows


def _catalogue(results: dict[str, Any]) -> list[list[str]]:
    rows = [["part", "of", "subset", "compile", "collect, compile", "pick", "encode, sort"]]
    for row in results["catalogue"]["parts"]:
        ours = row["subset"]
        times = [f"{row[key]:.3f} ({row[key] / ours:.2f}x)" for key in ("compile", "collect_and_compile")]
        parts = [f"{row['pick']:.3f}", f"{row['encode_and_sort']:.3f}"]
        part = f"{row['k']:,} {row['kind']}"
        rows.append([part, f"{results['catalogue']['k']:,}", f"{ours:.3f}", *times, *parts])
    return rows


def _forced(results: dict[str, Any]) -> list[list[str]]:
    names = list(dict.fromkeys(row["tokenizer"] for row in results["forced_text"]))
    by_set: dict[str, list[dict[str, Any]]] = {}
    for row in results["forced_text"]:
        by_set.setdefault(row["set"], []).append(row)
    rows = [["set", "candidates", *names]]
    for set_name, of_set in by_set.items():
        shares = [f"{100 * row['saved_share']:.1f} ({100 * row['saved_share_with_end']:.1f})" for row in of_set]
        rows.append([set_name, f"{of_set[0]['candidates']:,}", *shares])
    return rows


def _generate(results: dict[str, Any]) -> list[list[str]]:
    rows = [["codes", "beams", "compile", "token trie", "step", "step of prefix function"]]
    for row in results["generate"]:
        made = [f"{row['made_ms']:.2f}", f"{row['trie_ms']:.0f}"]
        steps = [f"{row['step_ms']:.3f}", f"{row['prefix_function_step_ms']:.3f}"]
        rows.append([f"{row['k']}", f"{row['n_rows']}", *made, *steps])
    return rows


def _memory_compile(results: dict[str, Any]) -> list[list[str]]:
    rows = [["kind", "candidates", "artifact", "peak while compiling"]]
    for row in results["memory"]["compile"]:
        sizes = [f"{row['artifact_bytes'] / 1e6:.2f}", f"{row['peak_bytes'] / 1e6:.2f}"]
        rows.append([row["kind"], f"{row['k']:,}", *sizes])
    return rows


def _memory_resident(results: dict[str, Any]) -> list[list[str]]:
    rows = [["tokenizer", "ids", "nodes", "automaton", "vocabulary"]]
    for row in results["memory"]["resident"]:
        sizes = [f"{row['automaton_bytes'] / 1e6:.2f}", f"{row['vocabulary_bytes'] / 1e6:.2f}"]
        rows.append([row["tokenizer"], f"{row['n_ids']:,}", f"{row['n_nodes']:,}", *sizes])
    return rows
