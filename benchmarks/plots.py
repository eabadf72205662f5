"""Figures as PNG: candidates against compile time, rows against step time, and memory."""

from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["draw"]

_SIZE_INCHES = (15, 4.6)


def draw(results: dict[str, Any], directory: Path) -> list[Path]:
    """Write compile.png, apply.png and memory.png, as far as their sections were measured.

    Raises:
        ImportError: no matplotlib; it comes with the extra `bench`.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    drawn = []
    for name, plot in (("compile", _compile), ("apply", _apply), ("memory", _memory)):
        if name not in results:
            continue
        figure = pyplot.figure(figsize=_SIZE_INCHES, layout="constrained")
        plot(figure, results)
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _compile(figure: Any, results: dict[str, Any]) -> None:
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for ours in results["compile"]:
        by_kind[ours["kind"]].append(ours)
    for axes, (kind, rows) in zip(figure.subplots(1, len(by_kind), squeeze=False)[0], by_kind.items(), strict=True):
        lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for ours in rows:
            lines["maskfeed"].append((ours["k"], ours["compile_and_first_mask"]))
            for theirs in ours["peers"]:
                if "gave_up" not in theirs:
                    label = f"{theirs['peer']} {theirs['version']}"
                    lines[label].append((ours["k"], theirs["compile_and_first_mask"]))
        for label, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label, linewidth=2.5 if label == "maskfeed" else 1)
        axes.set(xscale="log", yscale="log", title=kind, xlabel="candidates", ylabel="compile + first mask, ms")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left")


def _apply(figure: Any, results: dict[str, Any]) -> None:
    by_sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for ours in results["apply"]:
        if ours["n_sets"] == 1:
            by_sets["one set for all rows"].append(ours)
        if ours["n_sets"] == ours["n_rows"]:
            by_sets["a set for each row"].append(ours)
    for axes, (title, rows) in zip(figure.subplots(1, len(by_sets), squeeze=False)[0], by_sets.items(), strict=True):
        n_rows = [ours["n_rows"] for ours in rows]
        axes.plot(n_rows, [sum(ours["ms"]) / len(ours["ms"]) for ours in rows], marker="o", label="maskfeed")
        axes.plot(n_rows, [sum(ours["bare_ms"]) / len(ours["bare_ms"]) for ours in rows], label="bare fill and scatter")
        lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for ours in rows:
            for theirs in ours["peers"]:
                if "gave_up" not in theirs:
                    mean = sum(theirs["ms"]) / len(theirs["ms"])
                    lines[f"xgrammar {theirs['version']}"].append((ours["n_rows"], mean))
        for label, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set(xscale="log", yscale="log", title=title, xlabel="rows", ylabel="one step of the batch, ms")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _memory(figure: Any, results: dict[str, Any]) -> None:
    peaks, resident = figure.subplots(1, 2)
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in results["memory"]["compile"]:
        by_kind[row["kind"]].append(row)
    for kind, rows in by_kind.items():
        k = [row["k"] for row in rows]
        (line,) = peaks.plot(k, [row["artifact_bytes"] / 1e6 for row in rows], marker="o", label=f"{kind}: artifact")
        peak = [row["peak_bytes"] / 1e6 for row in rows]
        peaks.plot(k, peak, linestyle="--", color=line.get_color(), label=f"{kind}: peak while compiling")
    peaks.set(xscale="log", yscale="log", xlabel="candidates", ylabel="MB")
    peaks.grid(alpha=0.3)
    peaks.legend(fontsize=8)
    rows = results["memory"]["resident"]
    resident.barh(
        [f"{row['tokenizer']}, {row['n_ids']:,} ids" for row in rows], [row["automaton_bytes"] / 1e6 for row in rows]
    )
    resident.set(xlabel="resident automaton, MB")
