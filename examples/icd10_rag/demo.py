"""Retrieval turns over 74,260 ICD-10-CM codes, each answered with exactly one of the codes retrieved for it.

Starts a private Redis, vLLM with SmolLM2-135M and the maskfeed processor, and the gateway; then takes one clinical
note after another: search, post what was found as the permitted answers, print the answer and where the time went,
and beside it what vLLM's own `structured_outputs.choice` needed for the same turn. `make demo` installs and runs it.

Exit status: 0; 1 if an answer was not one of its candidates or a part failed; 130 after Ctrl-C.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from maskfeed_cache.private_redis import PrivateRedis
from processes import ChildFailed, Progress, Supervisor, http_answers
from retrieval import CodeIndex
from services import ENGINE_ENVIRONMENT, engine_command, free_port, gateway_command
from turns import STAGES, ConstrainedAnswer, NativeAnswer, WrongAnswer, ask_maskfeed, ask_native

_FOLDER = Path(__file__).resolve().parent
_CACHE = _FOLDER.parents[1] / ".cache"
_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the closing table."""

    n_candidates: int
    ours: ConstrainedAnswer
    native: NativeAnswer | None


class Narrator:
    """Tells a person what is going on: a spinner on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[Progress]:
        """Show `text` while the block runs; what it is given shows the seconds."""
        if not self.console.is_terminal:
            self.console.print(f"{text} ...")
            yield self._every_ten_seconds()
            return
        with self.console.status(text) as status:
            yield lambda elapsed_s, _line: status.update(f"{text} {elapsed_s:.0f} s")

    def _every_ten_seconds(self) -> Progress:
        told_s = 0.0

        def tell(elapsed_s: float, line: str) -> None:
            nonlocal told_s
            if elapsed_s - told_s >= 10:
                told_s = elapsed_s
                self.console.print(f"  {elapsed_s:.0f} s  {escape(line[:100])}")

        return tell


class Demo:
    """The running parts and a client for each of the two doors."""

    def __init__(self, supervisor: Supervisor, redis_url: str, narrator: Narrator) -> None:
        self._narrator = narrator
        engine_port, gateway_port = free_port(), free_port()
        engine_url, gateway_url = (f"http://127.0.0.1:{port}" for port in (engine_port, gateway_port))
        engine = supervisor.start(
            "vllm",
            engine_command(_CACHE / "models" / _MODEL, engine_port, maskfeed={"redis_url": redis_url}),
            environment=ENGINE_ENVIRONMENT,
        )
        with narrator.step("starting vLLM with SmolLM2-135M (about 30 s)") as progress:
            took_s = engine.wait_until(lambda: http_answers(f"{engine_url}/health"), timeout_s=600, progress=progress)
        narrator.console.print(f"vLLM is up after {took_s:.0f} s")
        gateway = supervisor.start("gateway", gateway_command(gateway_port, engine_url=engine_url, redis_url=redis_url))
        with narrator.step("starting the gateway; it proves that the engine enforces masks") as progress:
            took_s = gateway.wait_until(lambda: http_answers(f"{gateway_url}/ready"), timeout_s=120, progress=progress)
        narrator.console.print(f"the gateway is ready after {took_s:.0f} s")
        self._gateway = openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=120)
        self._engine = openai.OpenAI(base_url=f"{engine_url}/v1", api_key="none", max_retries=0)

    def warm_up(self, index: CodeIndex) -> None:
        """One small turn through each door, so that neither pays for first things in the first turn."""
        with self._narrator.step("warming both up"):
            ask_maskfeed(self._gateway, _MODEL, "fever", index.codes[:2])
            ask_native(self._engine, _MODEL, "fever", index.codes[:2], limit_s=120)

    def take_turn(self, index: CodeIndex, note: str, n_candidates: int, native_limit_s: float | None) -> Row:
        """Search, ask, print."""
        show = self._narrator.console.print
        retrieved = index.search(note, n_candidates)
        show(f"  note        {escape(_shortened(note))}")
        show(f"  candidates  {len(retrieved):,} of {len(index.codes):,} codes, retrieved for this note")
        with self._narrator.step("  asking through maskfeed"):
            ours = ask_maskfeed(self._gateway, _MODEL, note, retrieved)
        show(f"  answer      [bold]{ours.chosen.code}  {escape(ours.chosen.description)}[/bold]")
        stages = ", ".join(f"{stage} {ours.stage_ms[stage]:.1f}" for stage in STAGES)
        show(f"  maskfeed    {stages}; whole answer {ours.total_ms:,.0f} ms")
        native = None
        if native_limit_s is not None:
            with self._narrator.step(f"  asking vLLM's own choice (at most {native_limit_s:.0f} s)"):
                native = ask_native(self._engine, _MODEL, note, retrieved, limit_s=native_limit_s)
            verdict = native.problem or ("same answer" if native.text == ours.chosen.description else native.text)
            show(f"  vLLM alone  whole answer {native.total_ms:,.0f} ms ({escape(str(verdict))})")
        return Row(len(retrieved), ours, native)


def run(arguments: argparse.Namespace) -> None:
    """Start all, take the turns, print the table, stop all."""
    narrator = Narrator()
    notes = json.loads((_FOLDER / "notes.json").read_text())[: arguments.turns]
    with narrator.step("indexing the ICD-10-CM codes"):
        index = CodeIndex.from_file(_FOLDER / "icd10cm_billable.tsv.xz")
    with (
        tempfile.TemporaryDirectory(prefix="maskfeed-demo-") as folder,
        PrivateRedis(Path(folder)) as redis,
        Supervisor(_CACHE / "demo") as supervisor,
    ):
        demo = Demo(supervisor, redis.url, narrator)
        demo.warm_up(index)
        rows = []
        for number, turn in enumerate(notes, start=1):
            narrator.console.print(f"\n[bold]Turn {number} of {len(notes)}[/bold]")
            limit_s = None if arguments.skip_native else arguments.native_limit
            rows.append(demo.take_turn(index, turn["note"], turn["candidates"], limit_s))
        narrator.console.print(_table(rows))
        narrator.console.print(f"All {len(rows)} answers are members of their sets.")


def main() -> int:
    """Read the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=None, help="only the first so many notes")
    parser.add_argument("--skip-native", action="store_true", help="do not compare with vLLM's own choice")
    parser.add_argument("--native-limit", type=float, default=60.0, help="seconds until that is given up (60)")
    arguments = parser.parse_args()
    if not (_CACHE / "models" / _MODEL).exists():
        parser.error("the model is not there yet: `make demo` makes it")
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("\nstopped; every process of the demo has ended", file=sys.stderr)
        return 130
    except (ChildFailed, WrongAnswer, openai.OpenAIError) as error:
        print(f"\nthe demo failed: {error}\nlogs: {_CACHE / 'demo'}", file=sys.stderr)
        return 1
    return 0


def _shortened(note: str, width: int = 150) -> str:
    return note if len(note) <= width else f"{note[:width].rsplit(' ', 1)[0]} ..."


def _table(rows: list[Row]) -> Table:
    table = Table(title="\nMilliseconds", title_justify="left")
    for heading in ("candidates", *STAGES, "set ready", "whole answer", "vLLM's own choice"):
        table.add_column(heading, justify="right")
    for row in rows:
        stages = [f"{row.ours.stage_ms[stage]:.1f}" for stage in STAGES]
        native = "-" if row.native is None else row.native.problem or f"{row.native.total_ms:,.0f}"
        set_ready = f"{sum(row.ours.stage_ms.values()):.1f}"
        table.add_row(f"{row.n_candidates:,}", *stages, set_ready, f"{row.ours.total_ms:,.0f}", native)
    return table


if __name__ == "__main__":
    sys.exit(main())
