"""What chat applications export is read without a setting: the branch that was open, the user's turns alone."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import DataError
from fledge.data.sources import Record, SourceOptions, open_source, user_turns

Q, Q2, A, OLD = "Why do boats float?", "And why do some sink?", "ANSWERTEXT", "ABANDONED question"


def read(path: Path, **options: Any) -> list[Any]:
    records = open_source(SourceOptions(path=str(path), licence="own", **options)).records()
    return [record.turns if isinstance(record, Record) else record.reason for record in records]


def node(role: str, text: Any, parent: str | None, children: list[str], **metadata: Any) -> dict[str, Any]:
    content = text if isinstance(text, dict) else {"content_type": "text", "parts": [text]}
    message = {
        "author": {"role": role, "name": None},
        "content": content,
        "metadata": metadata,
        "recipient": "all",
    }
    return {"id": "x", "message": message, "parent": parent, "children": children}


HIDDEN = {"is_visually_hidden_from_conversation": True}
CUSTOM = {
    "content_type": "user_editable_context",
    "user_profile": "I sail.",
    "user_instructions": "Be brief.",
}
RAN = {"content_type": "execution_output", "text": "TOOLTEXT"}


def chatgpt(**changes: Any) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        "9": node("user", Q2, "6", ["10"]),
        "10": node("assistant", A, "9", []),
        "root": {"id": "root", "message": None, "parent": None, "children": ["1"]},
        "1": node("system", "", "root", ["2"], **HIDDEN),
        "2": node("user", CUSTOM, "1", ["3", "7"], **HIDDEN),
        "7": node("user", OLD, "2", ["8"]),
        "8": node("assistant", A, "7", []),
        "3": node("user", Q, "2", ["4", "11"]),
        "4": node("assistant", {"content_type": "code", "text": A}, "3", ["5"]),
        "5": node("tool", RAN, "4", ["6"]),
        "6": node("assistant", A, "5", ["9"]),
        "11": node("assistant", A, "3", []),
    }
    row = {
        "title": "Boats",
        "create_time": 1.5,
        "mapping": mapping,
        "current_node": "10",
        "conversation_id": "c",
    }
    return row | changes


def changed(key: str, **changes: Any) -> dict[str, Any]:
    """ChatGPT's conversation with another node."""
    row = chatgpt()
    return row | {"mapping": {**row["mapping"], key: row["mapping"][key] | changes}}


def test_of_chatgpts_tree_the_open_branch_is_read() -> None:
    found = user_turns(chatgpt(), "messages")
    assert not isinstance(found, str)
    assert (found.turns, found.system, found.losses) == ((Q, Q2), "I sail.\n\nBe brief.", ("app_tools",))
    assert user_turns(chatgpt(current_node="8"), "messages")[0] == (OLD,)
    assert user_turns(chatgpt(), "request")[0] == (Q, Q2)
    newest = user_turns(chatgpt(current_node=None), "messages")  # the last child of each
    assert newest[0] == (OLD,)
    assert not {"ANSWERTEXT", "TOOLTEXT"} & set(str(found).split())


PICTURE = {"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, Q2]}
SPOKEN = {"content_type": "multimodal_text", "parts": [
    {"content_type": "audio_transcription", "text": Q2}, {"content_type": "audio_asset_pointer"}]}  # fmt: skip


def test_pictures_and_files_end_the_turns_and_speech_is_its_transcript() -> None:
    for content, metadata in ((PICTURE, {}), ({"parts": [Q2]}, {"attachments": [{"name": "a.pdf"}]})):
        row = changed("9", message=node("user", content, "", [], **metadata)["message"])
        found = user_turns(row, "messages")
        assert (found[0], found[-1]) == ((Q,), ("media", "app_tools"))
    assert user_turns(changed("9", message=node("user", SPOKEN, "", [])["message"]), "messages")[0] == (Q, Q2)


BROKEN: list[tuple[Any, Any]] = [
    (changed("5", parent="gone"), "later_turn"),
    (changed("1", parent="10"), "shape"),  # a circle
    (changed("5", parent=["4"]), "shape"),
    (chatgpt(current_node="gone"), "shape"),
    (chatgpt(current_node={}), "shape"),
    (chatgpt(mapping={}), "shape"),
    (chatgpt(mapping={"10": None}), "shape"),
    (chatgpt(mapping=None), "shape"),
    (changed("9", message="text"), (Q,)),
    (changed("9", message={"author": None, "content": {"parts": None}}), (Q,)),
    (changed("3", message={"author": {"role": "user"}, "content": {"parts": [None]}}), "no_text"),
    (None, "shape"),
    (5, "shape"),
]


def test_broken_conversations_of_an_export_cost_only_themselves(tmp_path: Path) -> None:
    rows = [chatgpt(), *(row for row, _ in BROKEN), chatgpt()]
    (tmp_path / "conversations.json").write_text(json.dumps(rows))
    expected = [(Q, Q2), *(expected for _, expected in BROKEN), (Q, Q2)]
    assert read(tmp_path) == expected
    (tmp_path / "conversations.json").write_text(json.dumps(rows, indent=1))
    assert read(tmp_path) == expected


def test_a_folder_with_all_files_of_an_export(tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(json.dumps([chatgpt(), chatgpt()]))
    (tmp_path / "chat.html").write_text("<html>")
    (tmp_path / "message_feedback.json").write_text(
        json.dumps([{"id": "1", "rating": "thumbs_up", "content": "{}"}])
    )
    (tmp_path / "user.json").write_text(json.dumps({"id": "u", "email": "a@b.example"}))
    assert read(tmp_path) == [(Q, Q2), (Q, Q2), "shape", "shape"]


def test_an_export_is_read_as_it_is_downloaded(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "export.ZIP", "w") as file:
        file.writestr("user.json", json.dumps({"id": "u", "email": "a@b.example"}))
        file.writestr("file-1-notes.txt", "What somebody attached, which nobody asked")
        file.writestr("conversations-000.json", json.dumps([chatgpt()]))
        file.writestr("conversations-001.json", json.dumps([chatgpt(current_node="8")]))
    assert read(tmp_path / "export.ZIP") == [(Q, Q2), (OLD,)]
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as file:
        file.writestr("day/1.jsonl", json.dumps({"messages": WEBUI[:2]}))
    assert read(tmp_path / "logs.zip") == [(Q,)]
    (tmp_path / "cut.zip").write_bytes((tmp_path / "logs.zip").read_bytes()[:40])
    with pytest.raises(DataError, match=r"can't look at the source .*cut\.zip \(File is not a zip file\)"):
        read(tmp_path / "cut.zip")


def web_message(key: str, role: str, content: Any, parent: str | None, **more: Any) -> dict[str, Any]:
    return {"id": key, "parentId": parent, "childrenIds": [], "role": role, "content": content, **more}


WEBUI = [
    web_message("a", "user", Q, None, files=[]),
    web_message("b", "assistant", A, "a"),
    web_message("x", "user", OLD, "b"),
    web_message("c", "user", Q2, "b"),
    web_message("d", "assistant", A, "c"),
]


def open_webui(messages: list[Any] = WEBUI, current: Any = "d", **more: Any) -> dict[str, Any]:
    history = {"messages": {message["id"]: message for message in messages}, "currentId": current}
    chat = {"title": "Boats", "models": ["m"], "params": {"system": "S"}, "history": history, **more}
    return {"id": "1", "user_id": "u", "title": "Boats", "chat": chat, "updated_at": 1}


def test_open_webuis_chats() -> None:
    found = user_turns(open_webui(), "messages")
    assert found[:2] == ((Q, Q2), "S")
    assert user_turns(open_webui()["chat"], "messages")[0] == (Q, Q2)  # a chat alone
    assert user_turns({"chat": {"messages": WEBUI[:2]}}, "messages")[0] == (Q,)  # without the tree
    assert user_turns(open_webui(WEBUI[1:]), "messages") == "later_turn"
    assert user_turns({"chat": {"history": {}, "messages": None}}, "messages") == "shape"
    image = web_message("c", "user", Q2, "b", files=[{"type": "image", "url": "data:"}])
    assert user_turns(open_webui([*WEBUI, image], "c"), "messages")[-1] == ("media",)


def lm_studio(selected: Any = 1, **more: Any) -> dict[str, Any]:
    def single(text: str) -> dict[str, Any]:
        return {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": text}]}

    steps = [{"type": "contentBlock", "content": [{"type": "text", "text": A}]}]
    answer = {
        "versions": [{"type": "multiStep", "role": "assistant", "steps": steps}],
        "currentlySelected": 0,
    }
    messages = [{"versions": [single(OLD), single(Q)], "currentlySelected": selected}, answer,
                {"versions": [single(Q2)], "currentlySelected": 0}, answer]  # fmt: skip
    return {"name": "Boats", "createdAt": 1, "systemPrompt": "S", "messages": messages, **more}


def test_lm_studios_files(tmp_path: Path) -> None:
    assert user_turns(lm_studio(), "messages")[:2] == ((Q, Q2), "S")
    assert user_turns(lm_studio(0), "messages")[0] == (OLD, Q2)
    field = {"key": "llm.prediction.systemPrompt", "value": "S"}
    assert (
        user_turns(lm_studio(systemPrompt="", perChatPredictionConfig={"fields": [field]}), "messages")[1]
        == "S"
    )
    (tmp_path / "work").mkdir()
    texts = (
        json.dumps(lm_studio(), indent=2),
        json.dumps(lm_studio(7), indent=2),
        json.dumps(lm_studio(None)),
    )
    for number, text in enumerate(texts):
        (tmp_path / "work" / f"{number}.conversation.json").write_text(text)
    assert read(tmp_path) == [(Q, Q2), "shape", "shape"]


CLAUDE = [{"uuid": key, "text": text, "sender": sender, "content": [{"type": "text", "text": text}], "attachments": [],
           "files": [], "parent_message_uuid": parent} for key, sender, text, parent in (
    ("a", "human", Q, "0"), ("b", "assistant", A, "a"), ("x", "human", OLD, "b"), ("c", "human", Q2, "b"))]  # fmt: skip
LIBRE = {"messageId": "a", "parentMessageId": "00000000", "text": Q, "sender": "User", "children": [
    {"messageId": "b", "parentMessageId": "a", "text": A, "sender": "GPT-4", "children": [
        {"messageId": "c", "parentMessageId": "b", "text": Q2, "sender": "User", "children": []}]}]}  # fmt: skip
DEEPSEEK = {"root": {"id": "root", "parent": None, "children": ["1"], "message": None}} | {
    key: {"id": key, "parent": parent, "children": children, "message": {"files": [], "fragments": [
        {"type": kind, "content": text}]}} for key, parent, children, kind, text in (
    ("1", "root", ["2"], "REQUEST", Q), ("2", "1", ["3", "4"], "RESPONSE", A), ("3", "2", [], "REQUEST", OLD),
    ("4", "2", [], "REQUEST", Q2))}  # fmt: skip
CHUNKS = [{"role": "user", "text": Q}, {"role": "model", "text": A, "isThought": True}, {"role": "model", "text": A},
          {"role": "user", "text": Q2}, {"role": "model", "text": A}]  # fmt: skip
OTHERS: list[Any] = [
    {"uuid": "1", "name": "Boats", "summary": A, "chat_messages": CLAUDE},
    {"uuid": "1", "name": "Boats", "chat_messages": [*CLAUDE[:2], CLAUDE[3]]},
    {"conversationId": "1", "title": "Boats", "recursive": True, "messages": [LIBRE]},
    {"id": "1", "title": "Boats", "inserted_at": "2025", "mapping": DEEPSEEK},
    {
        "runSettings": {},
        "systemInstruction": {"text": "S"},
        "chunkedPrompt": {"chunks": CHUNKS, "pendingInputs": []},
    },
    {"internal": [["<|BEGIN-VISIBLE-CHAT|>", A], [Q, A], [Q2, A]], "visible": [["", A], [Q, A], [Q2, A]]},
]


@pytest.mark.parametrize(
    "row", OTHERS, ids=["claude", "claude, a line", "librechat", "deepseek", "ai studio", "webui"]
)
def test_other_exports(row: Any, tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(json.dumps([row, row]))
    assert read(tmp_path) == [(Q, Q2)] * 2
    (tmp_path / "conversations.json").write_text(json.dumps(row, indent=2))
    assert read(tmp_path / "conversations.json") == [(Q, Q2)]


HISTORY = [{"role": "user", "content": Q}, {"role": "assistant", "content": A}]
EARLIER: list[Any] = [
    {"question": Q2, "past_user_inputs": [Q], "generated_responses": [A], "answer": A},
    {"text": Q2, "past_user_inputs": [Q], "generated_responses": [A]},
    {"inputs": {"text": Q2, "past_user_inputs": [Q], "generated_responses": [A]}},
    {"prompt": Q2, "previous_questions": json.dumps([Q])},
    {"message": Q2, "previous_messages": HISTORY},
    {"message": {"role": "user", "content": Q2}, "previous_messages": HISTORY, "response": A},
    {"message": Q2, "chatHistory": HISTORY, "reply": A},
    {"messages": [{"role": "user", "content": Q2}], "prior_turns": HISTORY},
    {"messages": [*HISTORY, {"role": "user", "content": Q2}], "history": HISTORY},
    {"role": "user", "content": Q2, "conversation_history": f"User: {Q}\nFalcon: {A}"},
]


@pytest.mark.parametrize("row", EARLIER)
def test_older_turns_in_another_column_come_first(row: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert read(tmp_path) == [(Q, Q2)]


def test_a_history_without_its_question_is_no_conversation() -> None:
    assert user_turns({"previous_messages": HISTORY, "reply": A}, "prompt") == "shape"
    assert user_turns({"question": Q, "medical_history": "None so far."}, "prompt")[0] == (Q,)
