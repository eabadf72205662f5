"""Settings: where they come from, what is refused, and their page in the documentation."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from maskfeed.cli import main
from maskfeed.config import GatewaySettings, settings_document, unknown_variables
from maskfeed_automata.errors import ParameterError, StoreError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_an_empty_environment_gives_the_defaults():
    assert GatewaySettings.from_mapping({}) == GatewaySettings()


def test_the_environment_wins_over_the_defaults_and_options_win_over_it():
    settings = GatewaySettings.from_mapping({"MASKFEED_PORT": "81", "MASKFEED_GROUP": "blue", "OTHER": "x"})
    assert (settings.port, settings.group) == (81, "blue")
    assert settings.with_overrides(port=82, group=None).port == 82
    assert settings.with_overrides(port=82, group=None).group == "blue"


def test_empty_text_counts_as_absent():
    assert GatewaySettings.from_mapping({"MASKFEED_PORT": "", "MASKFEED_REDIS_URL": ""}) == GatewaySettings()


def test_every_setting_can_be_read_from_the_environment():
    given = {
        "MASKFEED_UPSTREAM_URL": "https://engine",
        "MASKFEED_REDIS_URL": "redis://h",
        "MASKFEED_REDIS_USERNAME": "u",
        "MASKFEED_REDIS_PASSWORD": "p",
        "MASKFEED_GROUP": "g",
        "MASKFEED_HOST": "::",
        "MASKFEED_PORT": "0",
        "MASKFEED_DEADLINE_MS": "1",
        "MASKFEED_COMPILER": "ray",
        "MASKFEED_MAX_BODY_BYTES": "4",
        "MASKFEED_UPSTREAM_API_KEY": "key",
        "MASKFEED_UPSTREAM_TIMEOUT_S": "5",
        "MASKFEED_DRAIN_TIMEOUT_S": "6",
        "MASKFEED_ADMIN_KEY": "admin",
        "MASKFEED_QUEUE_LIMIT": "0",
        "MASKFEED_QUEUE_TENANT_LIMIT": "7",
        "MASKFEED_QUEUE_WAIT_MS": "8",
        "MASKFEED_QUEUE_COMPILE_MS": "9",
        "MASKFEED_QUEUE_READY_MS": "10",
        "MASKFEED_CACHE_LIMIT_BYTES": "11",
        "MASKFEED_CACHE_AUTOMATA_LIMIT_BYTES": "12",
        "MASKFEED_CACHE_NAMED_LIMIT_BYTES": "16",
        "MASKFEED_CACHE_ENTRY_LIFE_S": "13",
        "MASKFEED_CACHE_LEASE_MS": "140",
        "MASKFEED_COMPILE_THREADS": "3",
        "MASKFEED_RAY_ADDRESS": "ray://h",
        "MASKFEED_RAY_ACTORS": "15",
    }
    assert dict(_texts(GatewaySettings.from_mapping(given), "MASKFEED")) == given


def _texts(settings, prefix):
    assert len(fields(settings)) <= 16
    for setting in fields(settings):
        name, value = f"{prefix}_{setting.name.upper()}", getattr(settings, setting.name)
        if is_dataclass(value):
            yield from _texts(value, name)
        else:
            yield name, str(value)


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("MASKFEED_PORT", "http", "whole number"),
        ("MASKFEED_PORT", "-1", "at least 0"),
        ("MASKFEED_PORT", "70000", "at most 65535"),
        ("MASKFEED_DEADLINE_MS", "0", "at least 1"),
        ("MASKFEED_DEADLINE_MS", "600001", "at most 600000"),
        ("MASKFEED_UPSTREAM_URL", "localhost:8000", "http://"),
        ("MASKFEED_UPSTREAM_URL", "http://", "a host"),
        ("MASKFEED_UPSTREAM_URL", "http://engine:8000/v1", "without /v1"),
        ("MASKFEED_UPSTREAM_URL", "http://engine:8000/llm/v1/", "without /v1"),
        ("MASKFEED_GROUP", "a:b", "letters"),
        ("MASKFEED_COMPILE_THREADS", "0", "at least 1"),
    ],
)
def test_text_that_is_no_setting_is_refused_with_its_variable(variable, text, problem):
    with pytest.raises(ParameterError, match=problem) as caught:
        GatewaySettings.from_mapping({variable: text})
    assert caught.value.context["field"] == variable


def test_a_value_that_may_come_from_either_place_is_refused_with_both_names():
    with pytest.raises(ParameterError) as caught:
        GatewaySettings().with_overrides(port=99_999)
    assert caught.value.message == "port must be at most 65535, not 99999 (MASKFEED_PORT or --port)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upstream_url", "engine"),
        ("group", "a:b"),
        ("port", -1),
        ("deadline_ms", 600_001),
        ("queue_limit", -1),
        ("compiler", "fortran"),
        ("max_body_bytes", 0),
        ("upstream_timeout_s", 0),
        ("drain_timeout_s", -1),
    ],
)
def test_a_message_names_the_option_where_there_is_one(name, value):
    offered = {parameter.name: parameter.opts[0] for parameter in main.commands["serve"].params}
    with pytest.raises(ParameterError) as caught:
        GatewaySettings().with_overrides(**{name: value})
    where = f"MASKFEED_{name.upper()}" + (f" or {offered[name]}" if name in offered else "")
    assert caught.value.message.endswith(f" ({where})")


def test_variables_that_nobody_reads_are_found_with_what_they_were_meant_to_be():
    environ = {"MASKFEED_QEUE_LIMIT": "1", "MASKFEED_ZZZ": "1", "MASKFEED_PORT": "1", "MASKFEED_SHM_DIR": "/", "X": "1"}
    found = unknown_variables(environ, known_elsewhere=frozenset({"MASKFEED_SHM_DIR"}))
    assert found == {"MASKFEED_QEUE_LIMIT": "MASKFEED_QUEUE_LIMIT", "MASKFEED_ZZZ": None}


def test_no_key_is_in_the_text_of_the_settings():
    assert "secret" not in repr(GatewaySettings(upstream_api_key="secret", admin_key="secret"))


def test_the_page_of_the_documentation_is_the_generated_one():
    assert DOCUMENT.read_text() == settings_document()


def test_user_and_password_of_the_settings_come_into_the_address_of_redis_and_into_no_repr():
    settings = GatewaySettings.from_mapping(
        {
            "MASKFEED_REDIS_URL": "redis://redis:6379/0",
            "MASKFEED_REDIS_USERNAME": "gateway",
            "MASKFEED_REDIS_PASSWORD": "s:crét",
        }
    )
    assert settings.redis.address == "redis://gateway:s%3Acr%C3%A9t@redis:6379/0"
    assert "crét" not in repr(settings)
    assert GatewaySettings().redis.address is None
    twice = settings.with_overrides(redis_url="redis://other:word@redis:6379/0")
    with pytest.raises(StoreError):
        _ = twice.redis.address
