"""The lists behind names: what a change makes of them, and what a part of them is."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed.service.candidate_lists import CandidateList
from maskfeed.service.named_lists import list_of, read_change, read_list, text_of
from maskfeed.service.problems import error_object, status_of
from maskfeed.service.resident_lists import ResidentList
from maskfeed_automata import CandidateSet
from maskfeed_automata.errors import CandidateError, LimitExceeded, ParameterError, RequestError

_values = st.text("ab\0\x01é", min_size=1, max_size=3)
_ids = st.none() | st.integers(-2, 2) | st.text("ab\x01is12", max_size=3)
_lists = st.lists(st.tuples(_values, _ids), min_size=1, max_size=30).map(
    lambda pairs: CandidateList([value for value, _ in pairs], [id_ for _, id_ in pairs])
)


def a_list(*elements):
    return read_list(json.dumps({"candidates": elements}).encode())


def a_change(**members):
    return read_change(json.dumps(members).encode())


def elements(listed):
    return json.loads(text_of(listed))


def members_of(candidate_set):
    return [candidate_set.candidate_bytes(rank) for rank in range(candidate_set.n_candidates)]


def keys_of(listed):
    ids = listed.ids or [None] * len(listed.values)
    return [(type(key), key) for key in (v if i is None else i for v, i in zip(listed.values, ids, strict=True))]


class TestText:
    def test_plain_strings_stay_strings_and_only_candidates_with_an_id_are_objects(self):
        listed = a_list("a", {"value": "b", "id": 7}, {"value": "c"}, {"value": "d", "id": ""})
        assert text_of(listed) == b'["a",{"value":"b","id":7},"c",{"value":"d","id":""}]'

    @given(_lists)
    def test_it_reads_back_as_the_list_and_is_the_same_again(self, listed):
        text = text_of(listed)
        again = list_of(text)
        assert again.values == listed.values
        assert (again.ids or [None] * len(listed.values)) == listed.ids
        assert text_of(again) == text


class TestChange:
    @pytest.mark.parametrize(
        ("change", "after", "added", "removed"),
        [
            pytest.param({"add": ["z"]}, ["a", {"value": "b", "id": 1}, "a", "z"], 1, 0, id="add at the end"),
            pytest.param({"remove": ["a"]}, [{"value": "b", "id": 1}], 0, 2, id="remove by value, all of them"),
            pytest.param({"remove": ["b"]}, ["a", "a"], 0, 1, id="remove by value whatever the id"),
            pytest.param({"remove": [{"value": "b"}]}, ["a", "a"], 0, 1, id="a value in an object"),
            pytest.param({"remove": [{"id": 1}]}, ["a", "a"], 0, 1, id="remove by id"),
            pytest.param({"remove": [{"value": "b", "id": 1}]}, ["a", "a"], 0, 1, id="remove by both"),
            pytest.param(
                {"remove": [{"value": "b", "id": 2}, {"id": "1"}, "x"]},
                ["a", {"value": "b", "id": 1}, "a"],
                *(0, 0),
                id="what is not there is not removed",
            ),
            pytest.param(
                {"add": ["a", {"value": "b", "id": 1}]},
                ["a", {"value": "b", "id": 1}, "a"],
                *(0, 0),
                id="what is there is not added",
            ),
            pytest.param(
                {"add": [{"value": "b", "id": 2}, "q", "q"]},
                ["a", {"value": "b", "id": 1}, "a", {"value": "b", "id": 2}, "q"],
                *(2, 0),
                id="another id is another candidate",
            ),
            pytest.param(
                {"remove": ["b"], "add": [{"value": "b", "id": 9}]},
                ["a", "a", {"value": "b", "id": 9}],
                *(1, 1),
                id="remove comes first",
            ),
            pytest.param({"add": [], "remove": []}, ["a", {"value": "b", "id": 1}, "a"], 0, 0, id="nothing"),
        ],
    )
    def test_what_it_makes_of_a_list(self, change, after, added, removed):
        changed = a_change(**change).applied_to(a_list("a", {"value": "b", "id": 1}, "a"))
        assert (elements(changed.listed), changed.added, changed.removed) == (after, added, removed)

    def test_doing_it_again_changes_nothing(self):
        change = a_change(add=["c", {"value": "d", "id": 1}], remove=["a"])
        once = change.applied_to(a_list("a", "b"))
        twice = change.applied_to(once.listed)
        assert (twice.listed, twice.added, twice.removed) == (once.listed, 0, 0)

    @pytest.mark.parametrize(
        ("body", "param", "status"),
        [
            (b"{}", "add", 400),
            (b"[]", None, 400),
            (b'{"add": ["a"], "candidates": []}', "candidates", 400),
            (b'{"add": "a"}', "add", 400),
            (b'{"add": ["a", 1]}', "add[1]", 400),
            (b'{"add": ["a", ""]}', "add[1]", 422),
            (b'{"add": ["a", {"value": "b", "text": 1}]}', "add[1].text", 400),
            (rb'{"add": ["a", "\ud800"]}', "add[1]", 400),
            (rb'{"remove": ["a", "\ud800"]}', "remove[1]", 400),
            (b'{"remove": {}}', "remove", 400),
            (b'{"remove": ["a", 1]}', "remove[1]", 400),
            (b'{"remove": [{}]}', "remove[0]", 400),
            (b'{"remove": [{"id": null}]}', "remove[0].id", 400),
        ],
    )
    def test_a_bad_change_is_refused_by_its_path(self, body, param, status):
        with pytest.raises(RequestError) as caught:
            read_change(body)
        assert status_of(caught.value) == status
        assert param is None or error_object(caught.value, None)["error"]["param"] == param


class TestList:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            (b"", None),
            (b"{}", "candidates"),
            (b'{"candidates": ["a"], "name": "b"}', "name"),
            (b'{"candidates": "a"}', "candidates"),
            (b'{"candidates": [1]}', "candidates[0]"),
            (rb'{"candidates": ["a", {"value": "b", "id": "\udc00"}]}', "candidates[1].id"),
        ],
    )
    def test_a_bad_body_is_refused_by_its_path(self, body, param):
        with pytest.raises(RequestError) as caught:
            read_list(body)
        assert status_of(caught.value) == 400
        assert param is None or error_object(caught.value, None)["error"]["param"] == param

    @pytest.mark.parametrize(
        ("listed", "index"), [(CandidateList([], None), None), (CandidateList(["a", ""], None), 1)]
    )
    def test_a_list_that_can_be_no_candidate_set_is_refused(self, listed, index):
        with pytest.raises(CandidateError) as caught:
            ResidentList.of(listed)
        assert caught.value.context.get("index") == index

    def test_an_id_that_is_too_long_is_refused_as_an_id(self):
        with pytest.raises(LimitExceeded, match=r"^candidates\[1\]\.id: 65537 bytes"):
            ResidentList.of(CandidateList(["a", "b"], [None, "x" * 65_537]))


class TestPart:
    @settings(max_examples=300, deadline=None)
    @given(_lists, st.data())
    def test_a_part_is_the_set_of_the_values_with_these_ids_in_the_order_of_the_ids(self, listed, data):
        keys = keys_of(listed)
        asked = data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=10))
        # of several candidates with one id, all, in the order of the list
        expected = [
            (place, index) for place, key in enumerate(asked) for index in range(len(keys)) if keys[index] == key
        ]
        part = ResidentList.of(listed).part([key for _, key in asked])
        posted = CandidateSet.from_strings([listed.values[index] for _, index in expected])
        assert members_of(part.candidate_set) == members_of(posted)
        assert part.candidate_set.rank_of_input.tolist() == posted.rank_of_input.tolist()
        assert part.candidate_set.digest("0" * 64, "never") == posted.digest("0" * 64, "never")
        for given_, (place, index) in enumerate(expected):
            assert part.place_of(given_) == place
            assert part.candidate_at(given_) == (listed.values[index], listed.ids[index])

    @given(_lists)
    def test_the_whole_list_is_what_posting_it_would_be(self, listed):
        part = ResidentList.of(listed).whole()
        assert members_of(part.candidate_set) == members_of(CandidateSet.from_strings(listed.values))
        found = [(part.place_of(index), *part.candidate_at(index)) for index in range(len(listed.values))]
        assert found == list(zip(range(len(listed.values)), listed.values, listed.ids, strict=True))

    def test_a_number_and_its_text_are_two_ids(self):
        resident = ResidentList.of(a_list({"value": "a", "id": 1}, {"value": "b", "id": "1"}, {"value": "c", "id": ""}))
        for id_, value in ((1, "a"), ("1", "b"), ("", "c")):
            assert resident.part([id_]).candidate_at(0) == (value, id_)

    def test_a_candidate_without_id_goes_by_its_value_and_is_answered_without_id(self):
        resident = ResidentList.of(a_list("\x01x", "b"))
        assert resident.part(["b", "\x01x"]).candidate_at(1) == ("\x01x", None)

    @pytest.mark.parametrize("elements", [["a", "b"], [{"value": "a", "id": "x"}, {"value": "b", "id": "x"}]])
    def test_an_id_that_no_candidate_has_is_told_with_its_index(self, elements):
        resident = ResidentList.of(a_list(*elements))
        known = "x" if isinstance(elements[0], dict) else "a"
        with pytest.raises(ParameterError) as caught:
            resident.part([known, "nowhere", 5])
        assert status_of(caught.value) == 400
        error = error_object(caught.value, None)["error"]
        assert (error["param"], error["index"]) == ("ids[1]", 1)

    def test_no_ids_are_no_set(self):
        with pytest.raises(CandidateError) as caught:
            ResidentList.of(a_list("a")).part([])
        assert (status_of(caught.value), caught.value.context["field"]) == (400, "ids")

    def test_its_size_counts_every_array_once(self):
        plain = ResidentList.of(a_list("a", "bb"))
        assert plain.size_bytes == 3 + 3 * 8 + 2 * 4 + 2 * 4
        shared = ResidentList.of(a_list({"value": "a", "id": 1}, {"value": "bb", "id": 1}))
        assert shared.size_bytes == plain.size_bytes + (3 + 2 * 8 + 2 * 4 + 4) + 2 + 2 * 8 + 2 * 8
