"""The command `maskfeed`: run the gateway, compile and inspect sets, look for what is missing.

A composition root: it reads options and environment, and prints. Data goes to stdout, logs to stderr. Exit code 0 is
success, 1 a failure, 2 a wrong option or setting.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Never, TypeVar, get_args

import click

from maskfeed import Automaton, CandidateSet, LeadingSpace, Vocabulary, __version__
from maskfeed.config import COMPILERS, GatewaySettings, unknown_variables
from maskfeed_automata import build
from maskfeed_automata.errors import MaskfeedError, ParameterError, StoreError

__all__ = ["main"]

_F = TypeVar("_F", bound=Callable[..., object])


class _ExplainedGroup(click.Group):
    """Prints errors of ours as one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ParameterError as error:
            raise click.UsageError(error.message) from error
        except (MaskfeedError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_ExplainedGroup)
@click.version_option(__version__)
def main() -> None:
    """A fresh list of permitted answers on every turn, as token masks, in milliseconds."""


def _connection_options(command: _F) -> _F:
    for option in (
        click.option("--group", help="Engine group behind the upstream URL."),
        click.option("--redis-url", help="Redis that the engine uses too; default: a private redis-server."),
        click.option("--upstream", "upstream_url", help="Base URL of the vLLM server."),
    ):
        command = option(command)
    return command


def _compiler_options(command: _F) -> _F:
    for option in (
        click.option("--ray-address", help="Ray cluster to compile in; default: RAY_ADDRESS, else a private one."),
        click.option("--compiler", type=click.Choice(COMPILERS), help="Who compiles: own threads, or Ray actors."),
    ):
        command = option(command)
    return command


def _json_option(command: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def _tokenizer_option(command: _F) -> _F:
    kind = click.Path(exists=True, path_type=Path)
    return click.option("--tokenizer", required=True, type=kind, help="Directory or file.")(command)


def _candidates_option(*, required: bool) -> Callable[[_F], _F]:
    return click.option(
        "--candidates",
        "candidates_file",
        required=required,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="One candidate per line, or a .json file with a list of strings.",
    )


def _leading_space_option(command: _F) -> _F:
    modes = click.Choice(get_args(LeadingSpace))
    return click.option("--leading-space", type=modes, default="never", show_default=True)(command)


@main.command()
@_connection_options
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.")
@click.option("--deadline-ms", type=int, help="Time until a set is ready, for requests that give none.")
@_compiler_options
def serve(**given: Any) -> None:
    """Run the gateway in front of a vLLM server.

    Prints MASKFEED_REDIS_URL, for the engine's environment, and MASKFEED_URL when it listens. Options win over the
    environment variables MASKFEED_*, which docs/settings.md lists. SIGTERM lets running requests end.
    """
    from maskfeed.service import app
    from maskfeed_cache.connection import check_url
    from maskfeed_cache.private_redis import PrivateRedis, maxmemory_for, well_known_directory

    settings = GatewaySettings.from_mapping(os.environ).with_overrides(**given)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    _warn_of_unknown_variables()

    def run(redis_url: str, keep_redis: Callable[[], Awaitable[Never]] | None = None) -> None:
        if keep_redis is not None:
            # for the engine; another's may hold a password, and whoever runs it knows it
            click.echo(f"MASKFEED_REDIS_URL={redis_url}")
        asyncio.run(
            app.serve(settings, redis_url, announce=lambda url: click.echo(f"MASKFEED_URL={url}"), beside=keep_redis)
        )

    try:
        address = settings.redis.address
        if address is not None:
            check_url(address)
    except StoreError as error:
        raise click.UsageError(f"MASKFEED_REDIS_URL or --redis-url: {error.message}") from error
    if address is not None:
        run(address)
        return
    if settings.compiler == "ray" and (settings.ray.address or os.environ.get("RAY_ADDRESS")):
        raise click.UsageError("actors of a Ray cluster can't reach a private Redis: give --redis-url, too")
    cache = settings.cache
    memory_bytes = maxmemory_for((cache.limit_bytes, cache.automata_limit_bytes, cache.named_limit_bytes))
    with PrivateRedis(well_known_directory(os.environ), maxmemory_bytes=memory_bytes) as private:
        run(private.url, private.keep_running)


@main.command()
@_tokenizer_option
@_candidates_option(required=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the artifact.")
@_leading_space_option
@_json_option
def compile(
    tokenizer: Path, candidates_file: Path, output: Path | None, leading_space: LeadingSpace, as_json: bool
) -> None:
    """Compile a set of candidates for a tokenizer's vocabulary."""
    candidates = _read_candidates(candidates_file)
    start = time.perf_counter()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    _ = vocabulary.tokenizer_automaton
    loaded = time.perf_counter()
    candidate_set = CandidateSet.from_strings(candidates)
    automaton = build(vocabulary, candidate_set, leading_space=leading_space)
    compiled = time.perf_counter()
    artifact = automaton.to_bytes()
    if output is not None:
        output.write_bytes(artifact)
    _print(
        {
            **_described(automaton),
            "duplicates": candidate_set.n_duplicates,
            "artifact_bytes": len(artifact),
            "tokenizer_ms": round((loaded - start) * 1000, 3),
            "compile_ms": round((compiled - loaded) * 1000, 3),
        },
        as_json=as_json,
    )


@main.command()
@click.argument("artifact", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_tokenizer_option
@_candidates_option(required=False)
@click.option("--text", help="Why this text can, or can't, be an answer.")
@_leading_space_option
@_json_option
def inspect(
    artifact: Path | None,
    tokenizer: Path,
    candidates_file: Path | None,
    text: str | None,
    leading_space: LeadingSpace,
    as_json: bool,
) -> None:
    """Validate and describe an artifact; or look at a list of candidates.

    Of a list: near-duplicates and characters that can't be seen; and, for a text, the tokens that lead to it, the masks
    on the way, and where the way ends.
    """
    if (artifact is None) == (candidates_file is None):
        raise click.UsageError("either an ARTIFACT or --candidates is needed")
    if artifact is not None:
        if text is not None:
            raise click.UsageError("--text needs --candidates")
        buffer = artifact.read_bytes()
        automaton = Automaton.from_bytes(buffer, Vocabulary.from_tokenizer(tokenizer))
        _print({**_described(automaton), "artifact_bytes": len(buffer)}, as_json=as_json)
        return
    from maskfeed.inspection import render, report

    assert candidates_file is not None
    candidates = _read_candidates(candidates_file)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    candidate_set = CandidateSet.from_strings(candidates)
    described = _described(build(vocabulary, candidate_set, leading_space=leading_space))
    described["duplicates"] = candidate_set.n_duplicates
    found = report(vocabulary, candidates, text, leading_space=leading_space)
    if as_json:
        click.echo(json.dumps({**described, **found}))
    else:
        _print(described, as_json=False)
        click.echo(render(found))


@main.command()
@_connection_options
@_compiler_options
@_json_option
def doctor(as_json: bool, **given: Any) -> None:
    """Look at everything that a gateway needs; exit code 1 if something is missing.

    Python, Redis, Ray where it compiles, the engine's server, the engines that are registered, their vocabulary, and,
    with a request to each, whether they enforce masks.
    """
    from maskfeed.service.checkup import examine, find_version

    settings = GatewaySettings.from_mapping(os.environ).with_overrides(**given)
    findings = asyncio.run(examine(settings))
    ok = all(finding.ok for finding in findings)
    names = ("numpy", "numba", "pyahocorasick", "redis", "aiohttp", "msgspec", "ray", "torch", "vllm")
    versions = {"maskfeed": __version__, **{name: find_version(name) or "not installed" for name in names}}
    if as_json:
        checks = {finding.name: {"ok": finding.ok, "detail": finding.detail} for finding in findings}
        click.echo(json.dumps({"ok": ok, "checks": checks, "versions": versions}))
    else:
        for finding in findings:
            click.echo(f"{'ok     ' if finding.ok else 'MISSING'} {finding.name}: {finding.detail}")
        click.echo("versions " + ", ".join(f"{name} {found}" for name, found in versions.items()))
    sys.exit(0 if ok else 1)


def _warn_of_unknown_variables() -> None:
    """A misspelt setting is no error, since the variables of others may have our prefix, but it is told."""
    from maskfeed.service.telemetry import log_event
    from maskfeed_workers.engine_settings import engine_variables

    # the address that `serve` prints
    known_elsewhere = engine_variables() | {"MASKFEED_URL"}
    for name, meant in unknown_variables(os.environ, known_elsewhere=known_elsewhere).items():
        log_event("unknown-setting", {"variable": name, "meant": meant or "-"}, level=logging.WARNING)


def _described(automaton: Automaton) -> dict[str, Any]:
    return {
        "digest": automaton.digest,
        "fingerprint": automaton.fingerprint,
        "leading_space": automaton.leading_space,
        "candidates": automaton.n_candidates,
        "nodes": automaton.n_nodes,
        "memory_bytes": automaton.nbytes,
    }


def _read_candidates(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return text.removesuffix("\n").split("\n")
        candidates = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{path} can't be read: {error}", param_hint="--candidates") from error
    if not isinstance(candidates, list):
        raise click.BadParameter(f"{path} holds no list", param_hint="--candidates")
    return candidates


def _print(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
