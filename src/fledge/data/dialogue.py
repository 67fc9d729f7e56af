"""One prompt's conversation with the target: answer, and where asked a second user turn and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.data.conversations import Conversation
from fledge.data.filters import Limits, reject_reason
from fledge.data.generation import Generation, Job
from fledge.data.options import RespondOptions
from fledge.data.prompt_store import Prompt
from fledge.data.seeds import derive_seed, pick, unit_interval
from fledge.data.synthesis import special_token_ids
from fledge.data.turns import decode_all, keeps_history, next_turn_ids, next_user_start
from fledge.engine import Completion, SamplingParams
from fledge.target import Target
from fledge.target.chat import Message

_USER_LIMITS = Limits(min_words=2)  # "Why not?" is a fine second turn


class DialogueJobs:
    """Makes the job that turns a prompt into a conversation. Everything drawn depends on the prompt's id alone."""

    def __init__(self, target: Target, options: RespondOptions) -> None:
        self._target = target
        self._options = options
        self._special = special_token_ids(target)
        self._special_tokens = [str(token) for token in target.tokenizer.all_special_tokens]

    def job(self, prompt: Prompt) -> Job[Conversation | None]:
        """The conversation, or None if the prompt is longer than `max_prompt_tokens`."""
        options = self._options
        messages: list[Message] = [{"role": "user", "content": prompt.turns[0]}]
        asked = self._target.chat.prompt_ids(messages)
        if len(asked) > options.max_prompt_tokens:
            return None
        temperature = pick(options.temperatures, unit_interval(options.seed, "temperature", prompt.prompt_id))
        heldout = unit_interval("split", prompt.prompt_id) < options.heldout
        wants_second = unit_interval(options.seed, "second", prompt.prompt_id) < options.second_turn
        thread = _Thread()
        answer = yield self._answer(prompt, asked, temperature, turn=1)
        thread.add(asked, answer.token_ids)
        if wants_second and answer.finish_reason == "stop":
            between = yield from self._second_user_turn(prompt, messages, thread.token_ids)
            if between is not None:
                answer = yield self._answer(prompt, [*thread.token_ids, *between], temperature, turn=2)
                thread.add(between, answer.token_ids)
        return Conversation(
            conversation_id=f"{prompt.prompt_id}-{options.seed}",
            prompt_id=prompt.prompt_id,
            source=prompt.source,
            category=prompt.category,
            token_ids=thread.token_ids,
            loss_mask=thread.loss_mask,
            turn_starts=thread.turn_starts,
            temperature=temperature,
            finish_reason=answer.finish_reason,
            split="heldout" if heldout else "train",
        )

    def _answer(self, prompt: Prompt, ids: list[int], temperature: float, turn: int) -> Generation:
        options = self._options
        params = SamplingParams(
            max_tokens=options.max_new_tokens,
            temperature=temperature,
            top_p=options.top_p,
            seed=derive_seed(options.seed, "answer", prompt.prompt_id, turn),
        )
        return Generation(ids, params)

    def _second_user_turn(
        self, prompt: Prompt, messages: Sequence[Message], ids: list[int]
    ) -> Job[list[int] | None]:
        """Ids from the answer's end to the opening of the second one; None where the conversation ends instead."""
        options, target = self._options, self._target
        start = next_user_start(target, messages)
        if start is None or len(ids) + len(start) > options.max_prompt_tokens:
            return None
        params = SamplingParams(
            max_tokens=options.user_max_tokens,
            temperature=options.user_temperature,
            top_p=options.user_top_p,
            seed=derive_seed(options.seed, "user", prompt.prompt_id),
        )
        written = yield Generation([*ids, *start], params)
        text = self._usable_text(written)
        if text is None:
            return None
        between = next_turn_ids(target, messages, text)
        if between is None or len(ids) + len(between) > options.max_prompt_tokens:
            return None
        answer: Message = {"role": "assistant", "content": self._plain_text(ids, messages)}
        history = [*messages, answer, {"role": "user", "content": text}]
        return between if keeps_history(target, history, [*ids, *between]) else None

    def _usable_text(self, written: Completion) -> str | None:
        if written.finish_reason != "stop" or self._special.intersection(written.token_ids[:-1]):
            return None
        text = written.text.strip()
        return None if reject_reason(text, _USER_LIMITS, self._special_tokens) else text

    def _plain_text(self, ids: Sequence[int], messages: Sequence[Message]) -> str:
        """The answer's text as a client would send it back."""
        answer = ids[len(self._target.chat.prompt_ids(messages)) :]
        return decode_all(self._target, answer[:-1])


class _Thread:
    """Ids of a conversation as it grows."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.loss_mask: list[bool] = []
        self.turn_starts: list[int] = []

    def add(self, asked: Sequence[int], answered: Sequence[int]) -> None:
        for ids, generated in ((asked, False), (answered, True)):
            self.turn_starts.append(len(self.token_ids))
            self.token_ids += ids
            self.loss_mask += [generated] * len(ids)
