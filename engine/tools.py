"""Tools: what a model can call."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    get_type_hints,
    overload,
)

import msgspec
from typing_extensions import TypeVar

from batonlog.engine.arguments import BadArgumentsError, Converter
from batonlog.engine.contexts import RunContext, ToolContext
from batonlog.engine.schemas import is_closed, mismatch, schema_of
from batonlog.events import JSON, UsageError

_Ctx_contra = TypeVar("_Ctx_contra", default=object, contravariant=True)
_C = TypeVar("_C")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_MaybeAsync: TypeAlias = _R | Awaitable[_R]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_NOTHING: Mapping[str, JSON] = {
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": False,
}


class Tool(Generic[_Ctx_contra]):
    """Something a model can call. `tool()` makes one from a function; this makes one from a schema.

    Args:
        name: 1 to 64 of a-z, A-Z, 0-9, _ and -.
        call: what is done: gets the context and the arguments, which match the schema. None is a
            tool that runs elsewhere: the run pauses until `settle`. One that is not async runs in
            a thread.
        description: what the model is told about it.
        parameters: JSON schema of the arguments, an object.
        strict: have the provider keep to the schema; it must then be closed.
        idempotent: whether it may run again when a worker is lost: it then gets the same
            `ToolContext.idempotency_key`.
        on_unknown: what becomes of a call that was started when a worker was lost, if it is not
            idempotent: `ask` a person, or `report` to the model that nobody knows.
        needs_approval: whether a person must agree first; a function decides by the arguments.
            One that raises counts as yes.
        is_enabled: whether it is offered; asked before every model call.
        timeout: seconds after which the call is an error.
        on_error: text for the model when it raises; by default the type of the error and its text.

    Raises UsageError for a name or a schema that no provider takes.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[ToolContext[_Ctx_contra], dict[str, JSON]], _MaybeAsync[object]] | None,
        *,
        description: str = "",
        parameters: Mapping[str, JSON] = _NOTHING,
        strict: bool = True,
        idempotent: bool = False,
        on_unknown: Literal["ask", "report"] = "ask",
        needs_approval: bool
        | Callable[[ToolContext[_Ctx_contra], dict[str, JSON]], _MaybeAsync[bool]] = False,
        is_enabled: bool | Callable[[RunContext[_Ctx_contra]], _MaybeAsync[bool]] = True,
        timeout: float | None = None,
        on_error: Callable[[ToolContext[_Ctx_contra], Exception], str] | None = None,
    ) -> None:
        check_tool_name(name)
        if parameters.get("type") != "object":
            raise UsageError(f"tool {name}: parameters must be the schema of an object, with type: object")
        if strict and not is_closed(parameters, what=f"tool {name}"):
            raise UsageError(
                f"tool {name}: strict needs a closed schema: additionalProperties false, every property "
                f"required, no default. Mend it, or say strict=False"
            )
        self.name = name
        self.description = description
        self.parameters: Mapping[str, JSON] = dict(parameters)
        self.strict = strict
        self.idempotent = idempotent
        self.on_unknown = on_unknown
        self.needs_approval = needs_approval
        self.is_enabled = is_enabled
        self.timeout = timeout
        self.on_error = on_error
        self._call = call

    @property
    def runs_elsewhere(self) -> bool:
        """Whether somebody else gives its result."""
        return self._call is None

    def check(self, arguments: dict[str, JSON]) -> None:
        """Raise BadArgumentsError, in words for the model, unless the arguments match the schema."""
        if (wrong := mismatch(arguments, dict(self.parameters))) is not None:
            raise BadArgumentsError(
                f"Invalid arguments for {self.name}: {wrong}. "
                f"Call it again with arguments that match its schema."
            )

    async def run(self, context: ToolContext[Any], arguments: dict[str, JSON]) -> object:
        """Do it, and return what it returned. Raises TimeoutError, and whatever it raises."""
        if self.timeout is None:
            return await self._do(context, arguments)
        try:
            async with asyncio.timeout(self.timeout) as limit:
                return await self._do(context, arguments)
        except TimeoutError as error:
            if not limit.expired():  # one of its own
                raise
            raise TimeoutError(f"{self.name} did not finish within {self.timeout} seconds") from error

    async def _do(self, context: ToolContext[Any], arguments: dict[str, JSON]) -> object:
        assert self._call is not None
        return await call_either(self._call, context, arguments)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


async def call_either(function: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """Call an async function here, and any other in a thread: it may block."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def check_tool_name(name: str) -> None:
    """Refuse a name that no provider takes. Raises UsageError."""
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name of a tool: use 1 to 64 of a-z, A-Z, 0-9, _ and -")


class _FunctionTool(Tool[_Ctx_contra]):
    """A tool made from a function: arguments are converted to what its parameters are annotated with."""

    def __init__(self, function: Callable[..., Any], signature: "_Signature", **options: Any) -> None:
        super().__init__(call=function, **options)
        self.function = function
        self._signature = signature

    def check(self, arguments: dict[str, JSON]) -> None:
        self._signature.arguments.convert(self.name, arguments)

    async def _do(self, context: ToolContext[Any], arguments: dict[str, JSON]) -> object:
        values = self._signature.arguments.convert(self.name, arguments)
        given = {name: getattr(values, name) for name in values.__struct_fields__}
        first = (context,) if self._signature.takes_context else ()
        return await call_either(self.function, *first, **given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, as its own unit tests do."""
        return self.function(*args, **kwargs)


class _Signature(msgspec.Struct):
    arguments: Converter
    """To a Struct of its parameters."""
    takes_context: bool


def _signature_of(function: Callable[..., Any], name: str, texts: Mapping[str, str]) -> _Signature:
    try:
        hints = get_type_hints(_annotated(function), include_extras=True)
    except NameError as error:
        raise UsageError(f"tool {name}: an annotation cannot be read: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name))
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters[takes_context:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"tool {name}: a model gives arguments by name; parameter {parameter} cannot be given so"
            )
        if parameter.name not in hints:
            raise UsageError(
                f"tool {name}: annotate parameter {parameter.name}, so that the model knows its type"
            )
        hint = _described(hints[parameter.name], texts.get(parameter.name))
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        fields.append((parameter.name, hint, _field(default)))
    try:
        made = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise UsageError(f"tool {name}: {error}") from error
    return _Signature(Converter(made), takes_context)


def _annotated(function: Callable[..., Any]) -> Any:
    """The function that holds the annotations: of a partial, and of an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _field(default: Any) -> Any:
    if isinstance(default, list | dict | set):
        return msgspec.field(default_factory=default.copy)
    return msgspec.field(default=default)


def _described(hint: Any, text: str | None) -> Any:
    from typing import Annotated

    return hint if text is None else Annotated[hint, msgspec.Meta(description=text)]


def _is_context(hint: Any) -> bool:
    origin = getattr(hint, "__origin__", hint)
    return isinstance(origin, type) and issubclass(origin, RunContext)


@overload
def tool(function: Callable[Concatenate[ToolContext[_C], _P], object], /) -> Tool[_C]: ...
@overload
def tool(function: Callable[_P, object], /) -> Tool[object]: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = True,
    idempotent: bool = False,
    on_unknown: Literal["ask", "report"] = "ask",
    needs_approval: bool | Callable[[ToolContext[Any], dict[str, JSON]], _MaybeAsync[bool]] = False,
    is_enabled: bool | Callable[[RunContext[Any]], _MaybeAsync[bool]] = True,
    timeout: float | None = None,
    on_error: Callable[[ToolContext[Any], Exception], str] | None = None,
) -> "_ToolDecorator": ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = True,
    **options: Any,
) -> Any:
    """Make a tool from a function: schema from its signature, texts from its docstring.

    The first parameter may be a ToolContext; all others are given by the model and need
    annotations. What the docstring says under `Args:` describes them. The options are those
    of `Tool`.

    Raises UsageError for a function that a model could not call.
    """

    def make(function: Callable[..., Any]) -> Tool[Any]:
        if not callable(function):
            raise UsageError(f"{function!r} is no function: a tool is made from a function, or by Tool(...)")
        named: str = name or getattr(function, "__name__", "") or type(function).__name__
        check_tool_name(named)
        summary, texts = read_docstring(inspect.getdoc(function) or "")
        signature = _signature_of(function, named, texts)
        return _FunctionTool(
            function,
            signature,
            name=named,
            description=summary if description is None else description,
            parameters=schema_of(signature.arguments.type, strict=strict, what=f"tool {named}"),
            strict=strict,
            **options,
        )

    return make if function is None else make(function)


class _ToolDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[Concatenate[ToolContext[_C], _P], object], /) -> Tool[_C]: ...
    @overload
    def __call__(self, function: Callable[_P, object], /) -> Tool[object]: ...


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its sections, and what its `Args:` say about each parameter."""
    summary: list[str] = []
    texts: dict[str, str] = {}
    section, current = "", ""
    for line in text.splitlines():
        if (header := _SECTION.match(line)) is not None:
            section, current = header[1], ""
        elif not section:
            summary.append(line)
        elif line and not line[0].isspace():
            section = ""
            summary.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            if (found := _ARGUMENT.match(line)) is not None:
                current = found[1]
                texts[current] = found[2].strip()
            elif current and line.strip():
                texts[current] = f"{texts[current]} {line.strip()}".strip()
    return "\n".join(summary).strip(), texts
