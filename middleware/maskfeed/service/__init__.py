"""The gateway's HTTP service: a framework-free core and its aiohttp server."""
