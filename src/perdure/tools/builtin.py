"""Built-in tools that need no service, and two tools for tests.

Tools that need a service (network, shell, storage, background runs) come with that service, so that a model sees every
tool that can run. File tools are in `tools/files.py`.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from perdure.codec import Json
from perdure.tools.context import ToolContext
from perdure.tools.execution_result import ToolResult
from perdure.tools.objects import BaseTool
from perdure.vocab.tools import ToolHints

_SAFE = ToolHints(readonly=True, idempotent=True)


def default_tools() -> tuple[BaseTool, ...]:
    """Return new instances of the built-in tools, in order."""
    return (
        GetCurrentTimeTool(),
        EchoTool(),
        ReportProgressTool(),
        AddTool(),
        SubtractTool(),
        MultiplyTool(),
        DivideTool(),
        GetWeatherTool(),
        GetForecastTool(),
        WriteTodosTool(),
    )


def _schema(required: tuple[str, ...] = (), /, **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def _text(description: str, **more: Json) -> Json:
    return {"type": "string", "description": description, **more}


# --- for testing ------------------------------------------------------------------------------------------------


class EchoTool(BaseTool):
    """Returns its message."""

    name = "echo"
    display_name = "Echo"
    description = "Echo back the provided message. Useful for testing tool execution."
    parameters_schema = _schema(("message",), message=_text("The message to echo back"))
    hints = _SAFE
    checked = False  # any message is accepted; a missing one is empty

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Return the message and its length in bytes."""
        given = arguments.get("message")
        message = given if isinstance(given, str) else ""
        return ToolResult.success({"echoed": message, "length": len(message.encode())})


class FailingTool(BaseTool):
    """A tool that always fails, visibly or internally."""

    name = "failing_tool"
    display_name = "Failing Tool"
    description = "A tool that always fails (for testing error handling)"
    parameters_schema = _schema()
    hints = _SAFE

    def __init__(self, message: str = "Tool execution failed", *, internal: bool = False) -> None:
        self.message = message
        self.internal = internal

    @classmethod
    def with_tool_error(cls, message: str) -> FailingTool:
        """Return a tool whose failure the model can read."""
        return cls(message)

    @classmethod
    def with_internal_error(cls, message: str) -> FailingTool:
        """Return a tool whose failure appears only in the log."""
        return cls(message, internal=True)

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Fail."""
        if self.internal:
            return ToolResult.internal_error_msg(self.message)
        return ToolResult.tool_error(self.message)


# --- the time ---------------------------------------------------------------------------------------------------


class GetCurrentTimeTool(BaseTool):
    """The current time in UTC. Without side effects, so a crash runs the call again."""

    name = "get_current_time"
    display_name = "Get Current Time"
    description = "Get the current date and time in UTC."
    parameters_schema = _schema(
        format=_text("How to write it: `iso8601` (default), `unix` or `human`", enum=["iso8601", "unix", "human"])
    )
    hints = ToolHints(readonly=True)
    checked = False  # the tool words its own errors

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Return the time in the requested format."""
        wanted = arguments.get("format") or "iso8601"
        moment = datetime.fromtimestamp(self._now(), tz=UTC)
        match wanted:
            case "iso8601":
                shown: Json = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
            case "unix":
                shown = int(moment.timestamp())
            case "human":
                shown = moment.strftime("%A, %d %B %Y, %H:%M:%S UTC")
            case _:
                return ToolResult.tool_error("format must be one of: iso8601, unix, human")
        return ToolResult.success({"time": shown, "format": wanted, "timezone": "UTC"})


# --- arithmetic -------------------------------------------------------------------------------------------------


class _Arithmetic(BaseTool):
    parameters_schema = _schema(
        ("a", "b"),
        a={"type": "number", "description": "The first number"},
        b={"type": "number", "description": "The second number"},
    )
    hints = _SAFE
    checked = False  # a missing operand is 0; the result shows the operands

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Return the result with its operation and operands."""
        try:
            a, b = _number(arguments.get("a")), _number(arguments.get("b"))
            result = self.compute(a, b)
        except ZeroDivisionError:
            return ToolResult.tool_error("Cannot divide by zero")
        except OverflowError:
            return ToolResult.tool_error("The numbers are too large to compute with")
        if not math.isfinite(result):
            return ToolResult.tool_error("The result is too large to be written down")
        return ToolResult.success({"result": result, "operation": self.name, "a": a, "b": b})

    @abstractmethod
    def compute(self, a: float, b: float) -> float:
        """Return the result."""


def _number(given: Json) -> float:
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else 0.0


class AddTool(_Arithmetic):
    """Addition: a + b."""

    name = "add"
    display_name = "Add"
    description = "Add two numbers together and return the result."

    def compute(self, a: float, b: float) -> float:
        """Return the sum."""
        return a + b


class SubtractTool(_Arithmetic):
    """Subtraction: a - b."""

    name = "subtract"
    display_name = "Subtract"
    description = "Subtract the second number from the first and return the result."

    def compute(self, a: float, b: float) -> float:
        """Return the difference."""
        return a - b


class MultiplyTool(_Arithmetic):
    """Multiplication: a * b."""

    name = "multiply"
    display_name = "Multiply"
    description = "Multiply two numbers and return the result."

    def compute(self, a: float, b: float) -> float:
        """Return the product."""
        return a * b


class DivideTool(_Arithmetic):
    """Division: a / b."""

    name = "divide"
    display_name = "Divide"
    description = "Divide the first number by the second and return the result."

    def compute(self, a: float, b: float) -> float:
        """Return the quotient."""
        return a / b


# --- simulated weather ------------------------------------------------------------------------------------------

_CONDITIONS = ("sunny", "partly cloudy", "cloudy", "rainy", "windy")
MAX_DAYS = 7


def _weather(seed: int) -> dict[str, Json]:
    return {
        "temperature_c": seed % 35 + 5,
        "conditions": _CONDITIONS[seed % len(_CONDITIONS)],
        "humidity_percent": seed % 60 + 30,
    }


class GetWeatherTool(BaseTool):
    """Simulated weather, constant per place."""

    name = "get_weather"
    display_name = "Get Weather"
    description = "Get the current weather of a place. Simulated: the values are made up from the place's name."
    parameters_schema = _schema(("location",), location=_text("The place, e.g. `Kyiv`"))
    hints = _SAFE
    checked = False  # the tool words its own errors

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Return the weather."""
        place = _place(arguments)
        if place is None:
            return ToolResult.tool_error("Missing required parameter: location")
        return ToolResult.success({"location": place, **_weather(sum(place.encode())), "simulated": True})


class GetForecastTool(BaseTool):
    """Simulated weather forecast."""

    name = "get_forecast"
    display_name = "Get Forecast"
    description = "Get the weather forecast of a place. Simulated: the values are made up from the place's name."
    parameters_schema = _schema(
        ("location",),
        location=_text("The place, e.g. `Kyiv`"),
        days={"type": "integer", "description": "How many days: 1 to 7, 3 unless said", "minimum": 1, "maximum": 7},
    )
    hints = _SAFE
    checked = False  # the tool words its own errors

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Return one entry per day."""
        place = _place(arguments)
        if place is None:
            return ToolResult.tool_error("Missing required parameter: location")
        wanted = arguments.get("days")
        days = min(max(1, wanted), MAX_DAYS) if isinstance(wanted, int) and not isinstance(wanted, bool) else 3
        seed = sum(place.encode())
        forecast = [{"day": day + 1, **_weather(seed + 7 * day)} for day in range(days)]
        return ToolResult.success({"location": place, "forecast": forecast, "simulated": True})


def _place(arguments: dict[str, Json]) -> str | None:
    given = arguments.get("location")
    return given if isinstance(given, str) and given.strip() else None


# --- progress of the work ---------------------------------------------------------------------------------------

_PROGRESS = ("progress", "blocked", "completed")
_TODO = ("pending", "in_progress", "completed")


class ReportProgressTool(BaseTool):
    """Progress reports for observers that do not see the conversation."""

    name = "report_progress"
    display_name = "Report Progress"
    description = "Report how the work is going to those who do not see the conversation."
    parameters_schema = _schema(
        ("status", "summary"),
        status=_text("How it is going", enum=list(_PROGRESS)),
        summary=_text("One sentence"),
        details={"type": "array", "items": {"type": "string"}, "description": "More, point by point"},
    )
    hints = ToolHints(idempotent=True)
    checked = False  # the tool words its own errors

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Check and return the report, which records it in the log."""
        status, summary, details = arguments.get("status"), arguments.get("summary"), arguments.get("details")
        if status not in _PROGRESS:
            return ToolResult.tool_error(f"status must be one of: {', '.join(_PROGRESS)}")
        if not _filled(summary):
            return ToolResult.tool_error("summary must not be empty")
        points: Json = [] if details is None else details
        if not isinstance(points, list) or not all(_filled(point) for point in cast("list[Json]", points)):
            return ToolResult.tool_error("details must be a list of texts that are not empty")
        return ToolResult.success(
            {"reported": True, "status": status, "summary": summary, "details": cast("Json", points)}
        )

    async def execute_with_context(self, arguments: dict[str, Json], context: ToolContext[object]) -> ToolResult:
        """Check and return the report, and emit it live."""
        result = await self.execute(arguments)
        if result.is_success:
            context.progress(str(arguments["summary"]))
        return result


class WriteTodosTool(BaseTool):
    """The model's task list. Each call contains the whole list; it is stored only in the conversation."""

    name = "write_todos"
    display_name = "Write Todos"
    description = (
        "Write the list of tasks for the work at hand, replacing the list before. Keep exactly one task in progress."
    )
    parameters_schema = _schema(
        ("todos",),
        todos={
            "type": "array",
            "description": "All tasks, in order",
            "items": _schema(
                ("content", "activeForm", "status"),
                content=_text("What is to do, e.g. `Run the tests`"),
                activeForm=_text("The same while it is being done, e.g. `Running the tests`"),
                status=_text("Where it stands", enum=list(_TODO)),
            ),
        },
    )
    hints = ToolHints(idempotent=True, concurrency_class="session_todos")
    checked = False  # the tool words its own errors

    async def execute(self, arguments: dict[str, Json]) -> ToolResult:
        """Check the list and count the tasks by status."""
        given = arguments.get("todos")
        if not isinstance(given, list):
            return ToolResult.tool_error("Missing required parameter: todos (list expected)")
        todos = cast("list[Json]", given)
        for number, todo in enumerate(todos, start=1):
            if problem := _problem(todo):
                return ToolResult.tool_error(f"Task {number}: {problem}")
        counts = {status: sum(todo["status"] == status for todo in todos) for status in _TODO}
        result: dict[str, Json] = {"total": len(todos), **counts, "todos": todos}
        if todos and counts["completed"] < len(todos) and counts["in_progress"] != 1:
            many = "No task is" if counts["in_progress"] == 0 else f"{counts['in_progress']} tasks are"
            result["warning"] = f"{many} in progress; exactly one should be"
        return ToolResult.success(result)


def _problem(todo: Json) -> str:
    if not isinstance(todo, dict):
        return "it must be an object"
    given = cast("dict[str, Json]", todo)
    for field in ("content", "activeForm"):
        if not _filled(given.get(field)):
            return f"{field} must not be empty"
    return "" if given.get("status") in _TODO else f"status must be one of: {', '.join(_TODO)}"


def _filled(text: Json) -> bool:
    return isinstance(text, str) and bool(text.strip())
