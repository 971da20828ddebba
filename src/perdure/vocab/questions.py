"""Questions of a model to a person, and the validation of answers. Defaults apply only on a timeout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec

from perdure.codec import Json
from perdure.vocab.promises import Ok, Resolution
from perdure.vocab.wire import Value

MAX_QUESTIONS = 10
MAX_OPTIONS = 50
MAX_QUESTION_CHARS = 4_000
MAX_ANSWER_CHARS = 16_000

QuestionKind = Literal["choice", "text", "secret"]

Answer: TypeAlias = str | list[str]
"""The text, the chosen option, or the list of chosen options."""


class Question(Value, frozen=True):
    """One question. `default` is the answer on a timeout; only a choice has one."""

    id: str
    question: str
    kind: QuestionKind = "text"
    options: tuple[str, ...] = ()
    multiple: bool = False
    default: str | tuple[str, ...] | None = None


QUESTIONS_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "questions": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_QUESTIONS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "minLength": 1, "maxLength": 64, "description": "Names the answer."},
                    "question": {"type": "string", "minLength": 1, "maxLength": MAX_QUESTION_CHARS},
                    "kind": {"type": "string", "enum": ["choice", "text", "secret"], "default": "text"},
                    "options": {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1, "maxLength": 500},
                        "maxItems": MAX_OPTIONS,
                        "description": "What can be chosen; for a choice.",
                    },
                    "multiple": {"type": "boolean", "description": "Whether several may be chosen."},
                    "default": {
                        "description": "The option, or the list of options, that counts if no answer comes in time.",
                        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    },
                },
                "required": ["id", "question"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["questions"],
    "additionalProperties": False,
}


def questions_of(args: Json) -> tuple[Question, ...]:
    """Return the questions in the validated arguments of a call."""
    return msgspec.convert(cast("dict[str, Json]", args)["questions"], tuple[Question, ...])


def problem_of(questions: tuple[Question, ...]) -> str:
    """Return why these questions are invalid, or an empty string."""
    ids = [question.id for question in questions]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        return f"two questions have the id {twice[0]!r}"
    problems = (_problem(question) for question in questions)
    return next((problem for problem in problems if problem), "")


def _problem(question: Question) -> str:
    options = question.options
    if question.kind != "choice":
        given = options or question.multiple or question.default is not None
        return f"{question.id}: options, multiple and default are for a choice" if given else ""
    if len(options) < 2 or len(set(options)) != len(options):
        return f"{question.id}: a choice has at least two different options"
    return f"{question.id}: the default is not one of the options" if _unfit_default(question) else ""


def _unfit_default(question: Question) -> bool:
    default = question.default
    if default is None:
        return False
    answer = default if isinstance(default, str) else list(default)
    return bool(mismatch(question, answer))


def mismatch(question: Question, answer: object) -> str:
    """Return what is wrong with an answer, or an empty string."""
    if question.kind == "choice" and question.multiple:
        chosen = cast("list[object]", answer) if isinstance(answer, list) else None
        if chosen is None or any(one not in question.options for one in chosen) or len(set(chosen)) != len(chosen):
            return f"{question.id}: choose any of {_shown(question)}, as a list, each at most once"
    elif question.kind == "choice":
        if answer not in question.options:
            return f"{question.id}: choose one of {_shown(question)}"
    elif not isinstance(answer, str) or not answer.strip():
        return f"{question.id}: answer with a text that is not blank"
    elif len(answer) > MAX_ANSWER_CHARS:
        return f"{question.id}: the text is longer than {MAX_ANSWER_CHARS} characters"
    return ""


def _shown(question: Question) -> str:
    return ", ".join(repr(option) for option in question.options)


def mismatches(questions: tuple[Question, ...], answers: Mapping[str, object]) -> tuple[str, ...]:
    """Return what is wrong with the answers. Each question needs one, and unknown ids are refused."""
    known = {question.id for question in questions}
    missing = [f"{question.id}: not answered" for question in questions if question.id not in answers]
    strange = [f"{id}: unknown question" for id in answers if id not in known]
    wrong = [mismatch(one, answers[one.id]) for one in questions if one.id in answers]
    return tuple(filter(None, (*missing, *strange, *wrong)))


def answered(answers: Mapping[str, Answer], *, by: str, at: int, via: str) -> Json:
    """Return the result of the call: each answer with its author, time and channel."""
    told: dict[str, Json] = {
        id: {"value": cast("Json", value), "answered_by": "person", "by": by, "at": at, "via": via}
        for id, value in answers.items()
    }
    return {"answers": told}


def values_of(resolution: Resolution) -> dict[str, Json] | None:
    """Return the answers without author and time, or None if there are none."""
    try:
        told = msgspec.convert(resolution.value, _Told) if isinstance(resolution, Ok) else None
    except msgspec.ValidationError:
        return None
    return {id: one.get("value") for id, one in told.answers.items()} if told else None


class _Told(Value, frozen=True):
    answers: dict[str, dict[str, Json]]


def silence(questions: tuple[Question, ...]) -> Json:
    """Return the result of the call on a timeout, or None if no question has a default."""
    if all(question.default is None for question in questions):
        return None
    return {"answers": {question.id: _unanswered(question) for question in questions}}


def _unanswered(question: Question) -> Json:
    match question.default:
        case None:
            return {"value": None, "answered_by": "nobody"}
        case str(option):
            return {"value": option, "answered_by": "default"}
        case options:
            return {"value": list(options), "answered_by": "default"}
