"""The modules of `benchmarks/`, and a server in place of gateway and engine."""

import importlib
from pathlib import Path

import pytest
from aiohttp import web

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of that folder by its name."""
    monkeypatch.syspath_prepend(_BENCHMARKS)
    return importlib.import_module


@pytest.fixture
async def server():
    """Answers each completion with its first candidate, streams three tokens, and has two stages."""

    async def complete(request):
        asked = await request.json()
        if asked.get("stream"):
            return web.Response(text="".join(f"data: {{{n}}}\n\n" for n in range(3)) + "data: [DONE]\n\n")
        text = asked.get("candidates", ["free"])[0]
        return web.json_response(
            {"choices": [{"text": text}], "usage": {"completion_tokens": 1}, "maskfeed": {"cache": "miss"}}
        )

    async def metrics(_):
        lines = ['maskfeed_stage_seconds_sum{stage="parse"} 0.25', 'maskfeed_stage_seconds_sum{stage="ready"} 2e-3']
        return web.Response(text="\n".join([*lines, 'maskfeed_stage_seconds_count{stage="parse"} 4.0', ""]))

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete), web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "http://127.0.0.1:{1}".format(*runner.addresses[0])
    await runner.cleanup()
