"""Events to stored bytes and back: nothing is lost, and nothing that was stored is written differently."""

import json
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from batonlog.events import Event, Limits, NoteAdded, RunStarted, UnknownEvent
from batonlog.events.codec import TAGS, decode, encode, fresh
from batonlog.events.facts import raw

# -- every kind of event, made from what its fields are declared to hold


def joined(text: str) -> str:
    """Join surrogates that stand side by side: JSON cannot tell them from the whole character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters(), max_size=8).map(joined)
numbers = st.integers(0, 2**53)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: texts,
    int: numbers,
    bool: st.booleans(),
    float: st.floats(0, 1e9),
    bytes: st.binary(max_size=40),
    NoneType: st.none(),
    Raw: values,
}


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Anything that a field may hold."""
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin in (Union, UnionType):
            return st.one_of([of(argument) for argument in arguments])
        case origin if origin is Literal:
            return st.sampled_from(arguments)
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            return st.lists(of(arguments[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(of, arguments))
        case _ if annotation in SCALARS:
            return SCALARS[annotation]
        case _:
            return made(annotation)


def made(cls: Any) -> st.SearchStrategy[Any]:
    needed: dict[str, st.SearchStrategy[Any]] = {}
    left: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(cls):
        (needed if field.required else left)[field.name] = of(field.type)
    if cls.__struct_config__.array_like:
        return st.builds(cls, **needed)
    return st.fixed_dictionaries(needed, optional=left).map(lambda fields: cls(**fields))


known = st.sampled_from(sorted(TAGS)).flatmap(lambda tag: made(TAGS[tag]))
unknown = st.builds(
    UnknownEvent,
    tag=texts.filter(lambda tag: tag not in TAGS),
    data=st.dictionaries(texts.filter(lambda key: key != "type"), values, max_size=3),
)
modest = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def given_out(value: Any) -> Any:
    """What somebody who reads a value's fields sees."""
    if isinstance(value, Struct):
        return {name: given_out(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [given_out(inner) for inner in value]
    return value


@modest
@given(known)
def test_an_event_comes_back_equal(event: Event) -> None:
    back = decode(encode(event))
    assert type(back) is type(event)
    assert given_out(back) == given_out(event)


@pytest.mark.parametrize("tag", sorted(TAGS))
def test_every_kind_of_event_comes_back_equal(tag: str) -> None:
    @settings(modest, max_examples=15)
    @given(made(TAGS[tag]))
    def claim(event: Event) -> None:
        assert given_out(fresh(event)) == given_out(event)

    claim()


@modest
@given(known | unknown)
def test_what_was_read_is_written_as_it_was(event: Event) -> None:
    payload = encode(event)
    assert encode(decode(payload)) == payload


@modest
@given(known | unknown)
def test_reading_twice_gives_equal_events(event: Event) -> None:
    payload = encode(event)
    assert decode(payload) == decode(payload)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@modest
@given(known | unknown)
def test_the_stored_form_is_utf8_json_with_the_tag_first(event: Event) -> None:
    stored = json.loads(encode(event).decode("utf-8"), parse_constant=refuse)
    tag = event.tag if isinstance(event, UnknownEvent) else event.type
    assert next(iter(stored.items())) == ("type", tag)


@modest
@given(unknown)
def test_an_unknown_event_comes_back_whole(event: UnknownEvent) -> None:
    back = decode(encode(event))
    assert isinstance(back, UnknownEvent)
    assert back.tag == event.tag
    assert back.data == {**event.data, "type": event.tag}


@modest
@given(known, texts.map("later {}".format), values)
@example(NoteAdded(name="n", data=1), "\ud800", None)
def test_a_field_that_nobody_knows_yet_does_not_break_a_known_event(
    event: Event, name: str, value: object
) -> None:
    payload = encode(event)
    newer = json.dumps({**json.loads(payload), name: value}).encode()
    assert given_out(decode(newer)) == given_out(decode(payload))


@pytest.mark.parametrize("name", ["later", "\\ud800"])
@pytest.mark.parametrize(
    "stored",
    [
        '{"type":"run.resumed","by":"w","limits":{"turns":1%s}}',
        '{"type":"model.failed","request":3,"kind":"E","message":"m","usage":{"requests":1%s}}',
        '{"type":"history.rewritten","cause":"manual","rewrite":{"filter":"f","parameters":{},"operations":[]%s}}',
    ],
)
def test_a_field_that_nobody_knows_yet_does_not_break_a_part_of_an_event(stored: str, name: str) -> None:
    newer = decode((stored % f',"{name}":2').encode())
    assert given_out(newer) == given_out(decode((stored % "").encode()))


@modest
@given(known, st.randoms(use_true_random=False))
def test_the_order_of_the_fields_does_not_matter(event: Event, random: Any) -> None:
    payload = encode(event)
    fields = list(json.loads(payload).items())
    random.shuffle(fields)
    assert given_out(decode(json.dumps(dict(fields)).encode())) == given_out(decode(payload))


@modest
@given(known, st.data())
def test_a_stored_form_cut_short_is_damaged(event: Event, data: st.DataObject) -> None:
    payload = encode(event)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(ValueError):  # noqa: PT011  # of whatever kind
        decode(payload[:cut])


@modest
@given(st.binary(max_size=60))
def test_what_is_no_event_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of whatever kind
        decode(payload)


# -- foreign bytes

FOREIGN = [
    b'{"a": 1.10,"b" :[ ]}',
    b"1e2",
    b"123456789012345678901234567890",
    b'"\\u00e9\\/"',
    b'{"a":1,"a":2}',
    b'"\\ud800"',
]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_bytes_are_stored_as_they_are(foreign: bytes) -> None:
    payload = encode(NoteAdded(name="n", data=Raw(foreign)))
    assert payload == b'{"type":"note.added","name":"n","data":%b}' % foreign
    assert json.loads(payload)["data"] == json.loads(foreign)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_bytes_stay_as_they_are_beside_a_lone_surrogate(foreign: bytes) -> None:
    payload = encode(NoteAdded(name="\ud800", data=Raw(foreign)))
    assert payload == b'{"type":"note.added","name":"\\ud800","data":%b}' % foreign


@pytest.mark.parametrize("foreign", FOREIGN)
def test_items_stay_as_they_are_beside_one_with_a_lone_surrogate(foreign: bytes) -> None:
    event = RunStarted(run_id="r", agent="a", input=(Raw(foreign), "\ud800"), limits=Limits())
    assert b'"input":[%b,"\\ud800"]' % foreign in encode(event)


@pytest.mark.parametrize("foreign", FOREIGN[:5])
def test_foreign_bytes_are_held_as_they_were_stored(foreign: bytes) -> None:
    event = decode(b'{"type":"note.added","name":"n","data":%b}' % foreign)
    assert bytes(raw(event, "data")) == foreign


@pytest.mark.parametrize("foreign", FOREIGN)
def test_an_unknown_event_is_written_as_it_was_stored(foreign: bytes) -> None:
    payload = b'{ "data":%b, "type" : "future.thing" }' % foreign
    assert encode(decode(payload)) == payload


def test_what_an_event_gives_out_is_fresh_each_time() -> None:
    event = decode(b'{"type":"run.started","run_id":"r","agent":"a","input":[{"a":[]}],"limits":{}}')
    assert isinstance(event, RunStarted)
    event.input[0]["a"].append(1)
    assert event.input == ({"a": []},)


def test_data_of_an_unknown_event_must_be_an_object() -> None:
    with pytest.raises(TypeError, match="object"):
        encode(UnknownEvent(tag="future.thing", data=[1]))


def test_an_event_cannot_be_changed() -> None:
    for event in (NoteAdded(name="n", data=1), fresh(NoteAdded(name="n", data=1))):
        for name in ("name", "data"):
            with pytest.raises(AttributeError):
                setattr(event, name, 2)


# -- what is on disk, as literals: a name that changes here breaks every log there is

STORED = [
    '{"type":"run.started","run_id":"r","agent":"a","input":[{"role":"user"}],'
    '"limits":{"turns":10,"tokens":null,"seconds":null,"handoffs":20,"ping_pong":4},"key":"k","parent":["s",[7,1]]}',
    '{"type":"run.resumed","by":"w","limits":{"turns":1,"tokens":2,"seconds":3.0,"handoffs":4,"ping_pong":5}}',
    '{"type":"run.paused","reason":"limit","limit":"turns"}',
    '{"type":"run.completed","output":[7,1]}',
    '{"type":"run.failed","kind":"E","message":"m"}',
    '{"type":"run.cancelled","by":"u","reason":"r"}',
    '{"type":"input.added","input":["x"],"goes_to":"turn","by":"u","key":"k"}',
    '{"type":"cancel.requested","by":"u","after_turn":true,"reason":"r"}',
    '{"type":"note.added","name":"n","data":null}',
    '{"type":"agent.resolved","agent":"a","instructions":"i","offered":[{}],"output_schema":{},"settings":{}}',
    '{"type":"model.requested","turn":1,"agent":"a","parts":[2],"issuer":["e","m"],'
    '"previous_response_id":"p","conversation":"c","first":3,"wire":1,"attempt":2,"stored":true,'
    '"digest":"AAE="}',
    '{"type":"model.responded","request":3,"response_id":"r","output":[{}],"usage":{"requests":1,'
    '"input_tokens":2,"cached_tokens":3,"output_tokens":4,"reasoning_tokens":5,"total_tokens":6},'
    '"status":"incomplete"}',
    '{"type":"model.failed","request":3,"kind":"E","message":"m","partial":"p","usage":{},"retried":true}',
    '{"type":"tool.called","call":[7,1],"name":"t","arguments":{},"attempt":2,"child":"s/7.1"}',
    '{"type":"tool.returned","call":[7,1],"call_id":"c","output":"x","error":true,"shown":"y",'
    '"item":"custom_tool_call_output"}',
    '{"type":"tool.abandoned","call":[7,1],"call_id":"c","reason":"unknown","answer":"a",'
    '"item":"custom_tool_call_output"}',
    '{"type":"call.refused","call":[7,1],"call_id":"c","reason":"limit","answer":"a",'
    '"item":"custom_tool_call_output"}',
    '{"type":"approval.requested","call":[7,1],"reason":"approval"}',
    '{"type":"approval.decided","call":[7,1],"standing":["a","t"],"verdict":"answer","by":"u",'
    '"reason":"r","output":"x"}',
    '{"type":"handoff.filtered","call":[7,1],"rewrite":{"filter":"f","parameters":{},'
    '"operations":[["take",0,1]],"repairs":["r"]}}',
    '{"type":"handoff.made","call":[7,1],"call_id":"c","source":"a","target":"b","arguments":{},'
    '"acknowledgement":"a","item":"custom_tool_call_output"}',
    '{"type":"history.rewritten","cause":"manual","rewrite":{"filter":"f","parameters":{},"operations":[]}}',
    '{"type":"guardrail.tripped","stage":"input","name":"g","reason":"r","replacement":{},'
    '"rewrite":{"filter":"f","parameters":{},"operations":[]}}',
    '{"type":"event.redacted","target":3,"reason":"r","digest":"AAE="}',
    '{"type":"session.forked","parent":"s","at":3}',
]


def test_the_tags_never_change() -> None:
    assert list(TAGS) == [json.loads(stored)["type"] for stored in STORED]


@pytest.mark.parametrize("stored", STORED, ids=list(TAGS))
def test_a_stored_event_is_read_and_written_the_same(stored: str) -> None:
    event = decode(stored.encode())
    assert not isinstance(event, UnknownEvent)
    assert encode(event) == stored.encode()


DEFAULTS: dict[str, dict[str, object]] = {
    "run.started": {"key": None, "parent": None},
    "run.resumed": {"limits": None},
    "run.paused": {"limit": None},
    "run.cancelled": {"reason": ""},
    "input.added": {"key": None},
    "cancel.requested": {"after_turn": False, "reason": ""},
    "agent.resolved": {"instructions": None, "offered": None, "output_schema": None, "settings": None},
    "model.requested": {
        "previous_response_id": None,
        "conversation": None,
        "first": 0,
        "attempt": 1,
        "stored": False,
    },
    "model.responded": {"response_id": None, "status": "completed"},
    "model.failed": {
        "partial": "",
        "usage": None,
        "retried": False,
        "delay": 0.0,
        "passed_on": False,
    },
    "tool.called": {"attempt": 1, "child": None},
    "tool.returned": {"error": False, "shown": None, "item": "function_call_output"},
    "tool.abandoned": {"item": "function_call_output"},
    "call.refused": {"item": "function_call_output"},
    "approval.decided": {"call": None, "standing": None, "reason": "", "output": None},
    "handoff.made": {"item": "function_call_output"},
    "guardrail.tripped": {"replacement": None, "rewrite": None},
}


@pytest.mark.parametrize("tag", list(TAGS))
def test_a_stored_default_never_changes(tag: str) -> None:
    cls: Any = TAGS[tag]
    fields = msgspec.structs.fields(cls)
    assert {f.name: f.default for f in fields if not f.required} == DEFAULTS.get(tag, {})


@pytest.mark.parametrize("tag", list(DEFAULTS))
def test_what_equals_its_default_is_not_written(tag: str) -> None:
    stored = json.loads(next(stored for stored in STORED if json.loads(stored)["type"] == tag))
    short = json.dumps(
        {k: v for k, v in stored.items() if k not in DEFAULTS[tag]}, separators=(",", ":")
    ).encode()
    assert encode(decode(short)) == short
    for name, value in DEFAULTS[tag].items():
        assert given_out(getattr(decode(short), name)) == value


@pytest.mark.parametrize("tag", list(TAGS))
def test_the_type_of_an_event_is_its_tag(tag: str) -> None:
    assert TAGS[tag].type == tag
