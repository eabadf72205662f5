"""What an engine refuses to start with, and what it picks for itself."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import EngineUnsupported
from maskfeed_workers.engine_checks import check_configuration, check_version
from maskfeed_workers.engine_identity import EngineIdentity, choose_reserved_id, exclude_stop_ids, model_stop_ids
from maskfeed_workers.engine_settings import EngineSettings


class Processor:
    """Stands for the processor class; only its name and identity matter here."""


PATH = f"{Processor.__module__}:{Processor.__qualname__}"


def configuration(**changed):
    parallel = {
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "distributed_executor_backend": "mp",
    }
    model = {
        "skip_tokenizer_init": False,
        "logits_processors": [PATH],
        "is_diffusion": False,
        "enable_trace_replay": False,
    }
    whole = {"speculative_config": None, "kv_transfer_config": None}
    for part in (parallel, model, whole):
        part.update({key: changed[key] for key in part if key in changed})
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel), model_config=SimpleNamespace(**model), **whole)


def test_a_plain_engine_is_accepted_by_name_and_by_class():
    check_configuration(configuration(), Processor, "v1")
    check_configuration(configuration(logits_processors=[Processor, "other:Class"]), Processor, "v1")
    check_configuration(configuration(tensor_parallel_size=8, data_parallel_size=2), Processor, "v1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pipeline_parallel_size", 2),
        ("prefill_context_parallel_size", 2),
        ("distributed_executor_backend", "external_launcher"),
        ("speculative_config", object()),
        ("kv_transfer_config", object()),
        ("skip_tokenizer_init", True),
        ("is_diffusion", True),
        ("enable_trace_replay", True),
        ("logits_processors", None),
        ("logits_processors", ["other:Class"]),
        ("logits_processors", [PATH, PATH]),
    ],
)
def test_a_setting_under_which_a_mask_could_be_wrong_is_refused_by_name(field, value):
    with pytest.raises(EngineUnsupported) as caught:
        check_configuration(configuration(**{field: value}), Processor, "v1")
    assert caught.value.context["field"] == field


def speculative(**changed):
    return SimpleNamespace(**{"enable_adaptive_verification": False, "rejection_sample_method": "standard"} | changed)


def test_speculative_decoding_is_accepted_under_the_v2_runner():
    check_configuration(configuration(speculative_config=speculative()), Processor, "v2")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_adaptive_verification", True),
        ("rejection_sample_method", "synthetic"),
        ("rejection_sample_method", "block"),
    ],
)
def test_drafts_that_the_mask_could_not_reject_are_refused_under_the_v2_runner(field, value):
    with pytest.raises(EngineUnsupported) as caught:
        check_configuration(configuration(speculative_config=speculative(**{field: value})), Processor, "v2")
    assert caught.value.context["field"] == field


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu"])
def test_a_tested_release_series_is_accepted(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3", "1.32.0", "dev"])
def test_another_release_series_is_refused(version):
    with pytest.raises(EngineUnsupported, match="tested series"):
        check_version(version)


def test_stop_ids_are_the_union_of_tokenizer_and_generation_config():
    assert model_stop_ids(1, [50, 1, 106, 107], 107) == (1, 50, 106)
    assert model_stop_ids(None, 7, 8) == (7,)
    assert model_stop_ids(3, None, 8) == (3,)


@pytest.mark.parametrize(("tokenizer_eos", "generation_config_eos"), [(None, None), (None, []), (9, [8])])
def test_a_model_without_any_stop_id_that_can_be_sampled_is_refused(tokenizer_eos, generation_config_eos):
    with pytest.raises(EngineUnsupported):
        model_stop_ids(tokenizer_eos, generation_config_eos, 8)


def test_a_stop_id_that_spells_text_is_no_text_any_more():
    vocabulary = Vocabulary.from_token_bytes([b"a", b"b", None])
    assert exclude_stop_ids(vocabulary, [2, 99]) is vocabulary
    excluded = exclude_stop_ids(vocabulary, [1])
    assert [excluded.token_bytes(i) for i in range(3)] == [b"a", None, None]
    assert excluded.fingerprint != vocabulary.fingerprint


def test_the_reserved_id_is_the_highest_control_token_that_stops_nothing():
    vocabulary = Vocabulary.from_token_bytes([b"a", None, None, b"b", None])
    assert choose_reserved_id(vocabulary, [4], 5) == 2
    assert choose_reserved_id(vocabulary, [], 5) == 4


def test_a_padding_id_serves_where_no_control_token_is_left():
    vocabulary = Vocabulary.from_token_bytes([b"a", None])
    assert choose_reserved_id(vocabulary, [1], 8) == 2


def test_a_model_with_nothing_to_spare_is_refused_with_both_numbers():
    vocabulary = Vocabulary.from_token_bytes([b"a", None])
    with pytest.raises(EngineUnsupported) as caught:
        choose_reserved_id(vocabulary, [1], 2)
    assert caught.value.context == {"limit": 2, "value": 2}


def test_ranks_that_find_the_same_take_rank_0s_epoch_and_others_do_not_start():
    ours = EngineIdentity(epoch="1" * 16, fingerprint="f" * 64, logits_width=9, reserved_id=8, stop_token_ids=(7,))
    theirs = replace(ours, epoch="0" * 16)
    assert ours.adopt(theirs) == theirs
    for field, value in {"fingerprint": "e" * 64, "logits_width": 8, "reserved_id": 6, "stop_token_ids": ()}.items():
        with pytest.raises(EngineUnsupported) as caught:
            ours.adopt(replace(theirs, **{field: value}))
        assert caught.value.context["field"] == field


def test_settings_come_from_the_configuration_first_and_the_environment_second():
    environ = {"MASKFEED_REDIS_URL": "redis://environment", "MASKFEED_GROUP": "blue", "MASKFEED_HELD_LIMIT_SETS": "7"}
    settings = EngineSettings.from_mappings({"maskfeed": {"redis_url": "redis://configuration"}}, environ)
    assert (settings.redis_url, settings.group, settings.held_limit_sets) == ("redis://configuration", "blue", 7)
    assert EngineSettings.from_mappings({}, {}).redis_url is None


@pytest.mark.parametrize(
    "given", [{"redis": "x"}, {"held_limit_sets": "many"}, {"redis_url": 5}, "redis://x", ["redis_url"]]
)
def test_a_setting_that_does_not_exist_or_has_another_type_is_refused(given):
    with pytest.raises(EngineUnsupported):
        EngineSettings.from_mappings({"maskfeed": given}, {})
