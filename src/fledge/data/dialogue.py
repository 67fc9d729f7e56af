"""One prompt's conversation with the target: each user turn is answered, appended to the existing ids.

prompt ids | answer 1 | next turn's ids | answer 2 | ...        one sample
if the template rewrites history (drops thinking, trims):    a sample per turn, each as serving renders it
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from fledge.base.errors import TargetError
from fledge.data.conversations import Answered, Conversation
from fledge.data.filters import Limits, reject_reason
from fledge.data.generation import AnswerFailed, Generation, Job
from fledge.data.options import RespondOptions
from fledge.data.privacy import Audit, Treated
from fledge.data.prompt_store import TrainingPrompt
from fledge.data.reasoning import as_sent_back, reasoning_length
from fledge.data.seeds import derive_seed, pick, unit_interval
from fledge.data.split import split_of
from fledge.data.synthesis import special_token_ids
from fledge.data.tool_use import calls_in, with_results
from fledge.data.turns import continuation, decode_all, next_user_start
from fledge.engine import Completion, SamplingParams
from fledge.target import Target
from fledge.target.chat import Message

REFUSED = "refused_by_template"
_USER_LIMITS = Limits(min_words=2)  # "Why not?" is a fine second turn


AnswerScan = Callable[[str], Treated]  # the privacy filter's result for a text of the target


class DialogueJobs:
    """Makes the job that turns a prompt into conversations. All randomness depends on the prompt's id alone."""

    def __init__(
        self,
        target: Target,
        options: RespondOptions,
        scan: AnswerScan | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """`vocabulary`: tokens that the model has; a prompt with others is rejected. None: not checked."""
        self._target = target
        self._vocabulary = vocabulary
        self._options = options
        self._scan = scan
        self._special = special_token_ids(target)
        self._special_tokens = [str(token) for token in target.tokenizer.all_special_tokens]

    def job(self, prompt: TrainingPrompt) -> Job[Answered]:
        """The conversations, or why there are none or they end early: `too_long`, `refused_by_template`, ..."""
        samples: list[_Sample] = []
        reason: str | None = None
        audit = Audit()
        try:
            reason = yield from self._converse(prompt, samples, audit)
        except AnswerFailed as failed:
            reason = failed.reason
        except TargetError:  # raised by the template, about these messages
            reason = REFUSED
        return Answered(
            prompt.prompt_id,
            tuple(self._conversation(prompt, s) for s in samples if s.answers),
            reason,
            audit if self._scan is not None else None,
        )

    def _converse(
        self, prompt: TrainingPrompt, samples: list[_Sample], audit: Audit
    ) -> Generator[Generation, Completion, str | None]:
        """Append samples as the conversation grows; returns why it ended early, if it did."""
        options = self._options
        messages: list[Message] = [{"role": "user", "content": prompt.turns[0]}]
        if prompt.system is not None:
            messages.insert(0, {"role": "system", "content": prompt.system})
        turn_ids = self._ids(prompt, messages)
        if len(turn_ids) > options.longest_prompt:
            return "too_long"
        samples.append(_Sample(turn=1))
        wants_second = unit_interval(options.seed, "second", prompt.prompt_id) < options.second_turn
        logged = prompt.tool_results
        turn = step = 1  # a turn with calls has several steps
        while True:
            answer = yield self._answer(prompt, [*samples[-1].token_ids, *turn_ids], step)
            text = decode_all(self._target, answer.token_ids[:-1])
            refused = self._refused(answer.text, audit)
            if refused is not None:
                return refused
            samples[-1].add(self._target, turn_ids, answer)
            step += 1
            if answer.finish_reason != "stop":
                return None  # counted by its finish reason
            called = self._called(prompt, text, logged[turn - 1] if turn <= len(logged) else [])
            if called is None:
                return "other_call" if turn < len(prompt.turns) else None
            if not called:
                turn += 1
                if turn <= len(prompt.turns):
                    question: str | None = prompt.turns[turn - 1]
                elif turn == 2 and wants_second:
                    question = yield from self._synthesised_turn(prompt, messages, samples[-1].token_ids)
                    refused = self._refused(question, audit) if question is not None else None
                    if refused is not None:
                        return refused
                else:
                    return None
                if question is None:
                    return None
                called = [as_sent_back(text), {"role": "user", "content": question}]
            messages = [*messages, *called]
            rendered = self._ids(prompt, messages)
            before = samples[-1].token_ids
            between = continuation(self._target, before, rendered)
            if between is None:
                before, between = [], rendered
                samples.append(_Sample(turn=step))
            if len(before) + len(between) > options.longest_prompt:
                return "later_turn_too_long"
            turn_ids = between

    def _ids(self, prompt: TrainingPrompt, messages: Sequence[Message]) -> list[int]:
        """The ids that serving renders for the messages of this prompt."""
        ids = self._target.chat.prompt_ids(messages, options=prompt.options, tools=prompt.offered)
        if self._vocabulary is not None and max(ids) >= self._vocabulary:
            raise AnswerFailed("foreign_token")  # a tokenizer may have more tokens than the model
        return ids

    def _called(
        self, prompt: TrainingPrompt, text: str, logged: list[tuple[str, str]]
    ) -> list[Message] | None:
        """The answer's calls with their logged results; [] for an answer without; None if they don't go together."""
        if not prompt.tools:
            return []
        content, calls = calls_in(text, {tool["function"]["name"] for tool in prompt.offered})
        if not calls:
            return None if logged else []
        return with_results(content, calls, logged)

    def _refused(self, text: str, audit: Audit) -> str | None:
        """Why a text of the target must be rejected, or None."""
        if self._scan is None:
            return None
        scanned = self._scan(text)
        audit.add(scanned)
        return None if scanned.reason is None else f"private_{scanned.reason}"

    def _conversation(self, prompt: TrainingPrompt, sample: _Sample) -> Conversation:
        options = self._options
        name = f"{prompt.prompt_id}-{options.seed}"
        return Conversation(
            conversation_id=name if sample.turn == 1 else f"{name}-{sample.turn}",
            prompt_id=prompt.prompt_id,
            source=prompt.source,
            category=prompt.category,
            token_ids=sample.token_ids,
            loss_mask=sample.loss_mask,
            turn_starts=sample.turn_starts,
            temperature=self._temperature(prompt),
            finish_reason=sample.finish_reason,
            split=split_of(prompt.prompt_id, options.heldout),
            row=prompt.row,
            licence=prompt.licence,
            reasoning_tokens=sample.reasoning_tokens,
        )

    def _temperature(self, prompt: TrainingPrompt) -> float:
        options = self._options
        shares = dict(sorted(options.temperatures.items()))  # independent of the order in the recipe
        return pick(shares, unit_interval(options.seed, "temperature", prompt.prompt_id))

    def _answer(self, prompt: TrainingPrompt, ids: list[int], turn: int) -> Generation:
        options = self._options
        params = SamplingParams(
            max_tokens=options.max_new_tokens,
            temperature=self._temperature(prompt),
            top_p=options.top_p,
            seed=derive_seed(options.seed, "answer", prompt.prompt_id, turn),
        )
        return Generation(ids, params)

    def _synthesised_turn(
        self, prompt: TrainingPrompt, messages: Sequence[Message], ids: list[int]
    ) -> Job[str | None]:
        """A second user turn written by the target; None if the template has no place for it or it is unfit."""
        options, target = self._options, self._target
        start = next_user_start(target, messages)
        if start is None or len(ids) + len(start) > options.longest_prompt:
            return None
        params = SamplingParams(
            max_tokens=options.user_max_tokens,
            temperature=options.user_temperature,
            top_p=options.user_top_p,
            seed=derive_seed(options.seed, "user", prompt.prompt_id),
        )
        written = yield Generation([*ids, *start], params)
        if written.finish_reason != "stop" or self._special.intersection(written.token_ids[:-1]):
            return None
        text = written.text.strip()
        return None if reject_reason(text, _USER_LIMITS, self._special_tokens) else text


class _Sample:
    """Ids of a growing conversation."""

    def __init__(self, turn: int) -> None:
        self.turn = turn  # the first turn it answers
        self.token_ids: list[int] = []
        self.loss_mask: list[bool] = []
        self.turn_starts: list[int] = []
        self.finish_reason = ""
        self.reasoning_tokens = 0

    @property
    def answers(self) -> int:
        return len(self.turn_starts) // 2

    def add(self, target: Target, turn_ids: Sequence[int], answer: Completion) -> None:
        self.reasoning_tokens += reasoning_length(target, turn_ids, answer.token_ids)
        for ids, generated in ((turn_ids, False), (answer.token_ids, True)):
            self.turn_starts.append(len(self.token_ids))
            self.token_ids += ids
            self.loss_mask += [generated] * len(ids)
        self.finish_reason = answer.finish_reason
