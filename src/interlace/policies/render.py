"""From problems to token ids and from sampled ids to text: one renderer for every use.

Supervised training, rollouts and evaluation all ask the same object, so a prompt has one list of ids.
What is supervised is what the model would have to sample: the completion and its end token, nothing
of the template, and never decided by looking at token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlace.types import Message, Problem


class RenderError(ValueError):
    """A problem that cannot be turned into token ids, with the reason."""


class Renderer:
    """Token ids of prompts and demonstrations, and text of completions.

    Args:
        tokenizer: A transformers tokenizer.
        eos_ids: Ids that end a completion when they are sampled; the first one ends demonstrations
            of plain-text prompts.
        chat: `None` uses the chat template for prompts that are messages and leaves text as it is;
            `True` also wraps text as one user message; `False` never uses the template (the
            contents of messages are joined by newlines).

    Raises:
        ValueError: `chat=True` with a tokenizer that has no chat template.
    """

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int], chat: bool | None = None) -> None:
        if chat and not tokenizer.chat_template:
            raise ValueError(
                "chat=true: the tokenizer has no chat template; accepted are chat=none and chat=false"
            )
        if not eos_ids:
            raise ValueError(
                "eos_ids is empty: a completion could never end; the tokenizer needs an eos_token"
            )
        self.tokenizer = tokenizer
        self.eos_ids = tuple(eos_ids)
        self.chat = chat
        self._begin = _begin_ids(tokenizer)

    def prompt_ids(self, problem: Problem) -> list[int]:
        """What the policy reads before it answers (a chat prompt ends with the assistant's header).

        A conversation whose last message is the assistant's is a multi-turn demonstration: its
        prompt is everything before that message.

        Raises:
            RenderError: The prompt has no tokens, a character that the tokenizer cannot write, or
                messages that the template refuses.
        """
        messages = self._messages(problem)
        if messages is None:
            ids = self._begin + self._encode(problem, self._text(problem))
        else:
            ids = self._render(problem, _without_answer(messages), add_generation_prompt=True)
        if not ids:
            raise RenderError(
                f"problem {problem.id!r}: the prompt is empty, so no token can be predicted from it"
            )
        return ids

    def demonstration_ids(self, problem: Problem) -> list[int]:
        """What the policy would have to sample to give the demonstration, its end token included.

        Raises:
            RenderError: There is no demonstration, it holds an end token, or the template writes the
                prompt differently once the answer follows.
        """
        text = _demonstration(problem)
        messages = self._messages(problem)
        if messages is None:
            ids = self._encode(problem, text)
            if set(ids) & set(self.eos_ids):
                raise RenderError(f"problem {problem.id!r}: its demonstration holds an end token")
            return [*ids, self.eos_ids[0]]
        prompt = self.prompt_ids(problem)
        answered = [*_without_answer(messages), {"role": "assistant", "content": text}]
        whole = self._render(problem, answered, add_generation_prompt=False)
        if whole[: len(prompt)] != prompt:
            raise RenderError(
                f"problem {problem.id!r}: the chat template is not prefix-stable (the prompt is written "
                "differently once the answer follows), so supervised and sampled tokens would differ; "
                "give prompt and demonstration as plain text with chat=false, or change the template"
            )
        return self._until_end(problem, text, whole[len(prompt) :])

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text."""
        return frozenset({*self.eos_ids, *self.tokenizer.all_special_ids})

    @property
    def mask_id(self) -> int:
        """What the policy reads where a token is hidden: the mask token, else one that no text holds.

        Raises:
            RenderError: Every special token of the tokenizer ends a completion.
        """
        named = (self.tokenizer.mask_token_id, self.tokenizer.pad_token_id, self.tokenizer.unk_token_id)
        found = next((i for i in named if i is not None and i not in self.eos_ids), None)
        if found is None:
            raise RenderError(
                "the tokenizer has no token to hide others behind; accepted is one with a mask_token, or "
                "with a pad_token or unk_token that does not end completions"
            )
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _until_end(self, problem: Problem, text: str, answer: list[int]) -> list[int]:
        end = next((i for i, token in enumerate(answer) if token in self.eos_ids), None)
        if end is None:
            named = self.tokenizer.convert_ids_to_tokens(list(self.eos_ids))
            raise RenderError(
                f"problem {problem.id!r}: the chat template ends the assistant's turn with none of the end "
                f"tokens {named}, so a trained model would never stop"
            )
        written = self.tokenizer.decode(answer[:end], clean_up_tokenization_spaces=False)
        if not written.rstrip().endswith(text.strip()):
            raise RenderError(
                f"problem {problem.id!r}: up to the first end token the template writes {written[-40:]!r}, "
                "which does not end with the demonstration; it holds an end token or the template rewrites it"
            )
        return answer[: end + 1]

    def _messages(self, problem: Problem) -> list[Message] | None:
        if isinstance(problem.prompt, str):
            return [{"role": "user", "content": problem.prompt}] if self.chat else None
        if self.chat is False:
            return None
        if not self.tokenizer.chat_template:
            raise RenderError(
                f"problem {problem.id!r}: its prompt is a list of messages, but the tokenizer has no chat "
                "template; give the prompt as text, or chat=false to join the messages' contents"
            )
        return list(problem.prompt)

    def _text(self, problem: Problem) -> str:
        if isinstance(problem.prompt, str):
            return problem.prompt
        return "\n".join(message["content"] for message in _without_answer(problem.prompt))

    def _render(self, problem: Problem, messages: list[Message], *, add_generation_prompt: bool) -> list[int]:
        try:
            text = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except Exception as error:
            raise RenderError(
                f"problem {problem.id!r}: the chat template refuses its messages: {error}"
            ) from error
        return self._encode(problem, text)

    def _encode(self, problem: Problem, text: str) -> list[int]:
        try:
            return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        except Exception as error:
            known = self.tokenizer.get_vocab()
            unknown = sorted({c for c in text if c not in known})
            if not unknown:
                raise
            raise RenderError(
                f"problem {problem.id!r}: the tokenizer has no token for {''.join(unknown)!r}; accepted "
                f"characters: {''.join(sorted(t for t in known if len(t) == 1))!r}"
            ) from error


def _begin_ids(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence id, if the tokenizer puts one before plain text."""
    if tokenizer.bos_token_id is None:
        return []
    added = tokenizer("", add_special_tokens=True)["input_ids"]
    return [tokenizer.bos_token_id] if added[:1] == [tokenizer.bos_token_id] else []


def _without_answer(messages: Sequence[Message]) -> list[Message]:
    messages = list(messages)
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


def _demonstration(problem: Problem) -> str:
    if problem.demonstration is not None:
        return problem.demonstration
    if not isinstance(problem.prompt, str) and problem.prompt and problem.prompt[-1]["role"] == "assistant":
        return problem.prompt[-1]["content"]
    raise RenderError(f"problem {problem.id!r} has no demonstration to imitate")
