"""What the installed vLLM says of itself, read from its sources without importing it."""

import ast
import importlib.util
from pathlib import Path

_CHAT = "entrypoints/openai/chat_completion/protocol.py"
_COMPLETION = "entrypoints/openai/completion/protocol.py"


def vllm_root():
    (root,) = importlib.util.find_spec("vllm").submodule_search_locations
    return Path(root)


def fields_of(path, name):
    """Annotated public members of a class."""
    for node in ast.parse((vllm_root() / path).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            members = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
            return {member for member in members if not member.startswith("_")}
    raise AssertionError(f"vLLM has no class {name} in {path}")


def chat_fields():
    return fields_of(_CHAT, "ChatCompletionRequest")


def completion_fields():
    return fields_of(_COMPLETION, "CompletionRequest")


def responses_fields():
    return fields_of("entrypoints/openai/responses/protocol.py", "ResponsesRequest")


def messages_fields():
    return fields_of("entrypoints/anthropic/protocol.py", "AnthropicMessagesRequest")


def sampling_fields():
    return fields_of("sampling_params.py", "SamplingParams")


def all_request_fields():
    """Members of every request class of every route."""
    found = set()
    for path in (vllm_root() / "entrypoints").rglob("protocol*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Request"):
                found |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    return {name for name in found if not name.startswith("_")}
