"""Streams: taking them apart at any chunk boundary, and rewriting them token by token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskfeed.service.answers import finish
from maskfeed.service.streams import DONE, SseSplitter, StreamRewriter, frame
from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import InternalInvariant, SetRefused, UpstreamError
from tiny_engine import (
    CHAT,
    COMPLETIONS,
    EOS,
    FIGURES,
    OTHER_STOP,
    PADDING,
    RECORD,
    RESERVED,
    VOCABULARY,
    WORDS,
    ask,
    chunk,
    response,
    role_chunk,
    said,
    tokens,
)

CITIES = ["Rome", "Paris", "Pa", "São Paulo", "東京"]


class Client:
    """Feeds a rewriter and collects what a client would see."""

    def __init__(self, asked, vocabulary=VOCABULARY):
        self.request, candidate_set = asked
        self.rewriter = StreamRewriter(self.request, candidate_set, vocabulary, RECORD, FIGURES, request_id="req-1")
        self.events = []

    def feed(self, payload):
        new = self.rewriter.feed(payload)
        self.events += new
        return [payload if payload == DONE else json.loads(payload) for payload in new]

    def say(self, token_ids, *, index=0, **members):
        (event,) = self.feed(chunk(self.request, index, token_ids, **members))
        return event

    def delta(self, token_ids, **members):
        return text_of(self.say(token_ids, **members))

    def texts(self):
        found = dict.fromkeys(range(self.request.n), "")
        for event in self.events:
            for choice in json.loads(event)["choices"] if event != DONE else ():
                found[choice["index"]] += text_of({"choices": [choice]})
        return list(found.values())

    def error(self):
        *_, error, done = self.events
        assert done == DONE
        return json.loads(error)["error"]


def text_of(event):
    (choice,) = event["choices"]
    return choice["text"] if "text" in choice else choice["delta"]["content"]


class TestSplitter:
    def test_events_come_out_without_their_framing(self):
        assert SseSplitter().feed(b'data: {"a":1}\n\ndata: [DONE]\n\n') == [b'{"a":1}', DONE]

    @pytest.mark.parametrize(
        ("stream", "events"),
        [
            pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
            pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
            pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="two data lines"),
            pytest.param(b": ping\n\ndata: a\n\n", [b"a"], id="a comment"),
            pytest.param(b"event: x\nid: 3\nretry: 5\ndata: a\n\n", [b"a"], id="other fields"),
            pytest.param(b"data:a\n\n", [b"a"], id="no space"),
            pytest.param(b"data:  a \n\n", [b" a "], id="further spaces are data"),
            pytest.param(b"data:\n\n", [b""], id="empty data"),
            pytest.param(b"\n\n\ndata: a\n\n\n\n", [b"a"], id="blank lines"),
            pytest.param(b"data: a\n\ndata: unfinished\n", [b"a"], id="an event without its end"),
        ],
    )
    @pytest.mark.parametrize("size", [1, 2, 3, 1000])
    def test_the_forms_of_the_format(self, stream, events, size):
        splitter = SseSplitter()
        pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
        assert [event for piece in pieces for event in splitter.feed(piece)] == events

    @given(st.data())
    def test_chunk_boundaries_do_not_matter(self, data):
        payloads = data.draw(st.lists(st.text().map(lambda text: json.dumps(text, ensure_ascii=False).encode())))
        end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        stream = b"".join(b"data: " + payload + end + end for payload in payloads)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
        splitter = SseSplitter()
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert [event for piece in pieces for event in splitter.feed(piece)] == payloads

    def test_what_was_framed_is_split_again(self):
        assert SseSplitter().feed(frame(b'{"x":"\\n"}')) == [b'{"x":"\\n"}']

    @pytest.mark.parametrize("piece", [b"x" * 60, b"data: " + b"x" * 50 + b"\n"])
    def test_an_endless_event_is_refused_at_the_bound(self, piece):
        splitter = SseSplitter(max_event_bytes=100)
        assert splitter.feed(piece) == []
        with pytest.raises(UpstreamError) as caught:
            splitter.feed(piece)
        assert caught.value.context["limit"] == 100

    def test_the_bound_is_for_one_event_not_for_the_stream(self):
        splitter = SseSplitter(max_event_bytes=100)
        for _ in range(50):
            assert splitter.feed(b"data: " + b"x" * 80 + b"\n\n") == [b"x" * 80]


class TestChat:
    def test_a_whole_stream(self):
        client = Client(ask(CITIES, stream=True, stream_options={"include_usage": True}))
        (role,) = client.feed(role_chunk())
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "prompt_token_ids" not in role
        assert client.delta([WORDS[b"Pa"]]) == "Pa"
        assert client.delta([WORDS[b"ris"]]) == "ris"
        last = client.say([EOS], finish_reason="stop")
        assert text_of(last) == ""
        expected = {"complete": True, "candidate": "Paris", "index": 1, "id": None, "reason": None}
        assert last["choices"][0]["maskfeed"] == expected
        assert last["maskfeed"].items() >= {"enforced": True, "candidates": 5, **FIGURES, **expected}.items()
        usage = {"id": "x-1", "choices": [], "usage": {"total_tokens": 5}}
        assert client.feed(json.dumps(usage).encode()) == [usage]
        assert client.feed(DONE) == [DONE]
        assert client.rewriter.failure is None
        assert client.rewriter.end() == []

    def test_the_engines_text_and_reasoning_are_not_passed_on(self):
        client = Client(ask(CITIES, stream=True))
        client.say(tokens("Ro"))
        client.say([*tokens("me"), EOS], finish_reason="stop")
        assert "the engine's text" not in b"".join(client.events).decode()
        assert client.texts() == ["Rome"]

    def test_tool_calls_logprobs_and_usage_of_a_chunk_are_passed_on(self):
        client = Client(ask(CITIES, stream=True))
        said_so = {"index": 0, "delta": {"tool_calls": [1]}, "logprobs": {"x": 1}, "token_ids": tokens("R")}
        (event,) = client.feed(json.dumps({"choices": [said_so], "usage": {"total_tokens": 1}}).encode())
        assert event["usage"] == {"total_tokens": 1}
        assert event["choices"][0]["logprobs"] == {"x": 1}
        assert event["choices"][0]["delta"] == {"tool_calls": [1], "content": "R"}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
class TestOnEitherRoute:
    def test_the_ids_are_stripped_unless_they_were_asked_for(self, route):
        for asked_for in (False, True):
            client = Client(ask(CITIES, route=route, stream=True, return_token_ids=asked_for))
            event = client.say([*tokens("Rome"), EOS], finish_reason="stop", prompt_token_ids=[9])
            assert ("token_ids" in event["choices"][0]) is asked_for
            assert ("prompt_token_ids" in event["choices"][0]) is asked_for

    def test_several_choices_grow_side_by_side(self, route):
        client = Client(ask(CITIES, route=route, stream=True, n=3))
        for index, text in ((0, "Ro"), (2, "Pa"), (1, "São"), (2, "ri"), (0, "me")):
            client.say(tokens(text), index=index)
        assert client.say([EOS], index=0, finish_reason="stop")["choices"][0]["maskfeed"]["candidate"] == "Rome"
        last = client.say([*tokens("s"), EOS], index=2, finish_reason="stop")
        assert "candidate" not in last["maskfeed"]
        client.say([*tokens(" Paulo"), EOS], index=1, finish_reason="stop")
        assert client.feed(DONE) == [DONE]
        assert client.texts() == ["Rome", "São Paulo", "Paris"]

    def test_a_cut_answer_says_so_on_the_chunk_that_ends_it(self, route):
        client = Client(ask(CITIES, route=route, stream=True))
        client.say(tokens("S\u00e3")[:1])
        last = client.say(tokens("ã")[:1], finish_reason="length")
        assert last["choices"][0]["maskfeed"] == {
            "complete": False,
            "candidate": None,
            "index": None,
            "id": None,
            "reason": "length",
        }
        assert client.texts() == ["S\ufffd"]

    def test_a_stop_id_of_the_client_is_never_text(self, route):
        client = Client(ask(CITIES, route=route, stream=True, stop_token_ids=[OTHER_STOP]))
        client.say([*tokens("Pa"), OTHER_STOP], finish_reason="stop", stop_reason=OTHER_STOP)
        assert client.texts() == ["Pa"]


class TestCharacters:
    def test_half_a_character_waits_for_its_other_half(self):
        client = Client(ask(CITIES, stream=True))
        first, second, third = tokens("東")
        assert [client.delta([first]), client.delta([second]), client.delta([third])] == ["", "", "東"]
        assert client.delta([*tokens("京"), EOS], finish_reason="stop") == "京"


class TestLeadingSpace:
    @pytest.mark.parametrize(
        ("leading_space", "candidates", "pieces", "deltas"),
        [
            pytest.param("never", [" Paris"], [" ", "Pa", "ris"], [" ", "Pa", "ris"], id="never"),
            pytest.param("always", ["Paris"], [" ", "Pa", "ris"], ["", "Pa", "ris"], id="always"),
            pytest.param("always", [" Paris"], [" ", " Pa", "ris"], ["", " Pa", "ris"], id="always, one of two"),
            pytest.param("optional", ["Paris"], [" Pa", "ris", ""], ["Pa", "ris", ""], id="certainly ours"),
            pytest.param("optional", ["Paris", " x"], ["Pa", "ris", ""], ["Pa", "ris", ""], id="no space at all"),
            pytest.param("optional", ["Paris", " x"], [" Pa", "ris", ""], ["", "", "Paris"], id="held, ours"),
            pytest.param("optional", ["Paris", " Paris"], [" Pa", "ris", ""], ["", "", " Paris"], id="held, theirs"),
        ],
    )
    def test_it_is_never_streamed_when_it_is_ours(self, leading_space, candidates, pieces, deltas):
        client = Client(ask(candidates, stream=True, candidate_options={"leading_space": leading_space}))
        *growing, last = pieces
        said_so = [client.delta(tokens(piece)) for piece in growing]
        said_so.append(client.delta([*tokens(last), EOS], finish_reason="stop"))
        assert said_so == deltas


class TestStopStrings:
    def test_text_that_may_begin_a_stop_string_waits(self):
        client = Client(ask(["Paris in France"], stream=True, stop=["in Spain"]))
        assert client.delta(tokens("Paris in ")) == "Pa"
        assert client.delta([*tokens("France"), EOS], finish_reason="stop") == "ris in France"

    def test_the_stop_string_itself_is_cut_off(self):
        client = Client(ask(["Paris in France"], stream=True, stop=["in"]))
        client.say(tokens("Paris i"))
        last = client.say(tokens("n F"), finish_reason="stop", stop_reason="in")
        assert client.texts() == ["Paris "]
        assert last["choices"][0]["maskfeed"]["reason"] == "stop-string"

    def test_it_is_kept_where_the_client_wants_it(self):
        asked = ask(["Paris in France"], stream=True, stop="in", include_stop_str_in_output=True)
        client = Client(asked)
        assert client.delta(tokens("Paris i")) == "Paris i"
        assert client.delta(tokens("n F"), finish_reason="stop", stop_reason="in") == "n"

    def test_text_that_was_sent_is_not_taken_back(self):
        client = Client(ask(["Paris"], stream=True, stop="zz"))
        client.say(tokens("Par"))
        assert client.delta([], finish_reason="stop", stop_reason="P") == ""


class TestFailures:
    def test_a_refusal_is_an_error_event_and_the_end(self):
        client = Client(ask(CITIES, stream=True))
        client.feed(role_chunk())
        client.feed(chunk(client.request, 0, [RESERVED], finish_reason="stop", stop_reason=RESERVED))
        error = client.error()
        assert (error["code"], error["stage"], error["request_id"]) == ("set-refused", "admission", "req-1")
        assert isinstance(client.rewriter.failure, SetRefused)
        assert client.feed(DONE) == []
        assert client.rewriter.end() == []
        assert client.rewriter.fail(UpstreamError("late")) == []

    def test_a_finished_text_that_is_no_candidate_is_an_error_event(self):
        client = Client(ask(CITIES, stream=True))
        client.say(tokens("Rom"))
        client.feed(chunk(client.request, 0, [EOS], finish_reason="stop"))
        assert client.error()["code"] == InternalInvariant.code

    @pytest.mark.parametrize("token_id", [EOS, RESERVED, PADDING, 9_999])
    def test_a_token_without_bytes_in_the_middle_is_an_error_event(self, token_id):
        client = Client(ask(CITIES, stream=True))
        client.feed(chunk(client.request, 0, [token_id]))
        assert client.error()["code"] == InternalInvariant.code

    @pytest.mark.parametrize("last", ["done", "end"])
    @pytest.mark.parametrize("n", [1, 2])
    def test_a_stream_that_ends_before_every_choice_did_is_an_error_event(self, last, n):
        client = Client(ask(CITIES, stream=True, n=n))
        client.say([*tokens("Rome"), EOS][: 4 + (n == 2)], index=0, finish_reason="stop" if n == 2 else None)
        client.events += client.rewriter.feed(DONE) if last == "done" else client.rewriter.end()
        assert client.error()["code"] == UpstreamError.code

    def test_a_connection_that_closes_after_the_last_choice_is_a_good_end(self):
        client = Client(ask(CITIES, stream=True))
        client.say([*tokens("Rome"), EOS], finish_reason="stop")
        assert client.rewriter.end() == [DONE]

    def test_a_refusal_of_the_engines_server_ends_the_stream_in_our_shape(self):
        client = Client(ask(CITIES, stream=True))
        problem = {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}
        client.feed(json.dumps({"error": problem}).encode())
        assert client.error() == {
            "message": "too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "upstream-refused",
            "request_id": "req-1",
        }
        assert "too long" in client.rewriter.failure.message
        assert client.feed(DONE) == client.rewriter.end() == []

    def test_a_failure_of_the_engine_is_told_in_one_line(self):
        client = Client(ask(CITIES, stream=True))
        problem = {"message": "EngineCore encountered an issue.\nTraceback ...", "type": "x", "code": 500}
        client.feed(json.dumps({"error": problem}).encode())
        error = client.error()
        assert (error["code"], error["message"]) == (
            "upstream-error",
            "the engine failed: EngineCore encountered an issue.",
        )
        assert isinstance(client.rewriter.failure, UpstreamError)

    def test_an_error_that_is_only_text_becomes_an_object(self):
        client = Client(ask(CITIES, stream=True))
        client.feed(b'{"error": "Unauthorized"}')
        assert "Unauthorized" in client.error()["message"]

    @pytest.mark.parametrize(
        "event",
        [
            pytest.param(b"no json", id="no JSON"),
            pytest.param(b"[1]", id="no object"),
            pytest.param(b"{}", id="no choices"),
            pytest.param(b'{"choices": 1}', id="choices that are no list"),
            pytest.param(b'{"choices": [1]}', id="a choice that is no object"),
            pytest.param(b'{"choices": [{"index": 1, "token_ids": []}]}', id="an index that was not asked for"),
            pytest.param(b'{"choices": [{"index": -1, "token_ids": []}]}', id="a negative index"),
            pytest.param(b'{"choices": [{"index": 0, "delta": {"content": "x"}}]}', id="text without ids"),
            pytest.param(b'{"choices": [{"index": 0, "finish_reason": "stop"}]}', id="an end without ids"),
            pytest.param(b'{"choices": [{"index": 0, "text": "x", "token_ids": null}]}', id="null for ids"),
            pytest.param(b'{"choices": [{"index": 0, "token_ids": "abc"}]}', id="text for ids"),
            pytest.param(b'{"choices": [{"index": 0, "token_ids": [true]}]}', id="a boolean for an id"),
            pytest.param(b'{"choices": [{"index": 0, "token_ids": [1], "delta": "x"}]}', id="a delta that is text"),
        ],
    )
    def test_an_event_of_another_shape_is_an_error_event(self, event):
        client = Client(ask(CITIES, stream=True))
        client.feed(event)
        assert client.error()["code"] == UpstreamError.code

    def test_a_choice_that_goes_on_after_its_end_is_an_error_event(self):
        client = Client(ask(CITIES, stream=True))
        client.say([*tokens("Rome"), EOS], finish_reason="stop")
        client.feed(chunk(client.request, 0, tokens("x")))
        assert client.error()["code"] == UpstreamError.code


# Text with characters of one to four bytes, spaces in all places, and no lone surrogates.
candidates = st.text(st.characters(codec="utf-8") | st.sampled_from(" aé東😀"), min_size=1, max_size=12)


@given(st.data())
def test_a_stream_is_at_every_moment_a_beginning_of_what_it_would_be_in_one_piece(data):
    values = data.draw(st.lists(candidates, min_size=1, max_size=6))
    leading_space = data.draw(st.sampled_from(["never", "optional", "always"]))
    stops = data.draw(st.lists(st.text(" aé", min_size=1, max_size=4), max_size=2))
    asked = ask(values, stream=True, stop=stops, candidate_options={"leading_space": leading_space})
    chosen = data.draw(st.sampled_from(values)).encode()
    spaced = leading_space == "always" or (leading_space == "optional" and data.draw(st.booleans()))
    generated = b" " + chosen if spaced else chosen
    is_cut = data.draw(st.booleans())
    if is_cut:
        generated = generated[: data.draw(st.integers(0, len(generated)))]

    # a vocabulary in which exactly these pieces are the tokens
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(generated) - 1)), max_size=8)))
    pieces = [piece for a, b in zip([0, *cuts], [*cuts, None], strict=True) if (piece := generated[a:b])]
    vocabulary = Vocabulary.from_token_bytes([*pieces, *[None] * (PADDING + 1 - len(pieces))])
    ids = list(range(len(pieces)))
    end = {"finish_reason": "length"} if is_cut else {"finish_reason": "stop"}
    all_ids = ids if is_cut else [*ids, EOS]
    whole = finish(*asked, vocabulary, RECORD, response(asked[0], said(all_ids, **end)), FIGURES)

    client = Client(asked, vocabulary)
    final = whole["choices"][0]["message"]["content"]
    position = 0
    while len(all_ids) - position > (step := data.draw(st.integers(1, 3))):
        client.say(all_ids[position : position + step])
        assert final.startswith(client.texts()[0])
        position += step
    last = client.say(all_ids[position:], **end)
    assert client.texts() == [final]
    assert last["choices"][0]["maskfeed"] == whole["choices"][0]["maskfeed"]
    if not is_cut:
        assert final.encode() in (chosen, b" " + chosen if spaced else chosen)
