"""Retrieval turns over 74,260 ICD-10-CM codes, each answered with exactly one of the codes retrieved for it.

Starts a private Redis, vLLM with SmolLM2-135M and the maskfeed processor, and the gateway; then takes one clinical
note after another: search, post what was found as the permitted answers, print the answer and where the time went.
Then the same turns again through vLLM's own `structured_outputs.choice`. `make demo` installs and runs it.

Exit status: 0; 1 if an answer was not one of its candidates or a part failed; 130 after Ctrl-C.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import openai
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from maskfeed_cache.private_redis import PrivateRedis
from processes import ChildFailed, Progress, Supervisor, http_answers
from retrieval import Code, CodeIndex
from services import ENGINE_ENVIRONMENT, engine_command, free_port, gateway_command
from turns import STAGES, ConstrainedAnswer, NativeAnswer, WrongAnswer, ask_maskfeed, ask_native

_FOLDER = Path(__file__).resolve().parent
_CACHE = _FOLDER.parents[1] / ".cache"
_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Turn:
    """A note, what was retrieved for it, and the gateway's answer."""

    note: str
    retrieved: list[Code]
    ours: ConstrainedAnswer


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
        self.show = narrator.console.print
        engine_port, gateway_port = free_port(), free_port()
        engine_url, gateway_url = (f"http://127.0.0.1:{port}" for port in (engine_port, gateway_port))
        engine = supervisor.start(
            "vllm",
            engine_command(_CACHE / "models" / _MODEL, engine_port, maskfeed={"redis_url": redis_url}),
            environment=ENGINE_ENVIRONMENT,
        )
        with narrator.step("starting vLLM with SmolLM2-135M (about 30 s)") as progress:
            took_s = engine.wait_until(lambda: http_answers(f"{engine_url}/health"), timeout_s=600, progress=progress)
        self.show(f"vLLM is up after {took_s:.0f} s")
        gateway = supervisor.start("gateway", gateway_command(gateway_port, engine_url=engine_url, redis_url=redis_url))
        with narrator.step("starting the gateway; it proves that the engine enforces masks") as progress:
            took_s = gateway.wait_until(lambda: http_answers(f"{gateway_url}/ready"), timeout_s=120, progress=progress)
        self.show(f"the gateway is ready after {took_s:.0f} s")
        self._gateway = openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=120)
        self._engine = openai.OpenAI(base_url=f"{engine_url}/v1", api_key="none", max_retries=0)

    def warm_up(self, index: CodeIndex) -> None:
        """One small turn through each door, so that neither pays for first things in the first turn."""
        with self._narrator.step("warming both up"):
            ask_maskfeed(self._gateway, _MODEL, "fever", index.codes[:2])
            ask_native(self._engine, _MODEL, "fever", index.codes[:2], limit_s=120)

    def take_turn(self, index: CodeIndex, note: str, n_candidates: int) -> Turn:
        """Search, ask the gateway, print."""
        retrieved = index.search(note, n_candidates)
        self.show(f"  note        {escape(_shortened(note))}")
        self.show(f"  candidates  {len(retrieved):,} of {len(index.codes):,} codes, retrieved for this note")
        with self._narrator.step("  asking"):
            ours = ask_maskfeed(self._gateway, _MODEL, note, retrieved)
        self.show(f"  answer      [bold]{ours.chosen.code}  {escape(ours.chosen.description)}[/bold]")
        stages = ", ".join(f"{stage} {ours.stage_ms[stage]:.1f}" for stage in STAGES)
        self.show(f"  ms          {stages}; whole answer {ours.total_ms:,.0f}")
        return Turn(note, retrieved, ours)

    def compare(self, number: int, turn: Turn, limit_s: float) -> NativeAnswer:
        """Ask the engine itself for the same turn, print."""
        text = f"  turn {number}, {len(turn.retrieved):,} candidates"
        with self._narrator.step(f"{text}, at most {limit_s:.0f} s"):
            native = ask_native(self._engine, _MODEL, turn.note, turn.retrieved, limit_s=limit_s)
        same = "the same answer" if native.text == turn.ours.chosen.description else f"another answer: {native.text}"
        self.show(f"{text}: {native.total_ms:,.0f} ms, {escape(native.problem or same)}")
        return native


def run(arguments: argparse.Namespace) -> None:
    """Start all, take the turns, print the table, stop all."""
    narrator = Narrator()
    with narrator.step("indexing the ICD-10-CM codes"):
        index = CodeIndex.from_file(_FOLDER / "icd10cm_billable.tsv.xz")
    with (
        tempfile.TemporaryDirectory(prefix="maskfeed-demo-") as folder,
        PrivateRedis(Path(folder)) as redis,
        Supervisor(_CACHE / "demo") as supervisor,
    ):
        try:
            demo = Demo(supervisor, redis.url, narrator)
            demo.warm_up(index)
            turns = _take_turns(demo, index, arguments.turns)
            natives = [] if arguments.skip_native else _compare_turns(demo, turns, arguments.native_limit)
        except KeyboardInterrupt:
            narrator.console.print("\nstopping ...")
            raise
    narrator.console.print(_table(turns, natives))
    if any(native.problem for native in natives):
        narrator.console.print("  * failed or given up")
    narrator.console.print(f"All {len(turns)} answers are members of their sets.")


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


def _take_turns(demo: Demo, index: CodeIndex, n_turns: int | None) -> list[Turn]:
    notes = json.loads((_FOLDER / "notes.json").read_text())[:n_turns]
    turns = []
    for number, note in enumerate(notes, start=1):
        demo.show(f"\n[bold]Turn {number} of {len(notes)}[/bold]")
        turns.append(demo.take_turn(index, note["note"], note["candidates"]))
    return turns


def _compare_turns(demo: Demo, turns: list[Turn], limit_s: float) -> list[NativeAnswer]:
    # After all turns: a grammar that is given up is compiled to its end all the same, beside whatever comes next.
    demo.show("\n[bold]The same turns with vLLM's own structured_outputs.choice[/bold]")
    return [demo.compare(number, turn, limit_s) for number, turn in enumerate(turns, start=1)]


def _shortened(note: str) -> str:
    """Beginning and end: who it is, and what was found."""
    beginning, end = note[:60].rsplit(" ", 1)[0], note[-80:].split(" ", 1)[1]
    return f"{beginning} [...] {end}"


def _table(turns: list[Turn], natives: list[NativeAnswer]) -> Table:
    table = Table(title="\nMilliseconds", title_justify="left", box=SIMPLE)
    for heading in ("set of", *STAGES, "sum", "answer", "vLLM alone"):
        table.add_column(heading, justify="right")
    for turn, native in zip_longest(turns, natives):
        stages_ms = [turn.ours.stage_ms[stage] for stage in STAGES]
        alone = "-" if native is None else f"{native.total_ms:,.0f}{'*' if native.problem else ''}"
        figures = [f"{figure:.1f}" for figure in (*stages_ms, sum(stages_ms))]
        table.add_row(f"{len(turn.retrieved):,}", *figures, f"{turn.ours.total_ms:,.0f}", alone)
    return table


if __name__ == "__main__":
    sys.exit(main())
