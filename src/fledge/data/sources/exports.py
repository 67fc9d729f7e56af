"""Conversations as chat applications export them, as lists of messages: of a tree, the branch that was open.

    {"mapping": {id: {"message": ..., "parent": id}}, "current_node": id}         ChatGPT, DeepSeek
    {"chat": {"history": {"messages": {id: ...}, "currentId": id}}}               Open WebUI
    {"messages": [{"versions": [...], "currentlySelected": 0}]}                   LM Studio
    {"chat_messages": [{"sender": "human", "parent_message_uuid": id}]}           Claude
    {"messages": [{"messageId": id, "parentMessageId": id, "children": [...]}]}   LibreChat
    {"chunkedPrompt": {"chunks": [{"role": "user", "text": ...}]}}                Google AI Studio
    {"internal": [["one", "an answer"]]}                                          text-generation-webui

What the application hides from its user and what its own tools returned isn't kept; `losses` names the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fledge.data.sources.columns import get, value_at
from fledge.data.sources.messages import content_of, is_list, role_of, text_of

_LISTS = ("chat_messages", "messages")
_IDS = ("id", "uuid", "messageId", "message_id")
_PARENTS = ("parent_message_uuid", "parentMessageId", "parentId", "parent_id", "parent")
_LEAVES = ("current_leaf_message_uuid", "currentId", "current_node")
_OPENING = "<|BEGIN-VISIBLE-CHAT|>"  # of text-generation-webui: the assistant speaks first


class Export(NamedTuple):
    """A conversation of an export."""

    messages: Sequence[Any]
    system: str | None = None
    losses: tuple[str, ...] = ()


def read_export(row: Any) -> Export | str | None:
    """A row's conversation; None if it is none of an export, or why it can't be read: `shape`, `later_turn`."""
    if not isinstance(row, Mapping):
        return None
    if isinstance(mapping := row.get("mapping"), Mapping):
        return _from_mapping(mapping, row.get("current_node"))
    chat = row["chat"] if isinstance(row.get("chat"), Mapping) else row
    if isinstance(nodes := value_at(chat, "history.messages"), Mapping) or (
        chat is not row and "messages" in chat
    ):
        return _from_history(chat, nodes)
    if is_list(chunks := value_at(row, "chunkedPrompt.chunks")):
        system = row.get("systemInstruction")
        return Export(list(_turns_of(chunks)), text_of(system) if system else None)
    if is_list(pairs := row.get("internal")) and is_list(row.get("visible")):
        return Export([_said(pair) if _OPENING in pair else pair for pair in pairs if is_list(pair)])
    messages = next((row[name] for name in _LISTS if is_list(row.get(name))), ())
    if any(is_list(get(message, "versions")) for message in messages):
        return _from_versions(row, messages)
    return _from_parents(row, messages)


def _said(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _branch(nodes: Mapping[Any, Any], leaf: Any) -> list[Mapping[str, Any]] | str:
    """The nodes from the first to a leaf; without one, to the latest: the last child of each."""
    if leaf is None:
        leaf = next((key for key, node in nodes.items() if get(node, "parent") is None), None)
        passed = set()
        while leaf not in passed and is_list(children := get(nodes.get(leaf), "children")) and children:
            passed.add(leaf)
            leaf = children[-1] if isinstance(children[-1], str) else None
    branch: dict[str, Mapping[str, Any]] = {}
    while leaf is not None:
        if not isinstance(leaf, str) or leaf in branch or not isinstance(nodes.get(leaf, {}), Mapping):
            return "shape"
        if leaf not in nodes:
            return "later_turn" if branch else "shape"  # what was said before is missing
        branch[leaf] = nodes[leaf]
        leaf = _first(nodes[leaf], _PARENTS)
    return list(reversed(branch.values()))


def _from_mapping(mapping: Mapping[str, Any], leaf: Any) -> Export | str:
    nodes = _branch(mapping, leaf)
    if isinstance(nodes, str):
        return nodes
    messages: list[Any] = []
    losses = set()
    for message in (node["message"] for node in nodes if node.get("message") is not None):
        content, metadata = get(message, "content"), get(message, "metadata")
        if get(content, "content_type") == "user_editable_context":  # custom instructions
            texts = (get(content, key) for key in ("user_profile", "user_instructions"))
            messages.append(
                {"role": "system", "content": "\n\n".join(t for t in texts if isinstance(t, str))}
            )
        elif get(metadata, "is_visually_hidden_from_conversation"):
            continue
        elif isinstance(message, Mapping) and is_list(fragments := message.get("fragments")):
            asked = [content_of(part) for part in fragments if get(part, "type") == "REQUEST"]
            files = message.get("files")
            messages.append({"role": "user", "content": asked, "files": files} if asked else _said(""))
        elif isinstance(message, Mapping) and role_of(message) == "tool":
            losses.add("app_tools")
        else:
            attached = get(metadata, "attachments")
            role = role_of(message) if isinstance(message, Mapping) else None
            messages.append({"role": role or "", "content": _heard(content), "attachments": attached})
    return Export(messages, None, tuple(losses))


def _heard(content: Any) -> Any:
    """The content without the sound of what is written beside it."""
    parts = get(content, "parts")
    if not is_list(parts) or not any(get(part, "content_type") == "audio_transcription" for part in parts):
        return content
    return [part for part in parts if "asset_pointer" not in str(get(part, "content_type"))]


def _from_history(chat: Mapping[str, Any], nodes: Any) -> Export | str:
    system = next(
        (text for name in ("system", "params.system") if isinstance(text := value_at(chat, name), str)), None
    )
    leaf = value_at(chat, "history.currentId")
    if isinstance(nodes, Mapping) and leaf is not None:
        branch = _branch(nodes, leaf)
        return branch if isinstance(branch, str) else Export(branch, system)
    return Export(chat["messages"], system) if is_list(chat.get("messages")) else "shape"


def _from_versions(row: Mapping[str, Any], messages: Sequence[Any]) -> Export | str:
    chosen = []
    for message in messages:
        versions, selected = get(message, "versions"), get(message, "currentlySelected")
        if not is_list(versions) or not isinstance(selected, int) or not 0 <= selected < len(versions):
            return "shape"
        version = versions[selected]
        chosen.append(_said("") if get(version, "role") == "assistant" else version)
    system = row.get("systemPrompt")
    if not system:
        fields = value_at(row, "perChatPredictionConfig.fields")
        named = {get(one, "key"): get(one, "value") for one in fields} if is_list(fields) else {}
        system = named.get("llm.prediction.systemPrompt")
    return Export(chosen, system if isinstance(system, str) else None)


def _turns_of(chunks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """A user's chunks in a row are one turn."""
    turn: list[Any] = []
    for chunk in (*chunks, None):
        if get(chunk, "role") == "user":
            turn.append(
                {
                    "type": "text" if isinstance(get(chunk, "text"), str) else "file",
                    "text": get(chunk, "text"),
                }
            )
            continue
        if turn:
            yield {"role": "user", "content": turn}
            turn = []
        if chunk is not None:
            yield _said("") if get(chunk, "role") == "model" else {"role": "", "content": chunk}


def _from_parents(row: Mapping[str, Any], messages: Sequence[Any]) -> Export | str | None:
    """A list that holds all branches, or whose messages hold those after them."""
    flat = list(_flat(messages, None))
    keys = {key for key, _, _ in flat}
    given = [parent for _, parent, _ in flat if parent in keys]
    if len(flat) == len(messages) and len(set(given)) == len(given):
        return None  # in order already
    nodes = {key: {"parent": parent if parent in keys else None, "message": one} for key, parent, one in flat}
    leaf = next((row[name] for name in _LEAVES if row.get(name) is not None), flat[-1][0])
    branch = _branch(nodes, leaf)
    return branch if isinstance(branch, str) else Export([node["message"] for node in branch])


def _flat(messages: Sequence[Any], parent: str | None) -> Iterator[tuple[str, str | None, Any]]:
    """Each message with its key and its parent's."""
    for message in messages:
        key = str(_first(message, _IDS) or id(message))
        above = _first(message, _PARENTS)
        yield key, parent if above is None else str(above), message
        children = get(message, "children")
        if is_list(children) and all(isinstance(child, Mapping) for child in children):
            yield from _flat(children, key)


def _first(message: Any, names: Sequence[str]) -> Any:
    return next((message[name] for name in names if get(message, name) is not None), None)
